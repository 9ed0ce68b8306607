"""Records to batches: the encoding half of the column codec, and the names users import.

The layout of the columns, and all that reads them, is in ``icecore/codec/decoding.py``; Arrow
record batches become batches in ``icecore/codec/arrow.py``.
"""

import struct
import sys
from array import array
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeAlias

import lz4.frame
import numpy as np

from icecore.codec import zstd
from icecore.codec.batch import (
    Buffer,
    Codec,
    LeaderFlag,
    ProducerFlag,
    ProducerPart,
    assemble,
    parse_header,
    set_producer,
)
from icecore.codec.columns import (
    FEW,
    MAX_DATA_BYTES,
    PADDING,
    BatchColumns,
    BinaryColumn,
    Headers,
    Int64s,
    Record,
    all_valid,
    hash_keys,
    key_hash,
    partition_for_key,
)
from icecore.codec.decoding import (
    check_columns,
    decode,
)
from icecore.codec.hashes import header_hashes as hash_headers
from icecore.errors import (
    BatchTooLargeError,
    InvalidRequestError,
)

__all__ = [
    "BatchColumns",
    "BinaryColumn",
    "Codec",
    "Record",
    "check_columns",
    "decode",
    "encode_columns",
    "key_hash",
    "partition_for_key",
    "set_producer",
    "with_header_hashes",
]


Times: TypeAlias = "Int64s | array[int]"


class Parts(list[Buffer]):
    """Column bytes in order, each padded to 8."""

    def add(self, column: Buffer) -> None:
        self.append(column)
        if remainder := -len(column) & 7:
            self.append(PADDING[remainder])

    def add_offsets(self, lengths: Iterable[int], count: int) -> None:
        """Add i32 offsets[count+1] for ``count`` lengths."""
        if count < FEW:
            ends = [*accumulate(lengths, initial=0)]
            _check_data_bytes(ends[-1])
            self.add(struct.pack(f"<{count + 1}i", *ends))
            return
        offsets = np.zeros(count + 1, np.int64)
        if not isinstance(lengths, np.ndarray):
            lengths = np.fromiter(lengths, np.int64, count)
        np.cumsum(lengths, out=offsets[1:])
        _check_data_bytes(int(offsets[-1]))
        self.add(offsets.astype("<i4").tobytes())

    def add_binary(self, values: Sequence[bytes | None], *, with_validity: bool = True) -> None:
        """Add validity bits, offsets and bytes."""
        count = len(values)
        present: Sequence[bytes]
        try:
            data = b"".join(values)  # type: ignore[arg-type]  # a None raises, and is rare
            present, bits = values, all_valid(count)  # type: ignore[assignment]
        except TypeError:
            present = [b"" if value is None else value for value in values]
            data, bits = b"".join(present), bits_of([value is not None for value in values])
        if with_validity:
            self.add(bits)
        self.add_offsets(map(len, present), count)
        self.add(data)

    def add_header_hashes(self, rows: Sequence[Sequence[int]] | None) -> int:
        """Add lists of hashes per record; the producer flag of a batch that has none."""
        if rows is None or not any(rows):
            return ProducerFlag.NO_HEADER_HASHES
        self.add_offsets(map(len, rows), len(rows))
        self.append(np.array([*chain.from_iterable(rows)], "<u8").tobytes())
        return 0

    @property
    def length(self) -> int:
        return sum(map(len, self))


def _check_data_bytes(length: int) -> None:
    if length > MAX_DATA_BYTES:
        raise BatchTooLargeError(f"{length} bytes in one column exceed 2 GiB")


def bits_of(mask: Any) -> bytes:
    return np.packbits(np.asarray(mask, np.bool_), bitorder="little").tobytes()


