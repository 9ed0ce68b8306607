"""Row groups: records of object storage as they lie there, in the frame of a batch.

A node that reads a tiered segment for a client that decodes Parquet itself passes row groups on
instead of making batches of them: it decodes and compresses nothing. The frame is that of a batch
with the leader flag ROW_GROUP: offsets, the number of records and CRCs as always, no index section,
and a payload that is a Parquet file with one row group. Its columns are those of the tiered table
(docs/reference/formats.md); append time and schema id are of each record, not of the batch. Nobody
stores or produces such a batch. Needs the extra ``arrow``.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any, Final, Self

import numpy as np

from icecore.codec.arrow import COLUMN_TYPES, schema_of
from icecore.codec.batch import (
    HEADER_LENGTH,
    READER_LIMITS,
    BatchHeader,
    BatchLimits,
    Buffer,
    Codec,
    LeaderFlag,
    ProducerFlag,
    ProducerPart,
    header_of,
    pad8,
)
from icecore.codec.columns import PADDING, Int64s, Record
from icecore.errors import BatchTooLargeError, CorruptBatchError
from icecore.extras import explained

with explained():
    import pyarrow as pa
    import pyarrow.parquet as pq

_KNOWN_ELSEWHERE: Final = ("topic", "partition")
"""Columns with one value for all records, which the reader knows."""
_STORED: Final = tuple(name for name in COLUMN_TYPES if name not in _KNOWN_ELSEWHERE)
_NO_SECTIONS: Final = (
    ProducerFlag.NO_KEYS
    | ProducerFlag.NO_TAGS
    | ProducerFlag.NO_HEADERS
    | ProducerFlag.NO_HEADER_HASHES
)


def frame(
    file: Sequence[Buffer], records: int, times_ms: tuple[int, int]
) -> tuple[bytes, list[Buffer]]:
    """The header of such a batch, to be stamped with the flag, and what follows it.

    Args:
        file: A Parquet file with one row group, in parts.
        records: Its rows.
        times_ms: The least and the greatest event time.

    Raises:
        BatchTooLargeError: It is longer than any batch may be.
    """
    length = sum(map(len, file))
    part = ProducerPart(
        producer_flags=_NO_SECTIONS,
        codec=Codec.NONE,
        record_count=records,
        index_length=0,
        uncompressed_length=length,
        min_timestamp_ms=times_ms[0],
        max_timestamp_ms=times_ms[1],
        producer_id=0,
        base_sequence=0,
        producer_epoch=0,
        schema_id=0,
        payload_length=length,
    )
    body: list[Buffer] = [*file, PADDING[-length & 7]]
    return header_of(part, body, LeaderFlag.ROW_GROUP | LeaderFlag.COMPACTED), body


class RowGroupRows:
    """Decoded records of a row group, or of a part of it.

    Args:
        rows: Columns in the types of ``codec/arrow.py``; the offsets are among them.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self.offsets: Int64s = rows.column("offset").to_numpy()

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def within(self, first_offset: int, end_offset: int | None) -> Self:
        """Those from ``first_offset`` on and below ``end_offset``."""
        start, end = 0, len(self)
        start = int(self.offsets.searchsorted(first_offset))
        if end_offset is not None:
            end = int(self.offsets.searchsorted(end_offset))
        return self.part(start, end)

    def part(self, start: int, end: int) -> Self:
        """Rows ``start`` to ``end``, exclusive."""
        return type(self)(self._rows.slice(start, max(0, end - start)))

    def to_records(self, topic: str, partition: int) -> list[Record]:
        """All of them."""
        value, key, tags, headers = map(self._rows.column, ("value", "key", "tags", "headers"))
        columns: tuple[Iterable[Any], ...] = (
            value.to_pylist(),
            key.to_pylist(),
            _millis(self._rows.column("timestamp")),
            _tuples(tags, _texts),
            _tuples(headers, _pairs),
            self.offsets.tolist(),
            _millis(self._rows.column("append_timestamp")),
        )
        return list(map(Record, *columns, repeat(partition), repeat(topic)))

    def record_batch(self, topic: str, partition: int, names: tuple[str, ...]) -> pa.RecordBatch:
        """As ``arrow.record_batch`` makes one of a batch."""
        same = {"topic": topic, "partition": partition}
        made = [
            pa.repeat(pa.scalar(same[name], COLUMN_TYPES[name]), len(self))
            if name in same
            else self._rows.column(name)
            for name in names
        ]
        schema = schema_of("" if "topic" in names else topic, names)
        return pa.RecordBatch.from_arrays(made, schema=schema)


