"""XXH64 of many short keys at once: a column of bytes in, a column of hashes out.

The same numbers as ``columns.key_hash`` gives, key by key. Keys of one length are a table of bytes,
and each step of the algorithm is one operation on a column of it: for eight bytes that takes a
quarter of the time of a call for each key. Keys of several lengths are hashed one by one, and those
from 32 bytes on, which the algorithm reads in four lanes.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from icecore.codec.columns import (
    KEY_HASH_SEED,
    BinaryColumn,
    Int32s,
    UInt64s,
    hash_keys,
)

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
