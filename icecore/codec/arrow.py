"""Arrow record batches to batches, and back over the same memory, without a copy of any value.

What is the same in every batch is made once: types, schemas, columns of nulls and of empty lists,
of which a batch takes a slice. In a batch of 256 KiB they would cost more than everything else.
"""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from icecore.extras import explained

with explained():
    import pyarrow as pa

from icecore.codec.arrow_rows import HEADERS, MILLIS, TAGS, column_as
from icecore.codec.batch import Codec, LeaderFlag, ProducerFlag
from icecore.codec.columns import (
    BatchColumns,
    Headers,
    ListColumn,
    UInt64s,
    all_valid,
    hash_keys,
    now_ms,
)
from icecore.codec.hashes import hash_alike, header_hashes
from icecore.codec.record import Parts, bits_of, finish
from icecore.errors import InvalidRequestError

_FIELDS = [
    pa.field("offset", pa.int64()),
    pa.field("timestamp", MILLIS),
    pa.field("append_timestamp", MILLIS),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("tags", TAGS),
    pa.field("headers", HEADERS),
    pa.field("partition", pa.int32()),
    pa.field("schema_id", pa.int64()),
    pa.field("topic", pa.string()),
]
COLUMN_TYPES = {field.name: field.type for field in _FIELDS}
"""Type of each column that a record batch may have."""
COLUMNS = ("offset", "timestamp", "append_timestamp", "key", "value", "tags", "headers")
"""Columns of a record batch, unless others are asked for."""
TOPIC_COLUMNS = (*COLUMNS, "partition")
"""Default columns for the records of one topic."""
TOPICS_COLUMNS = (*TOPIC_COLUMNS, "topic")
"""Default columns for the records of several topics."""


class _Same:
    """A column of equal entries: one long array, of which each batch gets the start."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._longest = make(0)

    def first(self, count: int) -> Any:
        longest = self._longest  # another thread may put a shorter one there meanwhile
        if count > len(longest):
            longest = self._longest = self._make(1 << count.bit_length())
        return longest.slice(0, count)


def _empty_lists(type_: Any, count: int) -> Any:
    # Not pa.array([]): that imports pandas, which doubles the time of this import.
    ends, no_items = pa.py_buffer(np.zeros(count + 1, "<i4")), pa.nulls(0, type_.value_type)
    return pa.Array.from_buffers(type_, count, [None, ends], children=[no_items])


_NO_KEYS = _Same(lambda count: pa.nulls(count, pa.binary()))
_NO_TAGS = _Same(lambda count: _empty_lists(TAGS, count))
_NO_HEADERS = _Same(lambda count: _empty_lists(HEADERS, count))


# --- from batches -------------------------------------------------------------------------------


def check_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Columns of ``record_batch`` that somebody asks for; those of a topic for None.

    Raises:
        InvalidRequestError: There is no such column, or one is named twice.
    """
    if names is None:
        return TOPIC_COLUMNS
    known = [field.name for field in _FIELDS]
    for name in names:
        if name not in known or list(names).count(name) > 1:
            raise InvalidRequestError(f"column {name!r}: each at most once of {', '.join(known)}")
    return tuple(names)


def names_of(topic: str) -> tuple[str, ...]:
    """Columns of the records of a topic, or of several when there is no name."""
    return TOPIC_COLUMNS if topic else TOPICS_COLUMNS


