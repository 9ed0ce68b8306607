"""Sorted entries as blocks of bytes, each with a checksum: what runs and sealed index files are of.

A block, little-endian, holds entries of neighbouring hashes::

    u32 crc32c of all that follows, u32 distinct hashes d, u32 entries m, u32 zero
    u64 hashes[d]
    u32 starts[d + 1]     where the ordinals of each hash begin; absent when d = m
    u32 ordinals[m]       ascending within each hash

A hash with many ordinals goes on in the next block, so one may begin with the hash that the block
before it ends with. Twelve bytes are an entry whose hash is unique, four one of many.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from icecore.codec.checksum import crc32c
from icecore.codec.columns import UInt64s
from icecore_node.storage.index.entries import Entries, UInt32s, joined

_HEAD: Final = struct.Struct("<IIII")
_CRC_BYTES: Final = 4
_U32_MAX: Final = (1 << 32) - 1


class DamagedIndexError(Exception):
    """Bytes of an index are missing or wrong: an outcome on this node, never an answer. What they
    covered is a gap until it is built again."""


class PostingBlock(NamedTuple):
    """A checked block."""

    hashes: UInt64s
    starts: UInt32s | None
    """None when each hash has one ordinal."""
    ordinals: UInt32s

    def find(self, wanted: UInt64s) -> list[tuple[int, UInt32s]]:
        """Return place in ``wanted`` and ordinals for each wanted hash that is in this block."""
        at = self.hashes.searchsorted(wanted)
        is_here = at < len(self.hashes)
        is_here[is_here] = self.hashes[at[is_here]] == wanted[is_here]
        places, ordinals = np.flatnonzero(is_here), self.ordinals
        found = at[places]
        if self.starts is None:
            pairs = zip(places.tolist(), found.tolist(), strict=True)
            return [(place, ordinals[start : start + 1]) for place, start in pairs]
        bounds = self.starts[found].tolist(), self.starts[found + 1].tolist()
        spans = zip(places.tolist(), *bounds, strict=True)
        return [(place, ordinals[start:end]) for place, start, end in spans]

    def find_one(self, wanted: UInt64s) -> UInt32s | None:
        """The ordinals of the only wanted hash, None when it is not in this block."""
        at = int(self.hashes.searchsorted(wanted)[0])
        if at == len(self.hashes) or self.hashes[at] != wanted[0]:
            return None
        if self.starts is None:
            return self.ordinals[at : at + 1]
        start, end = self.starts[at : at + 2].tolist()
        return self.ordinals[start:end]

    def entries(self) -> Entries:
        """All of it."""
        if self.starts is None:
            return Entries(self.hashes, self.ordinals)
        return Entries(np.repeat(self.hashes, np.diff(self.starts)), self.ordinals)


def encode_block(entries: Entries) -> bytes:
    """Encode sorted entries, at least one, as a block."""
    hashes, ordinals = entries
    is_first = np.ones(len(hashes), np.bool_)
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    columns = [hashes[firsts].astype("<u8").tobytes()]
    if len(firsts) < len(hashes):
        columns.append(np.append(firsts, len(hashes)).astype("<u4").tobytes())
    columns.append(ordinals.astype("<u4").tobytes())
    body = _HEAD.pack(0, len(firsts), len(hashes), 0)[_CRC_BYTES:] + b"".join(columns)
    crc = crc32c(body)
    return crc.to_bytes(_CRC_BYTES, "little") + body


def decode_block(data: bytes) -> PostingBlock:
    """Views of ``data``, checked so that looking anything up is safe.

    Raises:
        DamagedIndexError: It is no such block.
    """
    if len(data) < _HEAD.size:
        raise DamagedIndexError(f"a block of {len(data)} bytes")
    crc, distinct, count, zero = _HEAD.unpack_from(data)
    starts_bytes = 0 if distinct == count else 4 * (distinct + 1)
    length = _HEAD.size + 8 * distinct + starts_bytes + 4 * count
    if length != len(data) or zero or not 0 < distinct <= count:
        raise DamagedIndexError(f"a block of {len(data)} bytes says {distinct} of {count}")
    if crc32c(data[_CRC_BYTES:]) != crc:
        raise DamagedIndexError("the checksum of a block is wrong")
    at = _HEAD.size + 8 * distinct
    hashes = np.frombuffer(data, "<u8", distinct, _HEAD.size)
    starts = None
    if starts_bytes:
        starts = np.frombuffer(data, "<u4", distinct + 1, at)
        if starts[0] or starts[-1] != count or (starts[1:] <= starts[:-1]).any():
            raise DamagedIndexError("the starts of a block do not ascend")
    return PostingBlock(hashes, starts, np.frombuffer(data, "<u4", count, at + starts_bytes))


def encode_blocks(parts: Iterable[Entries], entries_per_block: int) -> Iterator[tuple[int, bytes]]:
    """(first hash, block) of entries that come sorted, in parts of any length."""
    waiting: list[Entries] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += len(part.hashes)
        if count < entries_per_block:
            continue
        whole = joined(waiting)
        stop = count - count % entries_per_block
        for start in range(0, stop, entries_per_block):
            end = start + entries_per_block
            cut = Entries(whole.hashes[start:end], whole.ordinals[start:end])
            yield int(cut.hashes[0]), encode_block(cut)
        waiting = [Entries(whole.hashes[stop:], whole.ordinals[stop:])]
        count -= stop
    if count:
        rest = joined(waiting)
        yield int(rest.hashes[0]), encode_block(rest)


def blocks_with(first_hashes: UInt64s, wanted: UInt64s) -> list[tuple[int, int, int]]:
    """Each block that may hold wanted hashes, and which: its number, and from the first of them to
    the exclusive end.

    Args:
        first_hashes: Of all blocks, ascending.
        wanted: Ascending.
    """
    lefts = first_hashes.searchsorted(wanted, "left")
    rights = first_hashes.searchsorted(wanted, "right")
    # The block before the first that begins with it may end with it.
    lefts = np.maximum(lefts, 1) - 1
    # Both ascend: the hashes of a block follow each other.
    numbers = np.arange(len(first_hashes))
    starts = rights.searchsorted(numbers, "right")
    ends = lefts.searchsorted(numbers, "right")
    needed = np.flatnonzero(starts < ends)
    columns = (needed.tolist(), starts[needed].tolist(), ends[needed].tolist())
    return list(zip(*columns, strict=True))


def blocks_with_one(first_hashes: UInt64s, wanted: UInt64s) -> tuple[int, int]:
    """The same for one hash: from the first block to the exclusive end; all of them are asked."""
    left, right = (
        first_hashes.searchsorted(wanted, "left"),
        first_hashes.searchsorted(wanted, "right"),
    )
    return max(int(left[0]), 1) - 1, int(right[0])
