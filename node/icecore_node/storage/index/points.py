"""Keys and points of the index: sparse offset and time points, the durable end, and the keys
of entries beside them.

Keys start with ``(segment_id << 16 | generation)`` as a big-endian u64. A point is written for the
first batch and then one per 1,000 records or 1 MiB: ``offset -> position`` and ``append time ->
offset``. ``durable`` holds how far the log was synced when the entry was written: it may lag
behind the file and never leads it.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from icecore.errors import StorageError
from icecore.model import Generation, SegmentId
from icecore_node.storage.engine import BatchMark, LogTail, SegmentIdentity

# --- keys of entries ------------------------------------------------------------------------------

# Keys of entries in the database: the family ``entry``.
#
# They begin like those of points, then come a kind and a number, big-endian:
#
#     0 recent  u64 first offset
#     1 run     u64 end offset
#     2 block   u64 number of the run, u32 which of its blocks
#
# All of a log is one range. Directories of runs lie under their ends, so that those that tell of
# what is behind the end of a log are one range, too.


FAMILY: Final = "entry"
RECENT, RUN, BLOCK = range(3)
"""Kinds."""
PREFIX: Final = struct.Struct(">Q")
KEY: Final = struct.Struct(">QBQ")
BLOCK_KEY: Final = struct.Struct(">QBQI")
_KIND = struct.Struct(">QB")


def all_of(prefix: int, kind: int) -> tuple[bytes, bytes]:
    """The range of all keys of this kind."""
    return _KIND.pack(prefix, kind), _KIND.pack(prefix, kind + 1)


def cut_ranges(prefix: int, end_offset: int) -> list[tuple[bytes, bytes]]:
    """Return the key ranges of entries that may lie behind the end of a log that is cut.

    They would be taken for entries of other records once the log has grown again. Recent entries
    all go, so that none can be overlooked. Blocks stay, because they are useless without a
    directory.
    """
    return [
        all_of(prefix, RECENT),
        (KEY.pack(prefix, RUN, end_offset + 1), all_of(prefix, RUN)[1]),
    ]


Put = tuple[str, bytes, bytes]

_PREFIX = struct.Struct(">Q")
_NUMBER = struct.Struct(">Q")
_KEY = struct.Struct(">QQ")
_DURABLE = struct.Struct("<QqI32sqq")
FAMILIES = ("offset", "time", "durable", FAMILY)
"""Column families of the index; the last one has the entries."""


class EntryStore(Protocol):
    """The part of ``icecore_node.ports.Index`` that is needed here."""

    def write(self, puts: Iterable[Put]) -> None:
        """One batch."""
        ...

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key."""
        ...

    def floor(self, family: str, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """The last pair with ``lower`` <= its key <= ``key``."""
        ...

    def delete_range(self, family: str, lower: bytes, upper: bytes) -> None:
        """Forget all keys in [lower, upper)."""
        ...

    def flush(self) -> None:
        """Make it durable."""
        ...


def key_prefix(identity: SegmentIdentity) -> int:
    """The number all keys of one replica start with."""
    return prefix_of(identity.segment_id, identity.generation)


def prefix_of(segment_id: SegmentId, generation: Generation) -> int:
    """The same for a replica of which only these two numbers are known."""
    return segment_id << 16 | generation


def pack_durable(prefix: int, position: int, tail: LogTail) -> Put:
    """The entry that says: everything before ``position`` was synced."""
    value = _DURABLE.pack(
        position,
        tail.end_offset,
        tail.last_header_crc32c,
        tail.digest,
        tail.max_append_timestamp_ms,
        tail.max_known_high_watermark,
    )
    return "durable", _PREFIX.pack(prefix), value


def read_durable(index: EntryStore, prefix: int, start_position: int) -> tuple[int, LogTail] | None:
    """(position, tail) of the last durable entry; None when there is none.

    Args:
        start_position: Where the first batch lies in the file.

    Raises:
        StorageError: The index is damaged.
    """
    value = index.get("durable", _PREFIX.pack(prefix))
    if value is None:
        return None
    if len(value) != _DURABLE.size:
        raise StorageError(f"durable entry of {len(value)} bytes")
    position, end_offset, crc, digest, max_append_ms, high_watermark = _DURABLE.unpack(value)
    tail = LogTail(
        end_offset=end_offset,
        last_header_crc32c=crc,
        digest=digest,
        max_append_timestamp_ms=max_append_ms,
        max_known_high_watermark=high_watermark,
        length_bytes=position - start_position,
    )
    return position, tail


def forget(index: EntryStore, *prefixes: int) -> None:
    """Drop everything about replicas, durably, with one sync for all of them: a later file of such
    a name must not inherit it."""
    for prefix in prefixes:
        for family in FAMILIES:
            index.delete_range(family, _PREFIX.pack(prefix), _PREFIX.pack(prefix + 1))
    index.flush()


def forget_from(index: EntryStore, prefix: int, position: int, tail: LogTail) -> None:
    """Lower the index to a new, shorter tail, durably, before the file is cut: never lead.

    Time points at the tail's own millisecond go too; points are sparse, so one less does no harm.
    """
    upper = _PREFIX.pack(prefix + 1)
    index.write([pack_durable(prefix, position, tail)])
    index.delete_range("offset", _KEY.pack(prefix, tail.end_offset), upper)
    index.delete_range("time", _KEY.pack(prefix, max(tail.max_append_timestamp_ms, 0)), upper)
    for low, high in cut_ranges(prefix, tail.end_offset):
        index.delete_range(FAMILY, low, high)
    index.flush()


def has_points(index: EntryStore, identity: SegmentIdentity) -> bool:
    """Return whether the first batch of a log has its point, and so all those after it have
    theirs."""
    key = _KEY.pack(key_prefix(identity), identity.base_offset)
    return index.get("offset", key) is not None


def floor_offset(index: EntryStore, prefix: int, offset: int) -> tuple[int, int] | None:
    """(base offset, position) of the last point at or before ``offset``."""
    found = index.floor("offset", _KEY.pack(prefix, offset), _KEY.pack(prefix, 0))
    if found is None:
        return None
    return _KEY.unpack(found[0])[1], _NUMBER.unpack(found[1])[0]


def offset_before_time(index: EntryStore, prefix: int, timestamp_ms: int) -> int | None:
    """Base offset of a batch appended before ``timestamp_ms``, near the first one that wasn't."""
    if timestamp_ms <= 0:
        return None
    found = index.floor("time", _KEY.pack(prefix, timestamp_ms - 1), _KEY.pack(prefix, 0))
    if found is None:
        return None
    offset: int = _NUMBER.unpack(found[1])[0]
    return offset


@dataclass(slots=True)
class PointMaker:
    """Decides which batches of one segment get a point."""

    prefix: int
    records_per_point: int
    bytes_per_point: int
    next_offset: int = -1
    next_position: int = -1
    last_time_ms: int = -1

    def points(self, marks: Iterable[BatchMark], position: int) -> list[Put]:
        """Points for batches that start at ``position``; usually none."""
        puts: list[Put] = []
        for mark in marks:
            if mark.base_offset >= self.next_offset or position >= self.next_position:
                puts += self._point(mark, position)
            position += mark.length_bytes
        return puts

    def _point(self, mark: BatchMark, position: int) -> list[Put]:
        self.next_offset = mark.base_offset + self.records_per_point
        self.next_position = position + self.bytes_per_point
        key = _KEY.pack(self.prefix, mark.base_offset)
        puts = [("offset", key, _NUMBER.pack(position))]
        time_ms = max(mark.append_timestamp_ms, 0)
        if time_ms > self.last_time_ms:  # of equal times the first batch answers
            self.last_time_ms = time_ms
            key = _KEY.pack(self.prefix, time_ms)
            puts.append(("time", key, _NUMBER.pack(mark.base_offset)))
        return puts
