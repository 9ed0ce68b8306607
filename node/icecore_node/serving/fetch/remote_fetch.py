"""Fetch and ListOffsets of segments that lie in object storage, where no replica here can answer.

The answer is that of a sealed replica: whole batches or the matching records, and the segment's
end. This node does not know which nodes hold the next segment; the client asks for that. Bytes come
by ``remote/read/reading.py`` and ``remote/read/objects.py`` from ``remote/store/obstore_store.py``.
"""

from collections.abc import Awaitable, Callable

from icecore.codec.selection import Selection
from icecore.model import Segment
from icecore.v1 import data_pb2
from icecore_node.ports import Buffer
from icecore_node.serving.fetch.filtered_fetch import (
    FilterBudget,
    Filtered,
    FilterSink,
    read_filtered,
)
from icecore_node.serving.query.log_search import LogSearch
from icecore_node.serving.remote_segments import RemoteSegments, view_of_remote


class RemoteFetch:
    """Loop only."""

    def __init__(self, segments: RemoteSegments) -> None:
        self._segments = segments

    async def read(
        self,
        segment: Segment,
        result: data_pb2.FetchPartitionResult,
        max_bytes: int,
        *,
        as_row_groups: bool,
    ) -> tuple[list[Buffer], int]:
        """Read batches from the next offset of the result on. Return them and their size in
        bytes."""
        found, next_offset = await self._segments.reading.read(
            segment.segment_id, result.next_offset, max_bytes, as_row_groups=as_row_groups
        )
        _describe(segment, next_offset, result)
        return found, sum(map(len, found))

    async def filter(
        self,
        segment: Segment,
        result: data_pb2.FetchPartitionResult,
        selection: Selection,
        room: tuple[int, int],
        budget: FilterBudget,
    ) -> Filtered:
        """Read the matching records from the offset where the last look ended."""
        reading = self._segments.reading
        log = await reading.open_log(segment.segment_id)
        try:
            asked = result.next_offset, segment.end_offset
            view = view_of_remote(log, segment, log.quiet(selection))
            search = LogSearch(view, selection, asked)

            def step(make_sink: Callable[[], FilterSink]) -> Awaitable[FilterSink]:
                return reading.step(log, search.try_step, make_sink)

            found = await read_filtered(search, step, room, budget)
        finally:
            reading.close_log(log)
        _describe(segment, found.next_offset, result)
        return found

    async def find_time(
        self, entry: data_pb2.ListOffsetsPartition, result: data_pb2.ListOffsetsResult
    ) -> bool:
        """Find the first record of a segment from a time on. Return whether that segment is a
        published one that no replica here can answer for."""
        if self._segments.is_held(entry.segment_id):
            return False
        named = (entry.topic_id, entry.topic, entry.partition, entry.segment_id)
        segment = await self._segments.named(*named)
        if segment is None:
            return False
        start = segment.log_start_offset
        result.offset = max(segment.end_offset, start)
        if segment.end_offset <= start:
            return True  # nobody may read it any more
        found = await self._segments.reading.offset_for_time(segment.segment_id, entry.timestamp_ms)
        if found is not None:
            offset, result.append_timestamp_ms = found
            result.offset = max(offset, start)
            result.segment_id, result.found = segment.segment_id, True
        return True


def _describe(segment: Segment, next_offset: int, result: data_pb2.FetchPartitionResult) -> None:
    result.segment_id, result.epoch = segment.segment_id, segment.epoch
    result.segment_sealed, result.sealed_end_offset = True, segment.end_offset
    result.high_watermark = max(result.high_watermark, segment.end_offset)
    result.log_start_offset = max(result.log_start_offset, segment.log_start_offset)
    result.next_offset = next_offset
