"""Columns of a record batch: records to bytes and back, and the one place that checks the bounds.

Plain little-endian arrays with Arrow's memory layout, without flatbuffers; every column is padded
with zeros to 8 bytes. ``n`` is the record count, *bits* are Arrow's LSB-first validity bitmaps::

    index section, never compressed
      offset deltas i32[n]                                       only in compacted batches
      timestamps i64[n], milliseconds
      key bits, key_hash u64[n] (0 for a null key)               unless NO_KEYS
      tags: u32 count, u32 length, i32 offsets[count+1], UTF-8;  unless NO_TAGS
            list offsets i32[n+1], ids u32[]
      hashes of indexed headers: list offsets i32[n+1], u64[]    unless NO_HEADER_HASHES
    payload, none | LZ4 frame | Zstandard frame
      key bits, i32 offsets[n+1], bytes                          unless NO_KEYS
      value bits (null = tombstone), i32 offsets[n+1], bytes
      headers: list offsets i32[n+1]; names i32 offsets[m+1],    unless NO_HEADERS
               UTF-8; value bits, i32 offsets[m+1], bytes

``decode`` reads what strangers wrote: everything that touches a payload goes through it, and what
it returns is safe to hand to Arrow, which trusts its offsets blindly.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import lz4.frame
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from icecore.batch import (
    HEADER_LENGTH,
    KNOWN_PRODUCER_FLAGS,
    BatchHeader,
    BatchLimits,
    Buffer,
    Codec,
    LeaderFlag,
    ProducerFlag,
    assemble,
    pad8,
    set_producer,
)
from icecore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRequestError,
    RecordTooLargeError,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BatchColumns",
    "BinaryColumn",
    "Codec",
    "Record",
    "check_index",
    "decode",
    "encode_arrow",
    "encode_columns",
    "key_hash",
    "partition_for_key",
    "set_producer",
]

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

KEY_HASH_SEED = 42
"""Spark's ``xxhash64`` has the same seed, so a join on the hash needs no conversion."""

_FEW = 64  # below this count, plain Python beats the fixed cost of numpy and pyarrow calls
_MAX_DATA_BYTES = (1 << 31) - 1
_PADDING = [bytes(length) for length in range(8)]
_DEFAULT_LIMITS = BatchLimits()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Record:
    """One record. The last four fields are set on records that were read.

    ``timestamp_ms`` is event time (the clock at construction unless given); a ``value`` of None is
    a tombstone. ``offset`` and ``append_timestamp_ms`` come from the leader; -1 means not known.
    """

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = field(default_factory=_now_ms)
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


def _hash_keys(keys: Sequence[bytes | None]) -> UInt64s:
    digest: Callable[..., int] = xxhash.xxh64_intdigest
    try:
        return np.fromiter(map(digest, keys, repeat(KEY_HASH_SEED)), "<u8", len(keys))
    except TypeError:
        hashes = (0 if key is None else digest(key, KEY_HASH_SEED) for key in keys)
        return np.fromiter(hashes, "<u8", len(keys))


def _all_valid(count: int) -> bytes:
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


