"""One log in the database: its tail, where its newest batches begin, and the way to its bytes.

I/O workers change it, reader threads only look: what both touch is replaced in one step.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from icecore.errors import IcecoreError, NotReplicaError
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.batches.batch_scan import empty_tail
from icecore_node.storage.batches.recent_batches import RecentBatches
from icecore_node.storage.engine import NO_TAIL, BatchMark, LogTail, SegmentIdentity
from icecore_node.storage.rocksdb_engine.log_database import LogDatabase
from icecore_node.storage.rocksdb_engine.log_keys import batches_key, position_of

_RECENT_BATCHES = 4096
_TAILS = 64
VALUE_BYTES = 256 << 10
"""Batches that come together are one value up to this size: so much a read takes at least."""


class StoredBatches:
    """``Readable`` over the values of one slot, and the ``Handle`` to it."""

    def __init__(self, database: LogDatabase, slot: int) -> None:
        self._database = database
        self._is_dropped = False
        self.slot = slot

    def using(self) -> AbstractContextManager["StoredBatches"]:
        """See ``Handle.using``."""
        self._check()
        return nullcontext(self)

    def drop(self) -> None:
        """Before the values go: from now on what is missing is no damage."""
        self._is_dropped = True

    def _check(self) -> None:
        if self._is_dropped:
            raise NotReplicaError("the log was dropped while it was read")

    def pread(self, length: int, position: int) -> bytes:
        """See ``Readable.pread``. Raises NotReplicaError when the log was dropped meanwhile."""
        data = self._read(length, position)
        if len(data) < length:
            self._check()
        return data

    def _read(self, length: int, position: int) -> bytes:
        found = self.value_at(position)
        if found is None:
            return b""
        start, value = found
        parts = [value[position - start : position - start + length]]
        have, end = len(parts[0]), start + len(value)
        if have and have < length:
            lower = batches_key(self.slot, end)
            for key, value in self._database.scan(lower, batches_key(self.slot, position + length)):
                if position_of(key) != end:
                    break
                parts.append(value[: length - have])
                have, end = have + len(parts[-1]), end + len(value)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def value_at(self, position: int) -> tuple[int, bytes] | None:
        """The value that begins at or before a position, and where; None when there is none."""
        slot = self.slot
        found = self._database.floor(batches_key(slot, position), batches_key(slot, 0))
        return None if found is None else (position_of(found[0]), found[1])


class RocksLog:
    """A ``BatchLog`` in the database."""

    __slots__ = ("base", "end", "failed", "handle", "identity", "is_sealed", "recent", "tails")

    def __init__(
        self, identity: SegmentIdentity, start_timestamp_ms: int, handle: StoredBatches
    ) -> None:
        self.handle = handle
        self.is_sealed = False
        self.failed: IcecoreError | None = None
        """Error of a failed append; the log refuses appends until it is truncated or dropped."""
        self.recent = RecentBatches()
        self.tails: deque[Place] = deque(maxlen=_TAILS)
        self.confirm(identity, start_timestamp_ms)

    def confirm(self, identity: SegmentIdentity, start_timestamp_ms: int) -> None:
        """Begin, empty, at the base of this identity."""
        is_prepared = identity.base_offset < 0
        start = NO_TAIL if is_prepared else empty_tail(identity, start_timestamp_ms)
        self.identity = identity
        self.base: Place = (start, 0)
        self.end: Place = self.base

    def advance(self, marks: Sequence[BatchMark], tail: LogTail) -> None:
        """Take over batches that are durable now."""
        recent, position = self.recent, self.end[1]
        for mark in marks:
            recent.add(mark.base_offset, position)
            position += mark.length_bytes
        self.end = (tail, position)
        self.tails.append(self.end)
        if len(recent.offsets) > 2 * _RECENT_BATCHES:
            self.recent = recent.newest(_RECENT_BATCHES)

    def rewind(self, end: Place) -> None:
        """It was cut to end there."""
        self.recent = RecentBatches()
        self.tails.clear()
        self.end = end
        self.failed = None


def values_of(
    slot: int, position: int, marks: Sequence[BatchMark], data: bytes
) -> list[tuple[bytes, bytes]]:
    """The pairs to write for batches that follow at ``position``: whole ones in each value."""
    if len(data) <= VALUE_BYTES or len(marks) == 1:
        return [(batches_key(slot, position), data)]
    ends = []
    end = 0
    for mark in marks:
        end += mark.length_bytes
        ends.append(end)
    puts, start = [], 0
    while start < len(data):
        number = bisect_left(ends, start + VALUE_BYTES)
        stop = ends[min(number, len(ends) - 1)]
        puts.append((batches_key(slot, position + start), data[start:stop]))
        start = stop
    return puts
