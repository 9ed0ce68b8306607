"""Records and the columns that hold them: what a decoded batch is. As Arrow: ``codec/arrow.py``.

Columns are views of a batch, whose layout is in ``icecore/codec/decoding.py``; that module checks
them before anyone sees them here. The hash of keys is here too, because a column carries it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import islice, pairwise, repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from icecore.shown import short_repr

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

KEY_HASH_SEED = 42
"""Spark's ``xxhash64`` has the same seed, so a join on the hash needs no conversion."""

FEW = 64  # below this count, plain Python beats the fixed cost of numpy and pyarrow calls
MAX_DATA_BYTES = (1 << 31) - 1
PADDING = [bytes(length) for length in range(8)]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@short_repr()
@dataclass(slots=True)
class Record:
    """One record. The last four fields are set on records that were read.

    ``timestamp_ms`` is event time (the clock at construction unless given); a ``value`` of None is
    a tombstone. ``offset`` and ``append_timestamp_ms`` come from the leader; -1 means not known.
    """

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = field(default_factory=now_ms)
    tags: tuple[str, ...] = ()
    headers: Headers = ()
    offset: int = -1
    append_timestamp_ms: int = -1
    partition: int = -1
    topic: str = ""


def key_hash(key: bytes) -> int:
    """XXH64 of a key with seed 42, unsigned."""
    return xxhash.xxh64_intdigest(key, KEY_HASH_SEED)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key; the high half of the hash, since hash tables use the low bits."""
    return (key_hash(key) >> 32) % partitions


def hash_keys(keys: Sequence[bytes | None]) -> UInt64s:
    digest: Callable[..., int] = xxhash.xxh64_intdigest
    try:
        return np.fromiter(map(digest, keys, repeat(KEY_HASH_SEED)), "<u8", len(keys))
    except TypeError:
        hashes = (0 if key is None else digest(key, KEY_HASH_SEED) for key in keys)
        return np.fromiter(hashes, "<u8", len(keys))


def all_valid(count: int) -> bytes:
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


@dataclass(slots=True)
class BinaryColumn:
    """Byte strings as views of the batch: validity bits, offsets (n + 1) and data."""

    bits: bytes
    offsets: Int32s
    data: memoryview

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def has_nulls(self) -> bool:
        return self.bits != all_valid(len(self))

    def mask(self) -> npt.NDArray[np.bool_]:
        """True where a record has a value."""
        bits = np.frombuffer(self.bits, np.uint8)
        return np.unpackbits(bits, count=len(self), bitorder="little").view(np.bool_)

    def part(self, start: int, end: int) -> "BinaryColumn":
        """Entries ``start`` to ``end``, exclusive."""
        ends = self.offsets[start : end + 1]
        bits = all_valid(len(ends) - 1)
        if self.has_nulls:
            bits = np.packbits(self.mask()[start:end], bitorder="little").tobytes()
        return BinaryColumn(bits, ends - ends[0], self.data[ends[0] : ends[-1]])

    def to_list(self) -> list[bytes | None]:
        """Python bytes; through Arrow if it is installed, which is five times as fast."""
        if len(self) >= FEW and has_pyarrow():
            listed: list[bytes | None] = self.to_arrow().to_pylist()
            return listed
        raw, ends = bytes(self.data), self.offsets.tolist()
        values: list[bytes | None] = [raw[i:j] for i, j in pairwise(ends)]
        if self.has_nulls:
            return [v if ok else None for v, ok in zip(values, self.mask(), strict=True)]
        return values

    def to_strings(self) -> list[str]:
        """The values of a text column."""
        return [str(value, "utf-8") for value in self.to_list() if value is not None]

    def to_arrow(self, type_: Any = None) -> Any:
        """An Arrow array over the same memory, ``binary`` unless ``string`` is asked for."""
        import pyarrow as pa

        validity = pa.py_buffer(self.bits) if self.has_nulls else None
        buffers = [validity, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(type_ or pa.binary(), len(self), buffers)


@cache
def has_pyarrow() -> bool:
    return find_spec("pyarrow") is not None


@dataclass(slots=True)
class ListColumn:
    """Lists per record: record i has items ``lists[i]:lists[i + 1]``."""

    lists: Int32s
    items: Any
    """u32 ids of tags, u64 header hashes, or the names of headers (a BinaryColumn)."""
    values: BinaryColumn | None = None
    """The tag dictionary, or the values of headers."""

    def part(self, start: int, end: int) -> "ListColumn":
        """Lists ``start`` to ``end``, exclusive; the tag dictionary stays whole."""
        ends = self.lists[start : end + 1]
        first, stop = int(ends[0]), int(ends[-1])
        if isinstance(self.items, BinaryColumn):
            assert self.values is not None
            names, values = self.items.part(first, stop), self.values.part(first, stop)
            return ListColumn(ends - ends[0], names, values)
        return ListColumn(ends - ends[0], self.items[first:stop], self.values)

    def split(self, flat: list[Any]) -> list[tuple[Any, ...]]:
        ends = self.lists.tolist()
        return [tuple(flat[i:j]) for i, j in pairwise(ends)]


@dataclass(slots=True)
class IndexColumns:
    """The index section: all that a follower and the indexes of a node look at."""

    timestamps: Int64s
    offset_deltas: Int32s | None = None
    key_bits: bytes | None = None
    key_hashes: UInt64s | None = None
    tags: ListColumn | None = None
    header_hashes: ListColumn | None = None


@dataclass(slots=True)
class BatchColumns:
    """A decoded batch; its columns are views of the batch or of its decompressed payload."""

    base_offset: int
    append_timestamp_ms: int
    index: IndexColumns
    keys: BinaryColumn | None
    values: BinaryColumn
    headers: ListColumn | None
    each_append_timestamp_ms: Int64s | None = None
    """Append time of each record, where several batches were joined (``codec/runs.py``)."""

    def __len__(self) -> int:
        return len(self.index.timestamps)

    @property
    def timestamps(self) -> Int64s:
        """Event times in ms."""
        return self.index.timestamps

    @property
    def append_timestamps(self) -> Int64s:
        """The leader's times in ms."""
        each = self.each_append_timestamp_ms
        return np.full(len(self), self.append_timestamp_ms, "<i8") if each is None else each

    @property
    def tags(self) -> ListColumn | None:
        return self.index.tags

    @property
    def offsets(self) -> Int64s:
        """Absolute offsets; they are dense except in compacted batches."""
        deltas = self.index.offset_deltas
        if deltas is None:
            return np.arange(self.base_offset, self.base_offset + len(self), dtype=np.int64)
        return self.base_offset + deltas.astype("<i8")

    def part(self, start: int, end: int) -> "BatchColumns":
        """Records ``start`` to ``end``, exclusive, as a batch of their own."""
        index, deltas = self.index, self.index.offset_deltas
        appended = self.each_append_timestamp_ms
        return BatchColumns(
            self.base_offset + (start if deltas is None else 0),
            self.append_timestamp_ms,
            IndexColumns(
                index.timestamps[start:end],
                None if deltas is None else deltas[start:end],
                tags=None if index.tags is None else index.tags.part(start, end),
            ),
            None if self.keys is None else self.keys.part(start, end),
            self.values.part(start, end),
            None if self.headers is None else self.headers.part(start, end),
            None if appended is None else appended[start:end],
        )

    def tag_tuples(self) -> list[tuple[str, ...]]:
        """The tags of each record."""
        if self.tags is None or self.tags.values is None:
            return [()] * len(self)
        names = self.tags.values.to_strings()
        return self.tags.split([names[tag] for tag in self.tags.items.tolist()])

    def header_tuples(self) -> list[Headers]:
        """The headers of each record."""
        if self.headers is None or self.headers.values is None:
            return [()] * len(self)
        names, values = self.headers.items.to_strings(), self.headers.values.to_list()
        return self.headers.split(list(zip(names, values, strict=True)))

    def to_records(
        self, first_offset: int | None = None, *, topic: str = "", partition: int = -1
    ) -> list[Record]:
        """Records with offsets from ``first_offset`` on, all if it is None."""
        offsets = self.offsets
        start = 0 if first_offset is None else int(np.searchsorted(offsets, first_offset))
        columns: tuple[Iterable[Any], ...] = (
            self.values.to_list(),
            [None] * len(self) if self.keys is None else self.keys.to_list(),
            self.timestamps.tolist(),
            self.tag_tuples(),
            self.header_tuples(),
            offsets.tolist(),
            self.append_timestamps.tolist(),
        )
        if start:
            columns = tuple(islice(column, start, None) for column in columns)
        return list(map(Record, *columns, repeat(partition), repeat(topic)))