def _millis(times: Any) -> list[int]:
    found: list[int] = times.cast(pa.int64()).to_pylist()
    return found


def _tuples(lists: Any, items_of: Callable[[Any], list[Any]]) -> Iterable[tuple[Any, ...]]:
    """Each list as a tuple; all items are converted at once, for one list at a time takes long."""
    items = lists.flatten()
    if not len(items):
        return repeat((), len(lists))
    ends = lists.offsets.to_numpy()
    flat = items_of(items)
    return (tuple(flat[start:end]) for start, end in pairwise((ends - ends[0]).tolist()))


def _texts(items: Any) -> list[str]:
    found: list[str] = items.to_pylist()
    return found


def _pairs(items: Any) -> list[tuple[str, bytes | None]]:
    names, values = items.flatten()
    return list(zip(names.to_pylist(), values.to_pylist(), strict=True))


def decode(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    names: Sequence[str] | None = None,
    limits: BatchLimits = READER_LIMITS,
) -> RowGroupRows:
    """The records of the row group at ``position``.

    CRCs are not checked here, ``batch.verify_producer_crc`` does that; wrong bytes under a right
    CRC are refused nevertheless.

    Args:
        buffer: Holds it.
        position: Where its frame begins.
        header: Of the frame.
        names: Only these columns, and the offsets; None = all.
        limits: Of what is decoded.

    Raises:
        CorruptBatchError: It is no Parquet file with the rows that the header promises.
        BatchTooLargeError: It has more bytes than a reader takes; nothing was decoded.
    """
    start = position + HEADER_LENGTH
    stored = memoryview(buffer)[start : start + pad8(header.payload_length)]
    if len(stored) != pad8(header.payload_length) or any(stored[header.payload_length :]):
        raise CorruptBatchError("a row group is cut short", position=position)
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(stored[: header.payload_length])))
        table = _read(file, header, _STORED if names is None else names, limits)
        rows = pa.RecordBatch.from_arrays(
            [_checked(table.column(name), name) for name in table.column_names],
            names=table.column_names,
        )
    except (pa.ArrowException, OSError, ValueError) as error:  # not UTF-8 is a ValueError
        raise CorruptBatchError(f"row group: {error}", position=position) from error
    made = RowGroupRows(rows)
    offsets, base, end = made.offsets, header.base_offset, header.end_offset
    is_within = len(offsets) and base <= offsets[0] and offsets[-1] < end
    if not is_within or bool((np.diff(offsets) <= 0).any()):
        raise CorruptBatchError(f"row group: its offsets are not in {base}..{end}")
    return made


def _read(file: Any, header: BatchHeader, names: Sequence[str], limits: BatchLimits) -> Any:
    metadata = file.metadata
    count, expected = metadata.num_rows, header.record_count
    if metadata.num_row_groups != 1 or count != expected or count > limits.records_max:
        raise CorruptBatchError(f"row group: {count} rows, the frame says {expected}")
    length = metadata.row_group(0).total_byte_size
    if length > limits.uncompressed_bytes_max:
        raise BatchTooLargeError(f"a row group of {length} bytes")
    wanted = [name for name in _STORED if name == "offset" or name in names]
    if missing := set(wanted).difference(metadata.schema.to_arrow_schema().names):
        raise CorruptBatchError(f"row group: there is no column {', '.join(sorted(missing))}")
    return file.read_row_group(0, columns=wanted, use_threads=False)


def _checked(column: Any, name: str) -> Any:
    """One array of the type that readers expect."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # the library keeps an empty one
        array = pa.concat_arrays(array.chunks)
    if name not in ("key", "value") and array.null_count:
        raise CorruptBatchError(f"row group: a null in {name}")
    made = array if array.type == COLUMN_TYPES[name] else array.cast(COLUMN_TYPES[name])
    if name in ("tags", "headers"):
        made.validate(full=True)  # Parquet's reader takes any bytes for text
    return made