def record_batch(
    columns: BatchColumns,
    topic: str = "",
    partition: int = -1,
    names: tuple[str, ...] = COLUMNS,
    schema_id: int = 0,
) -> pa.RecordBatch:
    """All records of a batch: offset, timestamp, append_timestamp, key, value, tags, headers.

    Args:
        columns: As ``decoding.decode`` returned them; their memory is shared.
        topic: For the schema's metadata, or the column of this name; there are no metadata with
            that column, and when it is empty.
        partition: Its number.
        names: Only these columns, in this order.
        schema_id: Of the batch, for the column of this name.
    """
    made = [
        pa.repeat(topic, len(columns))
        if name == "topic"
        else _column_of(name, columns, partition, schema_id)
        for name in names
    ]
    schema = schema_of("" if "topic" in names else topic, names)
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _column_of(name: str, columns: BatchColumns, partition: int, schema_id: int) -> Any:
    count = len(columns)
    match name:
        case "offset":
            return _numbers(pa.int64(), columns.offsets)
        case "timestamp":
            return _numbers(MILLIS, columns.timestamps)
        case "append_timestamp":
            return _numbers(MILLIS, columns.append_timestamps)
        case "key":
            return _NO_KEYS.first(count) if columns.keys is None else columns.keys.to_arrow()
        case "value":
            return columns.values.to_arrow()
        case "tags":
            return _tags(columns.tags, count)
        case "headers":
            return _headers(columns.headers, count)
        case "partition":
            return _partitions(partition).first(count)
    return _numbers(pa.int64(), np.full(count, schema_id, "<i8"))


@lru_cache(maxsize=4096)
def schema_of(topic: str, names: tuple[str, ...] = TOPIC_COLUMNS) -> pa.Schema:
    """Return the schema of the records of a topic, the same for all its partitions."""
    fields = {field.name: field for field in _FIELDS}
    return pa.schema([fields[name] for name in names], {"topic": topic} if topic else None)


@lru_cache(maxsize=4096)
def _partitions(partition: int) -> _Same:
    return _Same(lambda count: pa.repeat(pa.scalar(partition, pa.int32()), count))


def _numbers(type_: Any, numbers: Any) -> Any:
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


def _tags(tags: ListColumn | None, count: int) -> Any:
    if tags is None or tags.values is None:
        return _NO_TAGS.first(count)
    names = tags.values.to_arrow(pa.string()).take(pa.array(tags.items))
    return _lists(TAGS, tags, names)


def _headers(headers: ListColumn | None, count: int) -> Any:
    if headers is None or headers.values is None:
        return _NO_HEADERS.first(count)
    parts = [headers.items.to_arrow(pa.string()), headers.values.to_arrow()]
    return _lists(
        HEADERS, headers, pa.StructArray.from_arrays(parts, fields=list(HEADERS.value_type))
    )


def _lists(type_: Any, column: ListColumn, items: Any) -> Any:
    ends = pa.py_buffer(column.lists)
    return pa.Array.from_buffers(type_, len(column.lists) - 1, [None, ends], children=[items])


# --- to batches ---------------------------------------------------------------------------------


