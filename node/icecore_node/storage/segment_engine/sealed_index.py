"""The index file of a sealed segment: its format, how it is written, how it is read.

``<segment>.<generation>.idx`` lies beside the data file and is one run over all of it, with offset
points and the producer state. It is derived: without it, or with one that is damaged, records are
found by reading the segment. Its header has its own parameters, so that a reader needs no setting
of ours. Little-endian::

    header    256 bytes, see _HEADER: magic "icei", version, length, crc32c over the header with
              zero in its place, hash name and seeds, whose segment it is and its seal digest,
              offsets, event times, and (position, length) of the sections that follow
    directory as in ``index/runs.py``, right behind the header
    blocks    as in ``index/posting_blocks.py``, in the directory's order
    points    u32 crc32c of the rest, u32 zero; then i64 offset, i64 position in the data file, i64
              append time of the first batch at or after each 1,000 records or 1 MiB
    producers u32 crc32c of the rest, u32 zero; then the producer state at the end of the segment

A block has so many entries that there are at most 4,096: header and directory are within the first
64 KiB. So one read of those and one of the blocks with a hash find a key, also in a remote copy.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from icecore.codec.batch import Buffer
from icecore.codec.checksum import crc32c
from icecore.codec.columns import KEY_HASH_SEED, Int64s, UInt64s
from icecore.codec.hashes import HEADER_HASH_SEED, TAG_HASH_SEED
from icecore.model import Epoch, Generation, SegmentId
from icecore_node.storage.index.entries import Entries
from icecore_node.storage.index.posting_blocks import DamagedIndexError, encode_blocks
from icecore_node.storage.index.runs import Directory, Run, decode_directory

MAGIC: Final = int.from_bytes(b"icei", "little")
VERSION: Final = 1
HEADER_LENGTH: Final = 256
FIRST_READ_BYTES: Final = 64 << 10
"""Header and directory are within these."""
BLOCKS_MAX: Final = 4096
ENTRIES_PER_BLOCK_MIN: Final = 1024
_HASH_NAME: Final = b"xxh64"
_SEEDS: Final = (KEY_HASH_SEED, TAG_HASH_SEED, HEADER_HASH_SEED)

_HEADER: Final = struct.Struct("<IHHI 8sIIII 16s16sIIQQ qqqq 32s QQQQQQ")
_CRC_AT: Final = 8
_SECTION: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")
_GATHER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFacts:
    """Identity of the indexed segment, and facts about all its records."""

    cluster_id: bytes
    topic_id: bytes
    partition: int
    segment_id: SegmentId
    generation: Generation
    epoch: Epoch
    base_offset: int
    end_offset: int
    seal_digest: bytes
    min_timestamp_ms: int
    """Smallest event time; larger than the maximum when there is no record."""
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Points:
    """The beginnings of batches: three columns of equal length, ascending."""

    offsets: Int64s
    positions: Int64s
    append_timestamps_ms: Int64s

    def encode(self) -> bytes:
        """One point after the other."""
        columns = (self.offsets, self.positions, self.append_timestamps_ms)
        return np.stack(columns, axis=1).astype("<i8").tobytes()


class Writes(Protocol):
    """The target to which an index is written: a ``File``, or memory."""

    def pwritev(self, buffers: Sequence[Buffer], position: int, /) -> None:
        """Write all of them, one behind the other."""
        ...


def entries_per_block(entries: int) -> int:
    """So many that the directory stays small."""
    return max(ENTRIES_PER_BLOCK_MIN, -(-entries // BLOCKS_MAX))


def write_sealed_index(
    file: Writes,
    facts: SealedFacts,
    parts: Iterable[Entries],
    entries_max: int,
    points: Points,
    producers: bytes,
) -> int:
    """Write a whole index file; syncing and naming it is the caller's.

    Args:
        file: Empty.
        facts: For the header.
        parts: All entries of the segment, sorted.
        entries_max: No more than these come.
        points: For look-ups by offset and time.
        producers: The producer state at the end.

    Returns:
        Its length in bytes.
    """
    per_block = entries_per_block(entries_max)
    blocks_max = -(-entries_max // per_block)
    directory_bytes = len(_directory(facts, 0, [0] * blocks_max, [0] * blocks_max))
    out = _Out(file, HEADER_LENGTH + directory_bytes)
    first_hashes: list[int] = []
    lengths: list[int] = []
    count = 0
    for first_hash, block in encode_blocks(_counted(parts, counts := [0]), per_block):
        first_hashes.append(first_hash)
        lengths.append(len(block))
        out.add(block)
    count = counts[0]
    assert len(lengths) <= blocks_max, "more entries than were announced"
    sections = []
    for content in (points.encode(), producers):
        sections.append((out.position, _SECTION.size + len(content)))
        out.add(_SECTION.pack(crc32c(content), 0) + content)
    out.flush()
    directory = _directory(facts, count, first_hashes, lengths)
    blocks_at = HEADER_LENGTH + directory_bytes
    spans = [(blocks_at, len(directory)), *sections]
    file.pwritev([_header(facts, per_block, spans), directory], 0)
    return out.position


def _counted(parts: Iterable[Entries], counts: list[int]) -> Iterable[Entries]:
    for part in parts:
        counts[0] += len(part.hashes)
        yield part


class _Out:
    """Gathers what is written one behind the other."""

    def __init__(self, file: Writes, position: int) -> None:
        self._file = file
        self._waiting: list[bytes] = []
        self._start = self.position = position

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        self.position += len(data)
        if self.position - self._start >= _GATHER_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._file.pwritev([b"".join(self._waiting)], self._start)
        self._waiting, self._start = [], self.position


def _directory(
    facts: SealedFacts, count: int, first_hashes: Sequence[int], lengths: Sequence[int]
) -> bytes:
    return Directory(
        facts.base_offset,
        facts.end_offset,
        count,
        np.array(first_hashes, "<u8"),
        np.array(lengths, "<u4"),
    ).encode()


def _header(facts: SealedFacts, per_block: int, spans: Sequence[tuple[int, int]]) -> bytes:
    """``spans``: where the blocks begin and how long the directory is, then the sections."""
    kind = (MAGIC, VERSION, HEADER_LENGTH, 0, _HASH_NAME, *_SEEDS, per_block)
    whose = (facts.cluster_id, facts.topic_id, facts.partition, facts.generation)
    segment = (facts.segment_id, facts.epoch, facts.base_offset, facts.end_offset)
    records = (facts.min_timestamp_ms, facts.max_timestamp_ms, facts.seal_digest)
    numbers = [number for span in spans for number in span]
    head = _HEADER.pack(*kind, *whose, *segment, *records, *numbers)
    head = head.ljust(HEADER_LENGTH, b"\0")
    crc = crc32c(head)
    return head[:_CRC_AT] + _U32.pack(crc) + head[_CRC_AT + _U32.size :]


class _Blocks:
    """The blocks of an index file. It does not know the index, or neither would go by itself."""

    def __init__(
        self, read: Callable[[int, int], bytes], blocks_at: int, directory: Directory
    ) -> None:
        self._read = read
        self._blocks_at = blocks_at
        self._ends = np.append(0, np.cumsum(directory.lengths, dtype=np.int64))

    def span(self, first: int, end: int) -> tuple[int, int]:
        """Return length and position of neighbours."""
        start, stop = self._ends[[first, end]].tolist()
        return stop - start, self._blocks_at + start

    def read(self, first: int, end: int) -> list[bytes]:
        """A ``BlockSource``: one read for neighbours."""
        ends = self._ends[first : end + 1].tolist()
        start = ends[0]
        data = self._read(ends[-1] - start, self._blocks_at + start)
        return [data[ends[i] - start : ends[i + 1] - start] for i in range(end - first)]


class SealedIndex:
    """An index file, opened. Everything that reads raises DamagedIndexError when bytes are wrong.

    Attributes:
        facts: Whose it is, as the file says.
        run: For look-ups.
        length_bytes: Of the file, as it should be.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        """
        Args:
            read: Up to so many bytes from a position; fewer only at the end of the file.
        """
        self._read = read
        first = read(FIRST_READ_BYTES, 0)
        if len(first) < HEADER_LENGTH:
            raise DamagedIndexError(f"an index file of {len(first)} bytes")
        head = first[:HEADER_LENGTH]
        (crc,) = _U32.unpack_from(head, _CRC_AT)
        zeroed = head[:_CRC_AT] + bytes(_U32.size) + head[_CRC_AT + _U32.size :]
        if crc32c(zeroed) != crc:
            raise DamagedIndexError("the checksum of the header is wrong")
        self.facts, numbers = _parse(head)
        blocks_at, directory_bytes = numbers[0]
        self._points, self._producers = numbers[1], numbers[2]
        directory = decode_directory(first[HEADER_LENGTH : HEADER_LENGTH + directory_bytes])
        self._blocks = _Blocks(read, blocks_at, directory)
        self.run = Run(directory, self._blocks.read)
        self.length_bytes = sum(self._producers)

    def reads(self, wanted: UInt64s) -> Iterator[tuple[int, int]]:
        """Length and position of each read that a look-up of these hashes makes."""
        for first, end in self.run.reads(wanted):
            yield self._blocks.span(first, end)

    def points(self) -> Points:
        """Return where batches begin."""
        numbers = np.frombuffer(self._section(self._points), "<i8")
        if len(numbers) % 3:
            raise DamagedIndexError("points are cut short")
        return Points(*np.ascontiguousarray(numbers.reshape(-1, 3).T))

    def producers(self) -> bytes:
        """The producer state at the end of the segment."""
        return self._section(self._producers)

    def verify(self) -> int:
        """Read everything back; the number of entries."""
        count = sum(len(part.hashes) for part in self.run.walk())
        if count != self.run.directory.entries:
            raise DamagedIndexError(f"{count} entries of {self.run.directory.entries}")
        self.points()
        self.producers()
        return count

    def _section(self, span: tuple[int, int]) -> bytes:
        position, length = span
        data = self._read(length, position)
        if len(data) != length or length < _SECTION.size:
            raise DamagedIndexError(f"a section of {length} bytes is cut short")
        crc, zero = _SECTION.unpack_from(data)
        content = data[_SECTION.size :]
        if zero or crc32c(content) != crc:
            raise DamagedIndexError("the checksum of a section is wrong")
        return content


def _parse(head: bytes) -> tuple[SealedFacts, list[tuple[int, int]]]:
    fields = _HEADER.unpack_from(head)
    if fields[:3] != (MAGIC, VERSION, HEADER_LENGTH):
        raise DamagedIndexError(f"an index file of version {fields[1]}, or none")
    name, *seeds = fields[4:8]
    if name.rstrip(b"\0") != _HASH_NAME or tuple(seeds) != _SEEDS:
        raise DamagedIndexError(f"hashes of another kind: {name!r} {seeds}")
    cluster_id, topic_id, partition, generation, segment_id, epoch = fields[9:15]
    base_offset, end_offset, min_timestamp_ms, max_timestamp_ms, seal_digest = fields[15:20]
    facts = SealedFacts(
        cluster_id=cluster_id,
        topic_id=topic_id,
        partition=partition,
        segment_id=SegmentId(segment_id),
        generation=Generation(generation),
        epoch=Epoch(epoch),
        base_offset=base_offset,
        end_offset=end_offset,
        seal_digest=seal_digest,
        min_timestamp_ms=min_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )
    numbers = fields[20:]
    return facts, list(zip(numbers[::2], numbers[1::2], strict=True))