class _Zstd(threading.local):
    """Contexts are costly to make and belong to one thread, since they release the GIL."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor()
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


# --- reading --------------------------------------------------------------------------------------


class _Section:
    """A cursor over one section of a batch; no step leaves it, and padding must be zero."""

    __slots__ = ("data", "end", "position", "where")

    def __init__(self, data: memoryview, position: int, end: int, where: str) -> None:
        self.data, self.position, self.end, self.where = data, position, end, where

    def corrupt(self, what: str) -> CorruptBatchError:
        return CorruptBatchError(f"{self.where}: {what}", position=self.position)

    def take(self, length: int, name: str) -> int:
        start, stop, self.position = (
            self.position,
            self.position + length,
            self.position + pad8(length),
        )
        if self.position > self.end:
            raise self.corrupt(f"{name} needs {length} bytes, {self.end - start} are left")
        if stop != self.position and any(self.data[stop : self.position]):
            raise self.corrupt(f"the padding of {name} is not zero")
        return start

    def numbers(self, dtype: str, count: int, name: str) -> Any:
        kind = np.dtype(dtype)
        start = self.take(count * kind.itemsize, name)
        return np.frombuffer(self.data, kind, count, start) if count else np.empty(0, kind)

    def offsets(self, count: int, name: str) -> Int32s:
        offsets: Int32s = self.numbers("<i4", count + 1, f"{name} offsets")
        if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise self.corrupt(f"{name} offsets do not start at 0 or decrease")
        return offsets

    def bits(self, count: int, name: str) -> bytes:
        length = (count + 7) // 8
        start = self.take(length, f"{name} validity")
        bits = bytes(self.data[start : start + length])
        if count & 7 and bits[-1] >> (count & 7):
            raise self.corrupt(f"{name} validity has bits beyond the last record")
        return bits

    def binary(self, count: int, name: str, *, nullable: bool = True) -> "BinaryColumn":
        bits = self.bits(count, name) if nullable else b""
        offsets = self.offsets(count, name)
        bits = bits or _all_valid(count)  # only now is the count known to be a sane one
        length = int(offsets[-1])
        start = self.take(length, f"{name} data")
        return BinaryColumn(bits, offsets, self.data[start : start + length])

    def text(self, count: int, name: str) -> "BinaryColumn":
        column = self.binary(count, name, nullable=False)
        raw = np.frombuffer(column.data, np.uint8) if len(column.data) else np.empty(0, np.uint8)
        starts = column.offsets[:-1]
        try:
            str(column.data, "utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{name} is not UTF-8: {error}") from error
        # The whole is UTF-8; each string is too if none starts with a continuation byte.
        if ((raw[starts[starts < len(raw)]] & 0xC0) == 0x80).any():
            raise self.corrupt(f"{name} is cut inside a character")
        return column

    def finish(self) -> None:
        if self.position != self.end:
            raise self.corrupt(f"{self.end - self.position} bytes are left over")


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
        return self.bits != _all_valid(len(self))

    def mask(self) -> npt.NDArray[np.bool_]:
        """True where a record has a value."""
        bits = np.frombuffer(self.bits, np.uint8)
        return np.unpackbits(bits, count=len(self), bitorder="little").view(np.bool_)

    def to_list(self) -> list[bytes | None]:
        """Python bytes; through Arrow if it is installed, which is five times as fast."""
        if len(self) >= _FEW and _has_pyarrow():
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
def _has_pyarrow() -> bool:
    return find_spec("pyarrow") is not None


@dataclass(slots=True)
class ListColumn:
    """Lists per record: record i has items ``lists[i]:lists[i + 1]``."""

    lists: Int32s
    items: Any
    """u32 ids of tags, u64 header hashes, or the names of headers (a BinaryColumn)."""
    values: BinaryColumn | None = None
    """The tag dictionary, or the values of headers."""

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

    def __len__(self) -> int:
        return len(self.index.timestamps)

    @property
    def timestamps(self) -> Int64s:
        """Event times in ms."""
        return self.index.timestamps

    @property
    def tags(self) -> ListColumn | None:
        return self.index.tags

    @property
    def offsets(self) -> Int64s:
        """Absolute offsets; they are dense except in compacted batches."""
        deltas = self.index.offset_deltas
        return self.base_offset + (np.arange(len(self)) if deltas is None else deltas.astype("<i8"))

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
        )
        if start:
            columns = tuple(islice(column, start, None) for column in columns)
        shared = repeat(self.append_timestamp_ms), repeat(partition), repeat(topic)
        return list(map(Record, *columns, *shared))

    def to_arrow(self) -> "pa.RecordBatch":
        """An Arrow record batch over the same memory: offset, timestamp, append_timestamp, key,
        value, tags, headers.
        """
        import pyarrow as pa

        count, millis = len(self), pa.timestamp("ms", "UTC")
        appended = np.full(count, self.append_timestamp_ms, "<i8")
        no_items = np.zeros(count + 1, "<i4")
        tags, headers = self.tags, self.headers
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        tag_names, header_pairs = pa.array([], pa.string()), pa.array([], pair)
        if tags is not None and tags.values is not None:
            tag_names = tags.values.to_arrow(pa.string()).take(pa.array(tags.items))
        if headers is not None and headers.values is not None:
            parts = [headers.items.to_arrow(pa.string()), headers.values.to_arrow()]
            header_pairs = pa.StructArray.from_arrays(parts, fields=list(pair))

        def plain(type_: Any, numbers: Any) -> Any:
            return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(numbers)])

        def lists(column: ListColumn | None, items: Any) -> Any:
            ends = pa.py_buffer(no_items if column is None else column.lists)
            return pa.Array.from_buffers(
                pa.list_(items.type), count, [None, ends], children=[items]
            )

        columns = {
            "offset": plain(pa.int64(), self.offsets),
            "timestamp": plain(millis, self.timestamps),
            "append_timestamp": plain(millis, appended),
            "key": pa.nulls(count, pa.binary()) if self.keys is None else self.keys.to_arrow(),
            "value": self.values.to_arrow(),
            "tags": lists(tags, tag_names),
            "headers": lists(headers, header_pairs),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _read_index(data: memoryview, position: int, header: BatchHeader) -> IndexColumns:
    """Bounds-checked views of the index section."""
    if header.batch_length > len(data) - position:
        raise CorruptBatchError("the batch is cut short", position=position)
    count, flags = header.record_count, header.producer_flags
    start = position + HEADER_LENGTH
    section = _Section(data, start, start + header.index_length, "index section")
    hashed_headers = not flags & ProducerFlag.NO_HEADER_HASHES
    if flags & ~KNOWN_PRODUCER_FLAGS or (hashed_headers and flags & ProducerFlag.NO_HEADERS):
        raise section.corrupt(f"producer flags {flags:#x}")
    deltas = None
    if header.leader_flags & LeaderFlag.COMPACTED:
        deltas = section.numbers("<i4", count, "offset deltas")
        _check_deltas(section, deltas, header)
    columns = IndexColumns(section.numbers("<i8", count, "timestamps"), deltas)
    times = columns.timestamps
    bounds = (header.min_timestamp_ms, header.max_timestamp_ms)
    if count and (times.min(), times.max()) != bounds:
        raise section.corrupt(f"timestamps are not within {bounds}")
    if not flags & ProducerFlag.NO_KEYS:
        columns.key_bits = section.bits(count, "key")
        columns.key_hashes = section.numbers("<u8", count, "key hashes")
    if not flags & ProducerFlag.NO_TAGS:
        tag_count, text_bytes = map(int, section.numbers("<u4", 2, "tag dictionary"))
        names = section.text(tag_count, "tag dictionary")
        lists = section.offsets(count, "tag list")
        ids = section.numbers("<u4", int(lists[-1]), "tag ids")
        if len(names.data) != text_bytes or (len(ids) and ids.max() >= tag_count):
            raise section.corrupt("a tag id or the dictionary's length is wrong")
        columns.tags = ListColumn(lists, ids, names)
    if hashed_headers:
        lists = section.offsets(count, "header hash list")
        hashes = section.numbers("<u8", int(lists[-1]), "header hashes")
        columns.header_hashes = ListColumn(lists, hashes)
    section.finish()
    return columns


def _check_deltas(section: _Section, deltas: Int32s, header: BatchHeader) -> None:
    """Offset deltas increase strictly inside the batch's range."""
    end = header.end_offset - header.base_offset
    stamped = header.end_offset > 0
    if len(deltas) and (
        deltas[0] < 0 or (deltas[1:] <= deltas[:-1]).any() or (stamped and deltas[-1] >= end)
    ):
        raise section.corrupt("offset deltas do not increase within the batch")


