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
from itertools import accumulate, repeat
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
_U32_PAIR = np.dtype("<u4")
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
            np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
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


def _all_valid(count: int) -> bytes:
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


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
        timestamps_ms: A list, ``array("q")`` or numpy array; the latter two are not copied.
        keys: None is a null key, which is not the empty key.
        key_hashes: u64 per record if the producer has hashed already (0 for null), else computed.
        tags: Per record; tags, headers and keys that no record has cost nothing.
        headers: Per record, pairs of a name and a nullable value.
        header_hashes: Per record, hashes of the headers the topic indexes.
        codec: Of the payload.
        producer_id: 0 when not idempotent.
        producer_epoch: Of the producer id.
        base_sequence: Of the first record.
        schema_id: Of the values, for the user's own registry.
        offset_deltas: Only compaction gives them: offsets relative to the base offset.

    Raises:
        InvalidRequestError: No records, columns of different lengths, or a number out of range.
        BatchTooLargeError: The batch exceeds the format.
        TypeError: A value or key is not bytes.
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
        index.append(np.array([h for row in header_hashes for h in row], "<u8").tobytes())
    if headers is None or not any(headers):
        flags |= ProducerFlag.NO_HEADERS
    else:
        pairs = [pair for row in headers for pair in row]
        payload.add_offsets(map(len, headers), count)
        payload.add_binary([name.encode() for name, _ in pairs], with_validity=False)
        payload.add_binary([value for _, value in pairs])
    ids = (producer_id, base_sequence, producer_epoch, schema_id)
    leader_flags = 0 if offset_deltas is None else LeaderFlag.COMPACTED
    return _finish(index, payload, flags, times, codec, ids, leader_flags)


def _hash_keys(keys: Sequence[bytes | None]) -> UInt64s:
    digest: Callable[..., int] = xxhash.xxh64_intdigest
    try:
        return np.fromiter(map(digest, keys, repeat(KEY_HASH_SEED)), "<u8", len(keys))
    except TypeError:
        hashes = (0 if key is None else digest(key, KEY_HASH_SEED) for key in keys)
        return np.fromiter(hashes, "<u8", len(keys))


def _add_tags(index: _Parts, tags: Sequence[Sequence[str]]) -> None:
    """A dictionary in order of first appearance, then the lists of ids."""
    ids: dict[str, int] = {}
    flat = [ids.setdefault(tag, len(ids)) for row in tags for tag in row]
    names = [tag.encode() for tag in ids]
    index.add(np.array([len(names), sum(map(len, names))], "<u4").tobytes())
    index.add_binary(names, with_validity=False)
    index.add_offsets(map(len, tags), len(tags))
    index.add(np.array(flat, "<u4").tobytes())


def _compress(payload: bytes, codec: Codec) -> bytes:
    if codec is Codec.LZ4:
        compressed: bytes = lz4.frame.compress(payload)
        return compressed
    return _zstd().compressor.compress(payload)


class _Zstd(threading.local):
    """Contexts are costly to make and belong to one thread, since they release the GIL."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor()
        self.decompressor = zstandard.ZstdDecompressor()
