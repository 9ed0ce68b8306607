"""One log in memory: its batches as a list of buffers, found by bisection.

An I/O worker (or the loop) changes it, reader threads only look: batches are added before ``end``
moves over them, and what takes batches away puts a new list in place of the old one.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from icecore.errors import IcecoreError
from icecore_node.ports import Buffer
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.batches.batch_scan import BatchScan, empty_tail
from icecore_node.storage.batches.recent_batches import RecentBatches
from icecore_node.storage.engine import NO_TAIL, AppendRequest, BatchMark, SegmentIdentity

_TAILS = 64


class HeldBatches:
    """The batches of one log, one behind the other; append-only."""

    __slots__ = ("batches", "places", "times_ms")

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.places = RecentBatches()
        """Offset and position of each batch."""
        self.times_ms: list[int] = []
        """The largest append time up to each batch."""

    def add(self, marks: Sequence[BatchMark], buffers: Sequence[Buffer], position: int) -> None:
        """Take over batches. They are copied: a view would keep the whole request that brought them
        in memory, with what is in it for other logs."""
        times_ms = self.times_ms
        largest_ms = times_ms[-1] if times_ms else 0
        for mark, batch in zip(marks, _owned(marks, buffers), strict=True):
            self.batches.append(batch)
            largest_ms = max(largest_ms, mark.append_timestamp_ms)
            times_ms.append(largest_ms)
            self.places.add(mark.base_offset, position)
            position += mark.length_bytes

    def first(self, count: int) -> "HeldBatches":
        """A copy of the first ones."""
        kept = HeldBatches()
        kept.batches, kept.times_ms = self.batches[:count], self.times_ms[:count]
        kept.places.positions = self.places.positions[:count]
        kept.places.offsets = self.places.offsets[:count]
        return kept

    def pread(self, length: int, position: int) -> bytes:
        """See ``Readable.pread``."""
        positions = self.places.positions
        first = bisect_right(positions, position) - 1
        if first < 0 or length <= 0:
            return b""
        stop = max(bisect_left(positions, position + length), first + 1)
        start = position - positions[first]
        held = self.batches[first:stop]
        data = held[0] if len(held) == 1 else b"".join(held)
        return data if start == 0 and len(data) <= length else data[start : start + length]


class MemoryLog:
    """A ``BatchLog`` whose bytes are here."""

    __slots__ = ("base", "end", "failed", "held", "identity", "is_sealed", "tails")

    def __init__(self, identity: SegmentIdentity, start_timestamp_ms: int) -> None:
        self.held = HeldBatches()
        self.is_sealed = False
        self.failed: IcecoreError | None = None
        """Error of a failed append; the log refuses appends until it is cut."""
        self.tails: deque[Place] = deque(maxlen=_TAILS)
        """Ends of the log after each of its newest appends."""
        self.confirm(identity, start_timestamp_ms)

    def confirm(self, identity: SegmentIdentity, start_timestamp_ms: int) -> None:
        """Begin, empty, at the base of this identity."""
        is_prepared = identity.base_offset < 0
        start = NO_TAIL if is_prepared else empty_tail(identity, start_timestamp_ms)
        self.identity = identity
        self.base: Place = (start, 0)
        self.end: Place = self.base

    @property
    def handle(self) -> "MemoryLog":
        """See ``BatchLog.handle``. No reference: in a cycle the batches of a log that is gone would
        stay until somebody looks for garbage."""
        return self

    def using(self) -> AbstractContextManager[HeldBatches]:
        """See ``Handle.using``: what was there when a read began stays until it ends."""
        return nullcontext(self.held)

    def append(self, request: AppendRequest) -> None:
        """Take over the next batches."""
        position = self.end[1]
        self.held.add(request.marks, request.buffers, position)
        self.end = (request.tail, position + length_of(request.marks))
        self.tails.append(self.end)

    def cut(self, end: Place) -> None:
        """End at an earlier place."""
        count = bisect_left(self.held.places.positions, end[1])
        self.end = end
        self.held = self.held.first(count)
        self.tails.clear()
        self.failed = None

    @property
    def count(self) -> int:
        """Number of its batches."""
        return len(self.held.batches)

    def proven(self) -> "MemoryLog":
        """A log of the batches before the first that is not whole, or not chained."""
        start, position = self.base
        scan = BatchScan(self.held, self.identity, position, start, self.end[1], with_bodies=True)
        deque(scan, maxlen=0)
        log = MemoryLog(self.identity, start.max_append_timestamp_ms)
        log.held, log.end = self.held, self.end
        log.cut((scan.tail, scan.position))
        return log


def _owned(marks: Sequence[BatchMark], buffers: Sequence[Buffer]) -> Iterator[bytes]:
    """Each batch by itself, copied once, wherever the buffers that hold them begin and end."""
    left = list(reversed(buffers))
    for mark in marks:
        parts: list[Buffer] = []
        need = mark.length_bytes
        while need:
            part = left.pop()
            if len(part) > need:
                view = memoryview(part)
                left.append(view[need:])
                part = view[:need]
            parts.append(part)
            need -= len(part)
        yield b"".join(parts)


def length_of(marks: Sequence[BatchMark]) -> int:
    """Return the length of all batches in bytes."""
    return sum(mark.length_bytes for mark in marks)