def finish(
    index: Parts,
    payload: Parts,
    flags: int,
    times: Times,
    codec: Codec,
    ids: tuple[int, int, int, int],
    leader_flags: int = 0,
) -> bytes:
    """Compress the payload and put the batch together; ``ids`` is the header's producer block."""
    uncompressed_length = stored_length = payload.length
    body: list[Buffer] = payload
    if codec is not Codec.NONE:
        stored = _compress(b"".join(payload), codec)
        stored_length = len(stored)
        body = [stored, PADDING[-stored_length & 7]]
    if isinstance(times, array):
        low, high = min(times), max(times)
    else:
        low, high = int(times.min()), int(times.max())
    producer_id, base_sequence, producer_epoch, schema_id = ids
    part = ProducerPart(
        producer_flags=flags,
        codec=int(codec),
        record_count=len(times),
        index_length=index.length,
        uncompressed_length=uncompressed_length,
        min_timestamp_ms=low,
        max_timestamp_ms=high,
        producer_id=producer_id,
        base_sequence=base_sequence,
        producer_epoch=producer_epoch,
        schema_id=schema_id,
        payload_length=stored_length,
    )
    return assemble(part, [*index, *body], leader_flags)


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
    index, payload, flags = Parts(), Parts(), 0
    try:
        times = _times(timestamps_ms)
        if offset_deltas is not None:
            index.add(np.asarray(offset_deltas, "<i4").tobytes())
    except OverflowError as error:
        raise InvalidRequestError(f"a timestamp or offset is out of range: {error}") from error
    index.append(times.tobytes())
    if keys is None or not any(key is not None for key in keys):
        flags |= ProducerFlag.NO_KEYS
    else:
        payload.add_binary(keys)
        hashes = hash_keys(keys) if key_hashes is None else np.asarray(key_hashes, "<u8")
        index.add(payload[0])
        index.append(hashes.tobytes())
    payload.add_binary(values)
    if tags is None or not any(tags):
        flags |= ProducerFlag.NO_TAGS
    else:
        _add_tags(index, tags)
    flags |= index.add_header_hashes(header_hashes)
    if headers is None or not any(headers):
        flags |= ProducerFlag.NO_HEADERS
    else:
        _add_headers(payload, headers)
    ids = (producer_id, base_sequence, producer_epoch, schema_id)
    compacted = 0 if offset_deltas is None else LeaderFlag.COMPACTED
    return finish(index, payload, flags, times, codec, ids, compacted)


def with_header_hashes(raw: bytes, names: Collection[str]) -> bytes:
    """The same batch, not stamped yet, with the hashes of the headers of these names."""
    header = parse_header(raw)
    if header.producer_flags & ProducerFlag.NO_HEADERS:
        return raw
    columns = decode(raw, 0, header)
    headers = columns.header_tuples()
    return encode_columns(
        values=columns.values.to_list(),
        timestamps_ms=columns.timestamps,
        keys=None if columns.keys is None else columns.keys.to_list(),
        key_hashes=columns.index.key_hashes,
        tags=columns.tag_tuples(),
        headers=headers,
        header_hashes=hash_headers(headers, names),
        codec=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        schema_id=header.schema_id,
    )


def _times(timestamps_ms: Any) -> Times:
    """As they are written. Few of them stay an array: numpy's calls would take longer than all that
    is done with them."""
    is_plain = isinstance(timestamps_ms, array) and timestamps_ms.typecode == "q"
    if is_plain and len(timestamps_ms) < FEW and sys.byteorder == "little":
        plain: Times = timestamps_ms
        return plain
    return np.asarray(timestamps_ms, "<i8")


def _add_tags(index: Parts, tags: Sequence[Sequence[str]]) -> None:
    """A dictionary in order of first appearance, then the lists of ids."""
    ids: dict[str, int] = {}
    flat = [ids.setdefault(tag, len(ids)) for row in tags for tag in row]
    names = [tag.encode() for tag in ids]
    index.add(np.array([len(names), sum(map(len, names))], "<u4").tobytes())
    index.add_binary(names, with_validity=False)
    index.add_offsets(map(len, tags), len(tags))
    index.add(np.array(flat, "<u4").tobytes())


def _add_headers(payload: Parts, headers: Sequence[Headers]) -> None:
    pairs = [*chain.from_iterable(headers)]
    payload.add_offsets(map(len, headers), len(headers))
    payload.add_binary([name.encode() for name, _ in pairs], with_validity=False)
    payload.add_binary([value for _, value in pairs])


def _compress(payload: bytes, codec: Codec) -> bytes:
    if codec is Codec.LZ4:
        compressed: bytes = lz4.frame.compress(payload)
        return compressed
    return zstd.compress(payload)