def encode(
    rows: pa.RecordBatch,
    *,
    key_hashes: Any = None,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    schema_id: int = 0,
    indexed_headers: Collection[str] = (),
    offset_deltas: Any = None,
) -> bytes:
    """The same bytes as ``encode_columns`` from an Arrow record batch.

    Columns: ``value`` (binary), optional ``key`` (binary), ``timestamp_ms`` (int64) or
    ``timestamp`` (else now), ``tags`` (list<string>), ``headers`` (list<struct<key, value>>);
    others are ignored, other types are cast. ``indexed_headers``: whose hashes the batch holds;
    ``offset_deltas``: relative to the base offset, of a batch that is to count as compacted.

    Raises:
        InvalidRequestError: No rows, no ``value``, a column that cannot be cast, a null timestamp,
            tag or header name.
    """
    count, schema = rows.num_rows, rows.schema.names
    if not count or "value" not in schema:
        raise InvalidRequestError("a record batch needs rows and a column named value")
    index, payload, flags = Parts(), Parts(), 0
    millis = _no_nulls(_times(rows), "timestamp").to_numpy()
    leader_flags = 0
    if offset_deltas is not None:
        index.add(np.asarray(offset_deltas, "<i4").tobytes())
        leader_flags = LeaderFlag.COMPACTED
    index.append(np.asarray(millis, "<i8").tobytes())
    keys = column_as(rows, "key", pa.binary()) if "key" in schema else None
    if keys is None or keys.null_count == count:
        flags |= ProducerFlag.NO_KEYS
    else:
        _add_arrow(payload, keys)
        hashes = hash_of_keys(keys) if key_hashes is None else key_hashes
        index.add(payload[0])
        index.append(np.asarray(hashes, "<u8").tobytes())
    _add_arrow(payload, column_as(rows, "value", pa.binary()))
    tags = column_as(rows, "tags", TAGS) if "tags" in schema else None
    if tags is None or not len(tags.flatten()):
        flags |= ProducerFlag.NO_TAGS
    else:
        encoded = _no_nulls(tags.flatten(), "tag").dictionary_encode()
        names = Parts()
        _add_arrow(names, encoded.dictionary, with_validity=False)
        text_bytes = int(np.frombuffer(names[0], "<i4")[-1])
        index.add(np.array([len(encoded.dictionary), text_bytes], "<u4").tobytes())
        index.extend(names)
        _add_list_offsets(index, tags)
        index.add(encoded.indices.to_numpy().astype("<u4").tobytes())
    headers = column_as(rows, "headers", HEADERS) if "headers" in schema else None
    hashes_flag: int = ProducerFlag.NO_HEADER_HASHES
    if headers is None or not len(headers.flatten()):
        flags |= ProducerFlag.NO_HEADERS
    else:
        header_names, header_values = _no_nulls(headers.flatten(), "header").flatten()
        if indexed_headers:
            hashes_flag = index.add_header_hashes(header_hashes(_pairs(headers), indexed_headers))
        _add_list_offsets(payload, headers)
        _add_arrow(payload, _no_nulls(header_names, "header name"), with_validity=False)
        _add_arrow(payload, header_values)
    ids = (producer_id, base_sequence, producer_epoch, schema_id)
    return finish(index, payload, flags | hashes_flag, millis, codec, ids, leader_flags)


def _times(rows: pa.RecordBatch) -> Any:
    """Event times in ms; now where there are none."""
    names = rows.schema.names
    if "timestamp_ms" in names:
        return column_as(rows, "timestamp_ms", pa.int64())
    if "timestamp" in names:
        return column_as(rows, "timestamp", MILLIS).cast(pa.int64())
    return pa.repeat(now_ms(), rows.num_rows)


def hash_of_keys(keys: Any) -> UInt64s:
    """Hash each key of a binary array; 0 for a null key."""
    _, offset_buffer, data = keys.buffers()
    if not keys.null_count and data is not None:
        offsets = np.frombuffer(offset_buffer, "<i4", len(keys) + 1, 4 * keys.offset)
        found = hash_alike(data, offsets)
        if found is not None:
            return found
    return hash_keys(keys.to_pylist())


def _pairs(headers: Any) -> list[Headers]:
    """Name and value of each header of each record."""
    return [
        tuple((each["key"], each["value"]) for each in row or ()) for row in headers.to_pylist()
    ]


def _no_nulls(array: Any, name: str) -> Any:
    if array.null_count:
        raise InvalidRequestError(f"a {name} is null")
    return array


def _add_list_offsets(parts: Parts, lists: Any) -> None:
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    parts.add_offsets(lengths, len(lists))


def _add_arrow(parts: Parts, array: Any, *, with_validity: bool = True) -> None:
    """Like ``add_binary``; slices of larger arrays are cut to what they hold."""
    count = len(array)
    if with_validity:
        parts.add(bits_of(array.is_valid()) if array.null_count else all_valid(count))
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, "<i4", count + 1, 4 * array.offset)
    parts.add((offsets - offsets[0]).astype("<i4").tobytes())
    parts.add(memoryview(data)[offsets[0] : offsets[-1]] if data is not None else b"")