def _payload(
    data: memoryview, position: int, header: BatchHeader, limits: BatchLimits
) -> memoryview:
    """The uncompressed payload; never inflates beyond the declared length, nor the limit."""
    length = header.uncompressed_length
    if length > limits.uncompressed_bytes_max:
        raise BatchTooLargeError(
            f"{length} uncompressed bytes exceed {limits.uncompressed_bytes_max}"
        )
    start = position + HEADER_LENGTH + header.index_length
    end = start + header.payload_length
    if any(data[end : position + header.batch_length]):
        raise CorruptBatchError("the padding of the payload is not zero", position=end)
    stored = data[start:end]
    if header.codec is Codec.NONE:
        return stored
    try:
        inflated = (_unlz4 if header.codec is Codec.LZ4 else _unzstd)(stored, length)
    except (zstandard.ZstdError, RuntimeError) as error:
        raise CorruptBatchError(f"{header.codec.name} payload: {error}", position=start) from error
    if len(inflated) != length:
        raise CorruptBatchError(
            f"{header.codec.name} payload is not one frame of {length} bytes", position=start
        )
    return memoryview(inflated)


def _unlz4(stored: memoryview, length: int) -> bytes:
    """One frame; more than ``length`` bytes or anything behind it gives a wrong length."""
    frame = lz4.frame.LZ4FrameDecompressor()
    inflated: bytes = frame.decompress(stored, max_length=length + 1)
    return inflated if frame.eof and not frame.unused_data else b""


