"""Bytes to columns: the layout of a batch, and the one place that checks its bounds.

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

A Zstandard frame may leave out its length, for the header says it; its window is at most 64 MiB.

``decode`` reads what strangers wrote: everything that touches a payload goes through it, and what
it returns is safe to hand to Arrow, which trusts its offsets blindly.
"""

import json
from collections.abc import Collection
from typing import Any

import lz4.frame
import numpy as np

from icecore.codec import zstd
from icecore.codec.batch import (
    HEADER_LENGTH,
    KNOWN_PRODUCER_FLAGS,
    READER_LIMITS,
    BatchHeader,
    BatchLimits,
    Buffer,
    Codec,
    LeaderFlag,
    ProducerFlag,
    pad8,
)
from icecore.codec.columns import (
    BatchColumns,
    BinaryColumn,
    IndexColumns,
    Int32s,
    Int64s,
    ListColumn,
    all_valid,
)
from icecore.codec.hashes import hash_column, header_hashes
from icecore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    HeaderHashesError,
    RecordTooLargeError,
)

_TOPIC_LIMITS = BatchLimits()
# The methods of arrays reach these by way of Python code, which most batches are too small for.
_any, _least, _greatest = np.logical_or.reduce, np.minimum.reduce, np.maximum.reduce


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
        if offsets[0] != 0 or _any(offsets[1:] < offsets[:-1]):
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
        bits = bits or all_valid(count)  # only now is the count known to be a sane one
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


def _read_index(
    data: memoryview, position: int, header: BatchHeader, limits: BatchLimits
) -> IndexColumns:
    """Bounds-checked views of the index section."""
    if header.batch_length > len(data) - position:
        raise CorruptBatchError("the batch is cut short", position=position)
    if header.leader_flags & LeaderFlag.ROW_GROUP:
        raise CorruptBatchError("a row group is no batch of columns", position=position)
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
    if count and (_least(times), _greatest(times)) != bounds:
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
        _check_tags_written_out(columns.tags, limits.uncompressed_bytes_max)
    if hashed_headers:
        lists = section.offsets(count, "header hash list")
        hashes = section.numbers("<u8", int(lists[-1]), "header hashes")
        columns.header_hashes = ListColumn(lists, hashes)
    section.finish()
    return columns


def _tag_lengths(tags: ListColumn) -> Int64s:
    """Bytes of each tag of each record."""
    assert tags.values is not None
    lengths: Int64s = np.diff(tags.values.offsets).astype(np.int64)[tags.items]
    return lengths


def _check_tags_written_out(tags: ListColumn, bytes_max: int) -> None:
    """Many records may name one long tag: little here, much wherever tags are written out."""
    assert tags.values is not None
    if len(tags.items) * len(tags.values.data) <= bytes_max:
        return  # as in any sane batch
    length = int(_tag_lengths(tags).sum())
    if length > bytes_max:
        raise BatchTooLargeError(f"tags of {length} bytes, written out, exceed {bytes_max}")


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
        inflated = (_unlz4 if header.codec is Codec.LZ4 else zstd.decompress)(stored, length)
    except (zstd.Error, RuntimeError) as error:
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


def decode(
    buffer: Buffer, position: int, header: BatchHeader, limits: BatchLimits = READER_LIMITS
) -> BatchColumns:
    """Bounds-checked columns of the batch at ``position``, views without a copy where possible.

    CRCs are not checked here, ``batch.verify_producer_crc`` does that; wrong bytes under a right
    CRC are refused nevertheless.

    Raises:
        CorruptBatchError: A length, count, offset, validity bit, padding or text is wrong.
        BatchTooLargeError: ``uncompressed_length``, or tags written out, exceed the limit; nothing
            was inflated.
    """
    data = memoryview(buffer)
    index = _read_index(data, position, header, limits)
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


def decode_index(
    buffer: Buffer, position: int, header: BatchHeader, limits: BatchLimits = READER_LIMITS
) -> IndexColumns:
    """The index section alone, bounds-checked; nothing is inflated.

    Raises:
        CorruptBatchError: As ``decode``.
        BatchTooLargeError: Tags written out exceed the limit.
    """
    return _read_index(memoryview(buffer), position, header, limits)


def payload_of(
    buffer: Buffer, position: int, header: BatchHeader, limits: BatchLimits = READER_LIMITS
) -> memoryview:
    """The payload as it was before it was compressed.

    Raises:
        CorruptBatchError: It is not one frame of the declared length.
        BatchTooLargeError: It exceeds the limit; nothing was inflated.
    """
    return _payload(memoryview(buffer), position, header, limits)


def check_columns(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    limits: BatchLimits = _TOPIC_LIMITS,
    indexed_headers: Collection[str] | None = None,
) -> IndexColumns:
    """The leader's check of one produced batch's columns, and the index section for its indexes.

    All of it is decoded, compressed or not: what passes here, every reader can decode (R70).
    Every key hash is compared with its key: indexes know nothing else of keys. With
    ``indexed_headers``, the hashes of headers are those of the headers with these names.

    Raises:
        CorruptBatchError: As ``decode``, or a key hash is wrong.
        HeaderHashesError: Hashes of headers are missing or wrong.
        RecordTooLargeError: A record, or the tags of one, exceed their cap.
        BatchTooLargeError: As ``decode``.
    """
    columns = decode(buffer, position, header, limits)
    _check_record_sizes(columns, limits.record_bytes_max)
    _check_tag_sizes(columns.tags, limits.record_bytes_max)
    keys, given = columns.keys, columns.index.key_hashes
    if keys is not None and given is not None:
        hashes = hash_column(keys)
        if not np.array_equal(hashes, given):
            raise CorruptBatchError("a key hash does not belong to its key", position=position)
    if indexed_headers is not None and (indexed_headers or columns.index.header_hashes):
        _check_header_hashes(columns, indexed_headers)
    return columns.index


def _check_header_hashes(columns: BatchColumns, names: Collection[str]) -> None:
    wanted = header_hashes(columns.header_tuples(), names) if names else [[]] * len(columns)
    found = columns.index.header_hashes
    given = [()] * len(columns) if found is None else found.split(found.items.tolist())
    if [*map(tuple, wanted)] == given:
        return
    shown = ", ".join(sorted(names)) or "none"
    raise HeaderHashesError(
        f"the batch does not have the hashes of the headers that the topic indexes ({shown}): "
        "compute them as icecore/codec/hashes.py says, or send plain records",
        indexed_headers=json.dumps(sorted(names)),
    )


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


def _check_tag_sizes(tags: ListColumn | None, record_bytes_max: int) -> None:
    if tags is None or tags.values is None:
        return
    if len(tags.items) * len(tags.values.data) <= record_bytes_max:
        return
    ends = np.concatenate(([0], np.cumsum(_tag_lengths(tags))))
    largest = int(np.diff(ends[tags.lists]).max())
    if largest > record_bytes_max:
        raise RecordTooLargeError(f"tags of {largest} bytes of a record exceed {record_bytes_max}")
