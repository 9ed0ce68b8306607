"""The hashes by which records are found: of keys, tags and header fields. All XXH64, unsigned.

Each kind has a seed of its own, so that a key never meets a tag but by chance. A hash only says
where to look: who looks compares the key, the tag or the header itself.

A column of keys is hashed at once where they have one length: they are a table of bytes, and each
step of the algorithm is one operation on a column of it. For eight bytes that takes a quarter of
the time of a call for each key. Keys of several lengths are hashed one by one, and those from 32
bytes on, which the algorithm reads in four lanes.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from icecore.codec.columns import (
    KEY_HASH_SEED,
    BinaryColumn,
    Headers,
    Int32s,
    UInt64s,
    hash_keys,
    key_hash,
)

__all__ = [
    "HEADER_HASH_SEED",
    "KEY_HASH_SEED",
    "TAG_HASH_SEED",
    "hash_alike",
    "hash_column",
    "header_hash",
    "header_hashes",
    "key_hash",
    "tag_hash",
]

TAG_HASH_SEED: Final = 43
HEADER_HASH_SEED: Final = 44

_Bytes = npt.NDArray[np.uint8]

_LONG_BYTES: Final = 32
_COUNT_MIN: Final = 512
_AT_ONCE: Final = 4096
"""Keys whose columns stay in the processor's cache."""
_WORD: Final = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def tag_hash(tag: bytes) -> int:
    """Hash a tag in UTF-8."""
    return xxhash.xxh64_intdigest(tag, TAG_HASH_SEED)


def header_hash(name: str, value: bytes) -> int:
    """Hash a header's name and value: u32 length of the name in UTF-8, the name, the value."""
    encoded = name.encode()
    data = len(encoded).to_bytes(4, "little") + encoded + value
    return xxhash.xxh64_intdigest(data, HEADER_HASH_SEED)


def header_hashes(rows: Iterable[Headers], names: Collection[str]) -> list[list[int]]:
    """Per record, of the headers with these names, in their order; those without a value have none.

    Args:
        rows: The headers of each record.
        names: Those that a topic indexes.
    """
    return [
        [header_hash(name, value) for name, value in row if name in names and value is not None]
        for row in rows
    ]


# --- keys of a column -----------------------------------------------------------------------------


def hash_column(keys: BinaryColumn) -> UInt64s:
    """Hash each key; 0 for a null key."""
    found = None if keys.has_nulls else hash_alike(keys.data, keys.offsets)
    return hash_keys(keys.to_list()) if found is None else found


def hash_alike(data: Any, offsets: Int32s) -> UInt64s | None:
    """Hash byte strings of equal length together. Return None when lengths differ, or when hashing
    one after the other is as fast.

    Args:
        data: A buffer that holds all of them.
        offsets: Where they begin in it, and the end of the last; ascending.
    """
    count = len(offsets) - 1
    if count < _COUNT_MIN:
        return None
    first, end = int(offsets[0]), int(offsets[-1])
    length = (end - first) // count
    if not 0 < length < _LONG_BYTES or (offsets[1:] - offsets[:-1] != length).any():
        return None
    rows = np.frombuffer(data, np.uint8, end - first, first).reshape(count, length)
    return np.concatenate(
        [_hash_rows(rows[at : at + _AT_ONCE]) for at in range(0, count, _AT_ONCE)]
    )


def _hash_rows(rows: _Bytes) -> UInt64s:
    """Hash the rows of a table, each shorter than 32 bytes."""
    count, length = rows.shape
    found = np.full(count, (KEY_HASH_SEED + int(_P5) + length) & _WORD, np.uint64)
    at = 0
    while at + 8 <= length:
        found ^= _rotated(_numbers(rows, at, 8) * _P2, 31) * _P1
        found = _rotated(found, 27) * _P1 + _P4
        at += 8
    if at + 4 <= length:
        found ^= _numbers(rows, at, 4) * _P1
        found = _rotated(found, 23) * _P2 + _P3
        at += 4
    while at < length:
        found ^= rows[:, at].astype(np.uint64) * _P5
        found = _rotated(found, 11) * _P1
        at += 1
    found = (found ^ found >> np.uint64(33)) * _P2
    found = (found ^ found >> np.uint64(29)) * _P3
    return found ^ found >> np.uint64(32)


def _numbers(rows: _Bytes, at: int, width: int) -> UInt64s:
    """Little-endian numbers of so many bytes, out of each row."""
    columns = np.ascontiguousarray(rows[:, at : at + width])
    return columns.view(f"<u{width}")[:, 0].astype(np.uint64, copy=False)


def _rotated(numbers: UInt64s, bits: int) -> UInt64s:
    return numbers << np.uint64(bits) | numbers >> np.uint64(64 - bits)