def _unzstd(stored: memoryview, length: int) -> bytes:
    """One frame; a frame that says another length is not even started."""
    declared = zstandard.get_frame_parameters(stored).content_size
    if not length or declared not in (length, zstandard.CONTENTSIZE_UNKNOWN):
        return b""
    return _zstd.decompressor.decompress(stored, length, allow_extra_data=False)


def decode(
    buffer: Buffer, position: int, header: BatchHeader, limits: BatchLimits = _DEFAULT_LIMITS
) -> BatchColumns:
    """Bounds-checked columns of the batch at ``position``, views without a copy where possible.

    CRCs are not checked here, ``batch.verify_producer_crc`` does that; wrong bytes under a right
    CRC are refused all the same.

    Raises:
        CorruptBatchError: A length, count, offset, validity bit, padding or text is wrong.
        BatchTooLargeError: ``uncompressed_length`` exceeds the limit; nothing was inflated.
    """
    data = memoryview(buffer)
    index = _read_index(data, position, header)
    payload = _payload(data, position, header, limits)
    section = _Section(payload, 0, len(payload), "payload")
    count, flags, keys, headers = header.record_count, header.producer_flags, None, None
    if not flags & ProducerFlag.NO_KEYS:
        keys = section.binary(count, "key")
        if keys.bits != index.key_bits:
            raise section.corrupt("key validity differs from the index section")
    values = section.binary(count, "value")
    if not flags & ProducerFlag.NO_HEADERS:
        lists = section.offsets(count, "header list")
        names = section.text(int(lists[-1]), "header names")
        headers = ListColumn(lists, names, section.binary(int(lists[-1]), "header values"))
    section.finish()
    return BatchColumns(
        header.base_offset, header.append_timestamp_ms, index, keys, values, headers
    )


def check_index(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    hash_check: bool,
    limits: BatchLimits = _DEFAULT_LIMITS,
) -> IndexColumns:
    """The leader's check of one produced batch's columns, and the index section for its indexes.

    An uncompressed payload is always checked; a compressed one is inflated, in bounds, only for
    ``hash_check``, which compares every key hash with its key.

    Raises:
        CorruptBatchError: As ``decode``, or a key hash is wrong.
        RecordTooLargeError: A record whose payload was looked at exceeds its cap.
        BatchTooLargeError: As ``decode``.
    """
    keyed = not header.producer_flags & ProducerFlag.NO_KEYS
    if header.codec is not Codec.NONE and not (hash_check and keyed):
        return _read_index(memoryview(buffer), position, header)
    columns = decode(buffer, position, header, limits)
    _check_record_sizes(columns, limits.record_bytes_max)
    if hash_check and columns.keys is not None and columns.index.key_hashes is not None:
        hashes = _hash_keys(columns.keys.to_list())
        if not np.array_equal(hashes, columns.index.key_hashes):
            raise CorruptBatchError("a key hash does not belong to its key", position=position)
    return columns.index


