"""A run: sorted entries of a range of offsets as blocks, with a directory that says which has what.

Where the blocks are (in the database, in a file, in memory) is the business of its *source*. A run
is complete: every entry of its range is in it. Runs of neighbouring ranges are merged block by
block, without ever holding a whole one in memory.

The directory, little-endian: u32 crc32c of all that follows, u32 blocks n, u32 level, u32 zero, u64
entries, i64 first offset, i64 end offset; then u64 first hash of each block, u32 length of each.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from icecore.codec.checksum import crc32c
from icecore.codec.columns import UInt64s
from icecore_node.storage.index.entries import (
    NO_ENTRIES,
    Entries,
    UInt32s,
    joined,
    sorted_entries,
)
from icecore_node.storage.index.posting_blocks import (
    DamagedIndexError,
    blocks_with,
    blocks_with_one,
    decode_block,
)

ENTRIES_PER_BLOCK: Final = 1024
"""Entries in a block of a run in the database; a look-up in a run reads one or two blocks."""
BLOCKS_AT_ONCE: Final = 16
"""Number of blocks that a merge or a look-up reads of a run at once."""

_HEAD: Final = struct.Struct("<IIIIQqq")
_CRC_BYTES: Final = 4

BlockSource: TypeAlias = Callable[[int, int], Sequence[bytes]]
"""Blocks from the first number to the exclusive end. Raises DamagedIndexError when one is gone."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory of a run: its range and its blocks."""

    from_offset: int
    end_offset: int
    """Exclusive."""
    entries: int
    first_hashes: UInt64s
    lengths: UInt32s
    """Length of each block in bytes."""
    level: int = 0
    """See ``index_runs.py``."""

    @property
    def length_bytes(self) -> int:
        """Length of all blocks in bytes."""
        return int(self.lengths.sum(dtype=np.int64))

    def encode(self) -> bytes:
        """As it is stored."""
        count = len(self.first_hashes)
        offsets = (self.from_offset, self.end_offset)
        head = _HEAD.pack(0, count, self.level, 0, self.entries, *offsets)
        columns = self.first_hashes.astype("<u8").tobytes() + self.lengths.astype("<u4").tobytes()
        body = head[_CRC_BYTES:] + columns
        crc = crc32c(body)
        return crc.to_bytes(_CRC_BYTES, "little") + body


def decode_directory(data: bytes) -> Directory:
    """Raises DamagedIndexError: It is none."""
    if len(data) < _HEAD.size:
        raise DamagedIndexError(f"a directory of {len(data)} bytes")
    crc, count, level, zero, entries, from_offset, end_offset = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + 12 * count or crc32c(data[_CRC_BYTES:]) != crc:
        raise DamagedIndexError("the checksum of a directory is wrong")
    first_hashes = np.frombuffer(data, "<u8", count, _HEAD.size)
    lengths = np.frombuffer(data, "<u4", count, _HEAD.size + 8 * count)
    if zero or from_offset > end_offset or (first_hashes[1:] < first_hashes[:-1]).any():
        raise DamagedIndexError("a directory makes no sense")
    return Directory(from_offset, end_offset, entries, first_hashes, lengths, level)


@dataclass(frozen=True, slots=True)
class Run:
    """Look-ups and walks raise DamagedIndexError when a block is gone or wrong."""

    directory: Directory
    source: BlockSource

    def find(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        """For each wanted hash (ascending) its ordinals, ascending; and how many bytes were read.

        Neighbouring blocks are read together, and each once.
        """
        if len(wanted) == 1:
            return self._find_one(wanted)
        spans = blocks_with(self.directory.first_hashes, wanted)
        found: list[list[UInt32s]] = [[] for _ in wanted]
        read = 0
        for at, stop in _stretches([number for number, _, _ in spans]):
            blocks = self.source(spans[at][0], spans[stop - 1][0] + 1)
            for (_, low, high), data in zip(spans[at:stop], blocks, strict=True):
                read += len(data)
                for place, ordinals in decode_block(data).find(wanted[low:high]):
                    found[low + place].append(ordinals)
        return [_joined(parts) for parts in found], read

    def reads(self, wanted: UInt64s) -> Iterator[tuple[int, int]]:
        """The blocks that ``find`` asks its source for, as it asks for them."""
        if len(wanted) == 1:
            yield from _by_blocks(*blocks_with_one(self.directory.first_hashes, wanted))
            return
        numbers = [number for number, _, _ in blocks_with(self.directory.first_hashes, wanted)]
        for at, stop in _stretches(numbers):
            yield numbers[at], numbers[stop - 1] + 1

    def _find_one(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        """The same for one hash, which most look-ups are about."""
        found: list[UInt32s] = []
        read = 0
        for start, end in _by_blocks(*blocks_with_one(self.directory.first_hashes, wanted)):
            for data in self.source(start, end):
                read += len(data)
                ordinals = decode_block(data).find_one(wanted)
                if ordinals is not None:
                    found.append(ordinals)
        return [_joined(found)], read

    def walk(self) -> Iterator[Entries]:
        """All entries in order, in parts."""
        for start, end in _by_blocks(0, len(self.directory.first_hashes)):
            yield joined([decode_block(data).entries() for data in self.source(start, end)])


_NOTHING: Final = NO_ENTRIES.ordinals


def _joined(parts: Sequence[UInt32s]) -> UInt32s:
    if not parts:
        return _NOTHING
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _by_blocks(first: int, end: int) -> Iterator[tuple[int, int]]:
    """A range of blocks in parts that are read at once."""
    for start in range(first, end, BLOCKS_AT_ONCE):
        yield start, min(start + BLOCKS_AT_ONCE, end)


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return where ascending numbers follow each other without a hole: places, ends exclusive."""
    start = 0
    for at in range(1, len(numbers) + 1):
        is_next = at < len(numbers) and numbers[at] == numbers[at - 1] + 1
        if not is_next or at - start == BLOCKS_AT_ONCE:
            yield start, at
            start = at


def merge(walks: Sequence[Iterable[Entries]]) -> Iterator[Entries]:
    """The entries of all, in order and each once, in parts.

    Args:
        walks: Sorted each. Of a hash with very many ordinals all are in memory at once, otherwise
            a few blocks of each.
    """
    sources = [iter(walk) for walk in walks]
    waiting = [next(source, NO_ENTRIES) for source in sources]
    is_open = [len(part.hashes) > 0 for part in waiting]
    while any(is_open):
        # What is below the smallest of the last hashes seen can't be joined by what is yet to come.
        bound = min(
            int(part.hashes[-1]) for part, more in zip(waiting, is_open, strict=True) if more
        )
        ready: list[Entries] = []
        for at, part in enumerate(waiting):
            cut = int(part.hashes.searchsorted(np.uint64(bound), "left"))
            if cut:
                ready.append(Entries(part.hashes[:cut], part.ordinals[:cut]))
                waiting[at] = part = Entries(part.hashes[cut:], part.ordinals[cut:])
            if is_open[at] and int(part.hashes[-1]) == bound:
                more = next(sources[at], NO_ENTRIES)
                is_open[at] = len(more.hashes) > 0
                waiting[at] = joined([part, more])
        if ready:
            yield sorted_entries(joined(ready))
    rest = joined(waiting)
    if len(rest.hashes):
        yield sorted_entries(rest)
