"""The newest batches of all led and followed segments, in memory for readers at the end.

Followers and up-to-date consumers ask for exactly the batch that was appended a moment ago; from
here they get it without touching the file. The cache holds at most ``bytes_max`` over the whole
node and forgets in order of arrival, so a slow reader costs file reads, never memory.
"""

from collections import OrderedDict
from dataclasses import dataclass

from icecore.model import SegmentId
from icecore_node.ports import Buffer


@dataclass(frozen=True, slots=True)
class CachedBatch:
    """One stamped batch as the buffers it was written from."""

    buffers: tuple[Buffer, ...]
    length_bytes: int
    end_offset: int
    header_crc32c: int


class TailCache:
    """Bounded, first in first out, addressed by (segment_id, base_offset)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[tuple[SegmentId, int], CachedBatch] = OrderedDict()
        self.bytes = 0

    def put(self, segment_id: SegmentId, base_offset: int, batch: CachedBatch) -> None:
        """Remember a batch, forgetting the oldest ones beyond the bound."""
        self._batches[segment_id, base_offset] = batch
        self.bytes += batch.length_bytes
        while self.bytes > self._bytes_max:
            _, oldest = self._batches.popitem(last=False)
            self.bytes -= oldest.length_bytes

    def get(self, segment_id: SegmentId, base_offset: int) -> CachedBatch | None:
        """The batch that starts exactly there, if it is still remembered."""
        return self._batches.get((segment_id, base_offset))

    def read(
        self, segment_id: SegmentId, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[list[Buffer], int, int]:
        """Buffers of the batches from ``offset`` on, their length in bytes, the offset after.

        Stops at the first batch that is not here, at ``end_offset`` and before ``max_bytes`` is
        exceeded (the first batch always comes). Empty when ``offset`` does not start a batch here.
        """
        buffers: list[Buffer] = []
        length = 0
        while offset < end_offset:
            batch = self._batches.get((segment_id, offset))
            if batch is None or batch.end_offset > end_offset:
                break
            if buffers and length + batch.length_bytes > max_bytes:
                break
            buffers.extend(batch.buffers)
            length += batch.length_bytes
            offset = batch.end_offset
        return buffers, length, offset