def _check_record_sizes(columns: BatchColumns, record_bytes_max: int) -> None:
    per_record = [column for column in (columns.values, columns.keys) if column is not None]
    headers = columns.headers
    per_header = [] if headers is None else [headers.items, headers.values]
    if sum(len(column.data) for column in per_record + per_header) <= record_bytes_max:
        return
    sizes = np.zeros(len(columns), np.int64)
    for column in per_record:
        sizes += np.diff(column.offsets)
    if headers is not None:
        for column in per_header:
            sizes += np.diff(column.offsets[headers.lists])
    if sizes.max() > record_bytes_max:
        raise RecordTooLargeError(f"a record of {sizes.max()} bytes exceeds {record_bytes_max}")


# --- encoding -------------------------------------------------------------------------------------


class _Parts(list[bytes]):
    """Column bytes in order, each padded to 8."""

    def add(self, column: bytes) -> None:
        self.append(column)
        if remainder := -len(column) & 7:
            self.append(_PADDING[remainder])

    def add_offsets(self, lengths: Iterable[int], count: int) -> None:
        """Add i32 offsets[count+1] for ``count`` lengths."""
        if count < _FEW:
            offsets = np.fromiter(accumulate(lengths, initial=0), np.int64, count + 1)
        else:
            offsets = np.zeros(count + 1, np.int64)
            if not isinstance(lengths, np.ndarray):
                lengths = np.fromiter(lengths, np.int64, count)
            np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] > _MAX_DATA_BYTES:
            raise BatchTooLargeError(f"{offsets[-1]} bytes in one column exceed 2 GiB")
        self.add(offsets.astype("<i4").tobytes())

    def add_binary(self, values: Sequence[bytes | None], *, with_validity: bool = True) -> None:
        """Add validity bits, offsets and bytes."""
        count = len(values)
        present: Sequence[bytes]
        try:
            data = b"".join(values)  # type: ignore[arg-type]  # a None raises, and is rare
            present, bits = values, _all_valid(count)  # type: ignore[assignment]
        except TypeError:
            present = [b"" if value is None else value for value in values]
            data, bits = b"".join(present), _bits([value is not None for value in values])
        if with_validity:
            self.add(bits)
        self.add_offsets(map(len, present), count)
        self.add(data)

    @property
    def length(self) -> int:
        return sum(map(len, self))


def _bits(mask: Any) -> bytes:
    return np.packbits(np.asarray(mask, np.bool_), bitorder="little").tobytes()


def _finish(
    index: _Parts,
    payload: _Parts,
    flags: int,
    times: Int64s,
    codec: Codec,
    ids: tuple[int, int, int, int],
    leader_flags: int = 0,
) -> bytes:
    """Compress the payload and put the batch together; ``ids`` is the header's producer block."""
    uncompressed_length = stored_length = payload.length
    body: list[bytes] = payload
    if codec is not Codec.NONE:
        stored = _compress(b"".join(payload), codec)
        stored_length = len(stored)
        body = [stored, _PADDING[-stored_length & 7]]
    low, high = int(times.min()), int(times.max())
    producer_id, base_sequence, producer_epoch, schema_id = ids
    fields = (
        *(flags, int(codec), len(times), index.length, uncompressed_length, low, high),
        *(producer_id, base_sequence, producer_epoch, schema_id, stored_length),
    )
    return assemble(fields, [*index, *body], leader_flags)


