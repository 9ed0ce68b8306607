"""The newest batches of all led and followed segments, in memory for readers at the end.

Followers and up-to-date consumers ask for exactly the batch that was appended a moment ago; from
here they get it without touching the file. The cache holds at most ``bytes_max`` over the whole
node and forgets in order of arrival, so a slow reader costs file reads, never memory.

A batch is a view of the request or message that brought it, and as long as one batch of that lives
all of it does. So what counts is each such message, once, in full. A message that alone is much of
the cache is not kept for the sake of its batches: they are copied out of it.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from icecore.model import SegmentId
from icecore_node.ports import Buffer


@dataclass(frozen=True, slots=True)
class CachedBatch:
    """One stamped batch as the buffers it was written from."""

    buffers: tuple[Buffer, ...]
    length_bytes: int
    end_offset: int
    header_crc32c: int


_WHOLE_SHARE: Final = 8
"""A message of more than this part of the cache is not kept whole."""


class TailCache:
    """Bounded, first in first out, addressed by (segment_id, base_offset)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[tuple[SegmentId, int], CachedBatch] = OrderedDict()
        self._owners: dict[int, list[int]] = {}
        """By the id of the memory that batches are views of, which lives as long as they do: how
        many views, and its size."""
        self.bytes = 0
        """Held in memory for it."""

    def put(self, segment_id: SegmentId, base_offset: int, batch: CachedBatch) -> None:
        """Remember a batch, forgetting the oldest ones beyond the bound."""
        replaced = self._batches.pop((segment_id, base_offset), None)
        if replaced is not None:
            self._let_go(replaced)
        self._batches[segment_id, base_offset] = self._held(batch)
        while self.bytes > self._bytes_max:
            _, oldest = self._batches.popitem(last=False)
            self._let_go(oldest)

    def _held(self, batch: CachedBatch) -> CachedBatch:
        """Count a batch; one with memory of its own if what it is part of is too large."""
        for each in batch.buffers:
            if not isinstance(each, memoryview):
                self.bytes += len(each)
            elif (known := self._owners.get(id(each.obj))) is not None:
                known[0] += 1
            elif (size_bytes := memoryview(each.obj).nbytes) * _WHOLE_SHARE <= self._bytes_max:
                self._owners[id(each.obj)] = [1, size_bytes]
                self.bytes += size_bytes
            else:
                assert batch.buffers[-1] is each, "only the body is a view"
                self.bytes += len(each)
                return replace(batch, buffers=(*batch.buffers[:-1], bytes(each)))
        return batch

    def _let_go(self, batch: CachedBatch) -> None:
        for each in batch.buffers:
            if not isinstance(each, memoryview):
                self.bytes -= len(each)
                continue
            known = self._owners[id(each.obj)]
            known[0] -= 1
            if not known[0]:
                del self._owners[id(each.obj)]
                self.bytes -= known[1]

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
