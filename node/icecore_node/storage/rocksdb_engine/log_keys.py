"""Keys and values of the database of active logs.

The bytes of a log lie under its *slot*, a number that no two logs ever share, so that a log is set
aside by changing one record, and made anew without meeting what was there before:

    L segment            → slot, base offset      the log in its place
    A segment slot       → slot, base offset      one that was set aside
    T slot               → the tail               written with each append, in one change
    B slot position      → whole batches          contiguous, some batches to a value
    N                    → the last slot

All numbers are big endian, so that keys sort as they do.
"""

import struct
from typing import Final, NamedTuple

from icecore.errors import StorageError
from icecore.model import SegmentId
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.engine import LogTail

LAST_SLOT: Final = b"N"
_LOG, _ASIDE, _TAIL, _BATCHES = b"L", b"A", b"T", b"B"
_NUMBER = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_SLOT = struct.Struct(">Qq")
_TAIL_VALUE = struct.Struct(">QqI32sqq")
LOGS: Final = (_LOG, bytes([_LOG[0] + 1]))
"""The range of all logs in their place."""
NUMBER_MAX: Final = (1 << 64) - 1


class KeySlot(NamedTuple):
    """The keys of the bytes of one log."""

    number: int
    base_offset: int
    """When it was made; -1 = it was only prepared then."""


def log_key(segment_id: SegmentId) -> bytes:
    """Return the key of the log in its place."""
    return _LOG + _NUMBER.pack(segment_id)


def segment_of(key: bytes) -> SegmentId:
    """Return the segment of a key that ``log_key`` made."""
    return SegmentId(_NUMBER.unpack_from(key, 1)[0])


def aside_key(segment_id: SegmentId, slot: int) -> bytes:
    """Return the key of a log that was set aside."""
    return _ASIDE + _PAIR.pack(segment_id, slot)


def aside_range(segment_id: SegmentId) -> tuple[bytes, bytes]:
    """Return the key range of all set-aside logs of a segment."""
    return aside_key(segment_id, 0), _ASIDE + _PAIR.pack(segment_id + 1, 0)


def tail_key(slot: int) -> bytes:
    """Return the key of the durable tail."""
    return _TAIL + _NUMBER.pack(slot)


def batches_key(slot: int, position: int) -> bytes:
    """Return the key of the batches that begin there."""
    return _BATCHES + _PAIR.pack(slot, position)


def position_of(key: bytes) -> int:
    """Return where the batches of this key begin."""
    _, position = _PAIR.unpack_from(key, 1)
    return int(position)


def batches_range(slot: int, position: int = 0) -> tuple[bytes, bytes]:
    """Return the key range of all batches from a position on."""
    return batches_key(slot, position), batches_key(slot + 1, 0)


def pack_slot(slot: KeySlot) -> bytes:
    """The value of a log."""
    return _SLOT.pack(*slot)


def read_slot(value: bytes) -> KeySlot:
    """Raises StorageError when it is none."""
    if len(value) != _SLOT.size:
        raise StorageError(f"the record of a log has {len(value)} bytes")
    return KeySlot(*_SLOT.unpack(value))


def pack_number(number: int) -> bytes:
    """A number as a value."""
    return _NUMBER.pack(number)


def read_number(value: bytes | None) -> int:
    """0 when there is none."""
    return 0 if value is None else int(_NUMBER.unpack(value)[0])


def pack_tail(place: Place) -> bytes:
    """The value that says where a log ends."""
    tail, position = place
    return _TAIL_VALUE.pack(
        position,
        tail.end_offset,
        tail.last_header_crc32c,
        tail.digest,
        tail.max_append_timestamp_ms,
        tail.max_known_high_watermark,
    )


def read_tail(value: bytes) -> Place:
    """Return where a log ends. Raises StorageError when this can't say it."""
    if len(value) != _TAIL_VALUE.size:
        raise StorageError(f"the tail of a log has {len(value)} bytes")
    position, end_offset, crc, digest, time_ms, high_watermark = _TAIL_VALUE.unpack(value)
    tail = LogTail(
        end_offset=end_offset,
        last_header_crc32c=crc,
        digest=digest,
        max_append_timestamp_ms=time_ms,
        max_known_high_watermark=high_watermark,
        length_bytes=position,
    )
    return tail, position