def encode_columns(
    *,
    values: Sequence[bytes | None],
    timestamps_ms: Any,
    keys: Sequence[bytes | None] | None = None,
    key_hashes: Any = None,
    tags: Sequence[Sequence[str]] | None = None,
    headers: Sequence[Headers] | None = None,
    header_hashes: Sequence[Sequence[int]] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    schema_id: int = 0,
    offset_deltas: Sequence[int] | None = None,
) -> bytes:
    """A whole batch with a zero leader part, from columns of equal length.

    Args:
        values: None is a tombstone.
        timestamps_ms: A list, ``array("q")`` or numpy array.
        keys: None is a null key, not the empty one.
        key_hashes: u64 per record (0 for null) if the producer has hashed already.
        tags: Per record; tags, headers and keys that no record has cost nothing.
        headers: Per record, pairs of a name and a nullable value.
        header_hashes: Per record, hashes of the headers the topic indexes.
        producer_id, producer_epoch, base_sequence: Zero when not idempotent.
        codec, schema_id: Of the payload; the schema is the user's own business.
        offset_deltas: Only compaction gives them: offsets relative to the base offset.

    Raises:
        InvalidRequestError: No records, columns of different lengths, or a number out of range.
        BatchTooLargeError: The batch exceeds the format.
    """
    count = len(values)
    columns = (timestamps_ms, keys, key_hashes, tags, headers, header_hashes, offset_deltas)
    if not count or any(column is not None and len(column) != count for column in columns):
        raise InvalidRequestError("columns must have the same length, at least 1")
    index, payload, flags = _Parts(), _Parts(), 0
    try:
        times = np.asarray(timestamps_ms, "<i8")
        if offset_deltas is not None:
            index.add(np.asarray(offset_deltas, "<i4").tobytes())
    except OverflowError as error:
        raise InvalidRequestError(f"a timestamp or offset is out of range: {error}") from error
    index.append(times.tobytes())
    if keys is None or not any(key is not None for key in keys):
        flags |= ProducerFlag.NO_KEYS
    else:
        payload.add_binary(keys)
        hashes = _hash_keys(keys) if key_hashes is None else np.asarray(key_hashes, "<u8")
        index.add(payload[0])
        index.append(hashes.tobytes())
    payload.add_binary(values)
    if tags is None or not any(tags):
        flags |= ProducerFlag.NO_TAGS
    else:
        _add_tags(index, tags)
    if header_hashes is None or not any(header_hashes):
        flags |= ProducerFlag.NO_HEADER_HASHES
    else:
        index.add_offsets(map(len, header_hashes), count)
        index.append(np.array([*chain.from_iterable(header_hashes)], "<u8").tobytes())
    if headers is None or not any(headers):
        flags |= ProducerFlag.NO_HEADERS
    else:
        _add_headers(payload, headers)
    ids = (producer_id, base_sequence, producer_epoch, schema_id)
    compacted = 0 if offset_deltas is None else LeaderFlag.COMPACTED
    return _finish(index, payload, flags, times, codec, ids, compacted)


def _add_tags(index: _Parts, tags: Sequence[Sequence[str]]) -> None:
    """A dictionary in order of first appearance, then the lists of ids."""
    ids: dict[str, int] = {}
    flat = [ids.setdefault(tag, len(ids)) for row in tags for tag in row]
    names = [tag.encode() for tag in ids]
    index.add(np.array([len(names), sum(map(len, names))], "<u4").tobytes())
    index.add_binary(names, with_validity=False)
    index.add_offsets(map(len, tags), len(tags))
    index.add(np.array(flat, "<u4").tobytes())


def _add_headers(payload: _Parts, headers: Sequence[Headers]) -> None:
    pairs = [*chain.from_iterable(headers)]
    payload.add_offsets(map(len, headers), len(headers))
    payload.add_binary([name.encode() for name, _ in pairs], with_validity=False)
    payload.add_binary([value for _, value in pairs])


def _compress(payload: bytes, codec: Codec) -> bytes:
    if codec is Codec.LZ4:
        compressed: bytes = lz4.frame.compress(payload)
        return compressed
    return _zstd.compressor.compress(payload)


