"""Extracts the index entries of a batch: for each record its key, tags and indexed headers.

Read straight from the index section (its layout is in ``icecore/codec/decoding.py``), with no
column made: a node does this for each batch that it appends, and most batches are small. An entry
is a hash and an *ordinal*, an offset counted from the base of the segment. Entries come as bytes,
little-endian u64 and u32, because that is what becomes of them: bytes in memory and in a database.

Checked here is only what keeps the arithmetic inside of the section. What makes no sense gives no
entries at all, so that whoever asks reads the batch instead.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np

from icecore.codec.batch import Buffer, LeaderFlag, ProducerFlag, pad8
from icecore.codec.columns import FEW, all_valid
from icecore.codec.hashes import tag_hash


class BatchEntries(NamedTuple):
    """Hashes u64[n] and ordinals u32[n]: those of keys first, then of tags, then of headers."""

    hashes: bytes
    ordinals: bytes


NO_ENTRIES: Final = BatchEntries(b"", b"")

NOTHING_TO_FIND: Final = ProducerFlag.NO_KEYS | ProducerFlag.NO_TAGS | ProducerFlag.NO_HEADER_HASHES
_ONLY_KEYS = ProducerFlag.NO_TAGS | ProducerFlag.NO_HEADER_HASHES
_FIELDS = struct.Struct("<I4xI4xII")
"""Leader flags, producer flags, record count and index length of a header."""
_FIELDS_AT = 76
_U32 = struct.Struct("<I")
_TWO_U32 = struct.Struct("<II")
_ORDINALS_MAX = 1 << 32
_ONE_VALID = b"\1"


class _NonsenseError(ValueError):
    """The section contradicts itself."""


def has_nothing_to_find(header: Buffer) -> bool:
    """Return whether a batch with this header has no entries, as its flags say."""
    flags = int(_FIELDS.unpack_from(header, _FIELDS_AT)[1])
    return flags & NOTHING_TO_FIND == NOTHING_TO_FIND


def batch_entries(header: Buffer, body: Buffer, first_ordinal: int) -> BatchEntries | None:
    """All entries of one batch; None when its index section makes no sense.

    Args:
        header: 152 bytes, checked before.
        body: What follows it, at least the index section.
        first_ordinal: Of the batch's base offset.
    """
    leader_flags, flags, count, end = _FIELDS.unpack_from(header, _FIELDS_AT)
    if flags & NOTHING_TO_FIND == NOTHING_TO_FIND:
        return NO_ENTRIES
    try:
        if end > len(body) or first_ordinal + count > _ORDINALS_MAX:
            raise _NonsenseError
        if count == 1 and end == 24 and flags & NOTHING_TO_FIND == _ONLY_KEYS and not leader_flags:
            # Most of all batches may be such: a time, a validity bit and a hash.
            if bytes(body[8:9]) != _ONE_VALID:
                return NO_ENTRIES
            return BatchEntries(bytes(body[16:24]), _U32.pack(first_ordinal))
        return _Section(body, end, count, first_ordinal, leader_flags).entries(flags)
    except (ValueError, IndexError, struct.error):
        return None


class _Section:
    """A cursor over one index section. Its columns are tuples of few numbers, arrays of many."""

    __slots__ = ("at", "body", "count", "end", "ordinals")

    def __init__(
        self, body: Buffer, end: int, count: int, first_ordinal: int, leader_flags: int
    ) -> None:
        self.body, self.end, self.count = body, end, count
        self.at = 0
        if leader_flags & LeaderFlag.COMPACTED:
            deltas = np.frombuffer(body, "<i4", count, self.take(4 * count))
            if count and (deltas[0] < 0 or (deltas[1:] <= deltas[:-1]).any()):
                raise _NonsenseError
            self.ordinals: Any = deltas.astype(np.int64) + first_ordinal
            if count and self.ordinals[-1] >= _ORDINALS_MAX:
                raise _NonsenseError
        else:
            self.ordinals = range(first_ordinal, first_ordinal + count)
        self.take(8 * count)

    def take(self, length: int) -> int:
        """Return where the next ``length`` bytes begin, and move behind them."""
        start = self.at
        self.at += pad8(length)
        if self.at > self.end:
            raise _NonsenseError
        return start

    def entries(self, flags: int) -> BatchEntries:
        """Return the entries of all columns that the flags announce."""
        parts: list[BatchEntries] = []
        if not flags & ProducerFlag.NO_KEYS:
            parts.append(self._keys())
        if not flags & ProducerFlag.NO_TAGS:
            parts.append(self._tags())
        if not flags & ProducerFlag.NO_HEADER_HASHES:
            parts.append(self._headers())
        if self.at != self.end:
            raise _NonsenseError
        if len(parts) == 1:
            return parts[0]
        return BatchEntries(
            b"".join(part.hashes for part in parts), b"".join(part.ordinals for part in parts)
        )

    def _keys(self) -> BatchEntries:
        count, body = self.count, self.body
        bytes_of_bits = (count + 7) // 8
        bits_at, hashes_at = self.take(bytes_of_bits), self.take(8 * count)
        bits = bytes(body[bits_at : bits_at + bytes_of_bits])
        if bits == all_valid(count):
            return BatchEntries(bytes(body[hashes_at : hashes_at + 8 * count]), self._all())
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little")
        chosen = np.flatnonzero(mask)
        hashes = np.frombuffer(body, "<u8", count, hashes_at)[chosen]
        return BatchEntries(hashes.tobytes(), self._chosen(chosen))

    def _tags(self) -> BatchEntries:
        """Each tag of the dictionary is hashed once."""
        tag_count, text_bytes = _TWO_U32.unpack_from(self.body, self.take(8))
        ends = self._numbers("i", tag_count + 1)
        text = bytes(self.body[(start := self.take(text_bytes)) : start + text_bytes])
        _check_ends(ends, text_bytes)
        names = [int(end) for end in ends]
        hashes = [tag_hash(text[names[i] : names[i + 1]]) for i in range(tag_count)]
        lists = self._numbers("i", self.count + 1)
        ids = self._numbers("I", int(lists[-1]))
        _check_ends(lists, len(ids))
        if self.count < FEW and len(ids) < FEW:
            return BatchEntries(
                struct.pack(f"<{len(ids)}Q", *[hashes[one] for one in ids]), self._owners(lists)
            )
        flat = np.array(hashes, "<u8")[np.asarray(ids, np.int64)]
        return BatchEntries(flat.tobytes(), self._owners(lists))

    def _headers(self) -> BatchEntries:
        lists = self._numbers("i", self.count + 1)
        length = 8 * int(lists[-1])
        start = self.take(length)
        _check_ends(lists, length // 8)
        return BatchEntries(bytes(self.body[start : start + length]), self._owners(lists))

    def _numbers(self, kind: str, count: int) -> Any:
        """i32 or u32."""
        if count < 0:
            raise _NonsenseError
        start = self.take(4 * count)
        if count < FEW:
            return struct.unpack_from(f"<{count}{kind}", self.body, start)
        return np.frombuffer(self.body, "<i4" if kind == "i" else "<u4", count, start)

    def _all(self) -> bytes:
        ordinals = self.ordinals
        if not isinstance(ordinals, range):
            return bytes(ordinals.astype("<u4").tobytes())
        if self.count < FEW:
            return struct.pack(f"<{self.count}I", *ordinals)
        return np.arange(ordinals.start, ordinals.stop, dtype="<u4").tobytes()

    def _chosen(self, chosen: Any) -> bytes:
        ordinals = self.ordinals
        found = chosen + ordinals.start if isinstance(ordinals, range) else ordinals[chosen]
        return bytes(found.astype("<u4").tobytes())

    def _owners(self, lists: Any) -> bytes:
        """For each item of these lists the ordinal of its record."""
        if len(lists) <= FEW and lists[-1] < FEW:
            ordinals = self.ordinals
            owners = [
                int(ordinals[i])
                for i in range(self.count)
                for _ in range(int(lists[i]), int(lists[i + 1]))
            ]
            return struct.pack(f"<{len(owners)}I", *owners)
        return self._chosen(np.repeat(np.arange(self.count), np.diff(np.asarray(lists))))


def _check_ends(ends: Any, length: int) -> None:
    """Offsets begin at 0, never go back, and end at the length."""
    if isinstance(ends, tuple):
        in_order = all(ends[i] <= ends[i + 1] for i in range(len(ends) - 1))
    else:
        in_order = bool((ends[1:] >= ends[:-1]).all())
    if ends[0] != 0 or int(ends[-1]) != length or not in_order:
        raise _NonsenseError
