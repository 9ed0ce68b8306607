"""Batches as clear protobuf records, for clients without the codec: a bounded piece at a time.

Runs on reader threads. The size of stored bytes does not tell how much comes out of them, so the
bytes to be sent are counted, record by record; an answer may end in the middle of a batch. A batch
that cannot be decoded ends the answer; when it is the first one, the error says where to go on
(R71).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from icecore.codec import batch, record
from icecore.codec.batch import BatchHeader
from icecore.codec.columns import BatchColumns, Headers, Int64s
from icecore.codec.record_columns import RecordColumns
from icecore.errors import BatchTooLargeError, CorruptBatchError
from icecore.v1 import data_pb2
from icecore_node.ports import Buffer

ANSWER_BYTES_MAX = 3 << 20
"""Below the 4 MiB that gRPC takes by default, whatever the encoding adds."""
ANSWER_RECORDS_MAX = 10_000
_WINDOW_RECORDS = 2048
_RECORD_BYTES = 40  # offset, times, lengths
_ITEM_BYTES = 8  # lengths and marks of one tag or header


PlainPart: TypeAlias = data_pb2.FetchPartitionResult | data_pb2.QueryPartitionResult
"""Part of an answer that holds records."""


@dataclass(slots=True)
class PlainRecords:
    """A piece of an answer."""

    next_offset: int
    part: data_pb2.FetchPartitionResult = field(default_factory=data_pb2.FetchPartitionResult)
    """Only its records are set."""
    encoded: bytes = b""
    """``part`` as bytes: taking ten thousand records over as they are costs the loop 30 ms."""
    size_bytes: int = 0
    is_full: bool = False
    error: CorruptBatchError | None = None
    """The batch at the asked offset can't be decoded; ``next_offset`` is behind it."""

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.part.records)


def plain_records(
    buffers: list[Buffer], offset: int, max_bytes: int, max_records: int
) -> PlainRecords:
    """Records from ``offset`` on, at least one unless the batch there cannot be decoded.

    Args:
        buffers: Whole stored batches, whose CRCs were checked when they were read.
        offset: Records below it are left out.
        max_bytes: Maximum size of the records as they are sent.
        max_records: Maximum number of records.
    """
    data = b"".join(buffers)
    found = PlainRecords(offset)
    for position, header in batch.iter_batches(data):
        if header.end_offset <= offset:
            continue
        try:
            columns = record.decode(data, position, header)
        except (CorruptBatchError, BatchTooLargeError) as error:
            if not found.count:
                found.error = corrupt_batch(header, error)
                found.next_offset = header.end_offset
            break
        _add(found, columns, (max_bytes, max_records))
        if found.is_full:
            break
        found.next_offset = header.end_offset
    found.encoded = found.part.SerializeToString()
    return found


def corrupt_batch(header: BatchHeader, error: Exception) -> CorruptBatchError:
    """Return the error for a batch that can't be decoded; it names the offset to go on at (R71)."""
    return CorruptBatchError(
        f"the batch of offsets {header.base_offset} to {header.end_offset - 1} can't be decoded: "
        f"{error}; go on at {header.end_offset}",
        offset=header.base_offset,
        next_offset=header.end_offset,
    )


def _add(found: PlainRecords, columns: BatchColumns, room: tuple[int, int]) -> None:
    max_bytes, max_records = room
    for each in _records(columns, found.next_offset):
        size = record_size(each)
        is_too_much = found.size_bytes + size > max_bytes or found.count >= max_records
        if is_too_much and found.count:
            found.next_offset, found.is_full = each.offset, True
            return
        append_record(found.part, each)
        found.size_bytes += size


def _records(columns: BatchColumns, offset: int) -> Iterator[record.Record]:
    """Yield records from an offset on, one window at a time: a batch may hold a million of them."""
    first = int(columns.offsets.searchsorted(offset))
    for start in range(first, len(columns), _WINDOW_RECORDS):
        yield from columns.part(start, start + _WINDOW_RECORDS).to_records()


def record_size(each: record.Record) -> int:
    """Bytes of a record as it is sent, or a few more."""
    size = _RECORD_BYTES
    if each.key is not None:
        size += len(each.key)
    if each.value is not None:
        size += len(each.value)
    # At most four bytes of UTF-8 a character; tags are short, and encoding them costs more.
    for tag in each.tags:
        size += _ITEM_BYTES + 4 * len(tag)
    return size + _headers_size(each.headers)


def _headers_size(headers: Headers) -> int:
    size = 0
    for name, value in headers:
        size += 2 * _ITEM_BYTES + 4 * len(name) + len(value or b"")
    return size


def size_of(columns: RecordColumns) -> int:
    """The sum of ``record_sizes``, in a fraction of the time."""
    size = _RECORD_BYTES * len(columns) + len(columns.values.data)
    if columns.keys is not None:
        size += len(columns.keys.data)
    if columns.tag_ids is not None:
        size += int(_tag_sizes(columns.tag_names)[columns.tag_ids].sum())
    return size + sum(map(_headers_size, columns.headers or ()))


def _tag_sizes(names: Sequence[str]) -> Int64s:
    return np.array([_ITEM_BYTES + 4 * len(name) for name in names], np.int64)


def record_sizes(columns: RecordColumns) -> Int64s:
    """Return the ``record_size`` of each record."""
    sizes = _RECORD_BYTES + np.maximum(columns.values.lengths, 0)
    if columns.keys is not None:
        sizes += np.maximum(columns.keys.lengths, 0)
    counts, ids = columns.tag_counts, columns.tag_ids
    if counts is not None and ids is not None:
        upto = np.append(0, np.cumsum(_tag_sizes(columns.tag_names)[ids]))
        ends = np.cumsum(counts)
        sizes += upto[ends] - upto[ends - counts]
    if columns.headers is not None:
        sizes += np.array([*map(_headers_size, columns.headers)], np.int64)
    return sizes


def append_record(part: PlainPart, each: record.Record) -> None:
    """Add a record to a piece of an answer."""
    added = part.records.add(
        offset=each.offset,
        timestamp_ms=each.timestamp_ms,
        append_timestamp_ms=each.append_timestamp_ms,
        key=each.key,
        value=each.value,
        tags=each.tags,
    )
    for name, value in each.headers:
        added.headers.add(name=name, value=value)