def encode_arrow(
    record_batch: "pa.RecordBatch",
    *,
    key_hashes: Any = None,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    schema_id: int = 0,
) -> bytes:
    """The same bytes as ``encode_columns`` from an Arrow record batch.

    Columns: ``value`` (binary), optional ``key`` (binary), ``timestamp_ms`` (int64) or
    ``timestamp`` (else now), ``tags`` (list<string>), ``headers`` (list<struct<key, value>>);
    others are ignored, other types are cast.

    Raises:
        InvalidRequestError: No rows, no ``value``, a column that cannot be cast, a null timestamp,
            tag or header name.
    """
    import pyarrow as pa

    count = record_batch.num_rows
    if not count or "value" not in record_batch.schema.names:
        raise InvalidRequestError("a record batch needs rows and a column named value")
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    index, payload, flags = _Parts(), _Parts(), 0
    times = _arrow_column(record_batch, "timestamp_ms", pa.int64())
    if times is None:
        times = _arrow_column(record_batch, "timestamp", pa.timestamp("ms", "UTC"))
    if times is None:
        times = pa.repeat(_now_ms(), count)
    millis = _no_nulls(times.cast(pa.int64()), "timestamp").to_numpy()
    index.append(millis.astype("<i8").tobytes())
    keys = _arrow_column(record_batch, "key", pa.binary())
    if keys is None or keys.null_count == count:
        flags |= ProducerFlag.NO_KEYS
    else:
        _add_arrow(payload, keys)
        hashes = _hash_keys(keys.to_pylist()) if key_hashes is None else key_hashes
        index.add(payload[0])
        index.append(np.asarray(hashes, "<u8").tobytes())
    _add_arrow(payload, _arrow_column(record_batch, "value", pa.binary()))
    tags = _arrow_column(record_batch, "tags", pa.list_(pa.string()))
    if tags is None or not len(tags.flatten()):
        flags |= ProducerFlag.NO_TAGS
    else:
        encoded = _no_nulls(tags.flatten(), "tag").dictionary_encode()
        names = _Parts()
        _add_arrow(names, encoded.dictionary, with_validity=False)
        text_bytes = int(np.frombuffer(names[0], "<i4")[-1])
        index.add(np.array([len(encoded.dictionary), text_bytes], "<u4").tobytes())
        index.extend(names)
        _add_list_offsets(index, tags)
        index.add(encoded.indices.to_numpy().astype("<u4").tobytes())
    headers = _arrow_column(record_batch, "headers", pa.list_(pair))
    if headers is None or not len(headers.flatten()):
        flags |= ProducerFlag.NO_HEADERS
    else:
        header_names, header_values = _no_nulls(headers.flatten(), "header").flatten()
        _add_list_offsets(payload, headers)
        _add_arrow(payload, _no_nulls(header_names, "header name"), with_validity=False)
        _add_arrow(payload, header_values)
    ids = (producer_id, base_sequence, producer_epoch, schema_id)
    return _finish(index, payload, flags | ProducerFlag.NO_HEADER_HASHES, millis, codec, ids)


def _arrow_column(record_batch: "pa.RecordBatch", name: str, type_: Any) -> Any:
    import pyarrow as pa

    if name not in record_batch.schema.names:
        return None
    try:
        return record_batch.column(name).cast(type_, safe=False)
    except pa.ArrowException as error:
        raise InvalidRequestError(f"column {name} is not {type_}: {error}") from error


def _no_nulls(array: Any, name: str) -> Any:
    if array.null_count:
        raise InvalidRequestError(f"a {name} is null")
    return array


def _add_list_offsets(parts: _Parts, lists: Any) -> None:
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    parts.add_offsets(lengths, len(lists))


def _add_arrow(parts: _Parts, array: Any, *, with_validity: bool = True) -> None:
    """Like ``add_binary``; slices of larger arrays are cut to what they hold."""
    count = len(array)
    if with_validity:
        parts.add(_bits(array.is_valid()) if array.null_count else _all_valid(count))
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, "<i4", count + 1, 4 * array.offset)
    parts.add((offsets - offsets[0]).astype("<i4").tobytes())
    parts.add(bytes(memoryview(data)[offsets[0] : offsets[-1]]) if data is not None else b"")
