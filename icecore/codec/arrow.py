"""Arrow record batches to batches, and back over the same memory, without a copy of any value.

What is the same in every batch is made once: types, schemas, columns of nulls and of empty lists,
of which a batch takes a slice. In a batch of 256 KiB they would cost more than everything else.
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from icecore.codec.batch import Codec, ProducerFlag
from icecore.codec.columns import (
    BatchColumns,
    Headers,
    ListColumn,
    UInt64s,
    all_valid,
    hash_keys,
    now_ms,
)
from icecore.codec.hashes import header_hashes
from icecore.codec.key_hashing import hash_alike
from icecore.codec.record import Parts, bits_of, finish
from icecore.errors import InvalidRequestError

_MILLIS = pa.timestamp("ms", "UTC")
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TAGS, _HEADERS = pa.list_(pa.string()), pa.list_(_HEADER)
_FIELDS = [
    pa.field("offset", pa.int64()),
    pa.field("timestamp", _MILLIS),
    pa.field("append_timestamp", _MILLIS),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("tags", _TAGS),
    pa.field("headers", _HEADERS),
]


_WANTED = {
    "timestamp_ms": pa.int64(),
    "timestamp": _MILLIS,
    "key": pa.binary(),
    "value": pa.binary(),
    "tags": _TAGS,
    "headers": _HEADERS,
}
"""The columns of records to be encoded."""


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
    ends, no_items = pa.py_buffer(np.zeros(count + 1, "<i4")), pa.array([], type_.value_type)
    return pa.Array.from_buffers(type_, count, [None, ends], children=[no_items])


_NO_KEYS = _Same(lambda count: pa.nulls(count, pa.binary()))
_NO_TAGS = _Same(lambda count: _empty_lists(_TAGS, count))
_NO_HEADERS = _Same(lambda count: _empty_lists(_HEADERS, count))


# --- from batches -------------------------------------------------------------------------------


def record_batch(columns: BatchColumns, topic: str = "", partition: int = -1) -> pa.RecordBatch:
    """All records of a batch: offset, timestamp, append_timestamp, key, value, tags, headers.

    Args:
        columns: As ``decoding.decode`` returned them; their memory is shared.
        topic: For the schema's metadata, with the partition; none when empty.
        partition: Its number.
    """
    count = len(columns)
    keys = columns.keys
    return pa.RecordBatch.from_arrays(
        [
            _numbers(pa.int64(), columns.offsets),
            _numbers(_MILLIS, columns.timestamps),
            _numbers(_MILLIS, np.full(count, columns.append_timestamp_ms, "<i8")),
            _NO_KEYS.first(count) if keys is None else keys.to_arrow(),
            columns.values.to_arrow(),
            _tags(columns.tags, count),
            _headers(columns.headers, count),
        ],
        schema=_schema(topic, partition),
    )


@lru_cache(maxsize=4096)
def _schema(topic: str, partition: int) -> pa.Schema:
    about = {"topic": topic, "partition": str(partition)} if topic else None
    return pa.schema(_FIELDS, about)


def _numbers(type_: Any, numbers: Any) -> Any:
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


def _tags(tags: ListColumn | None, count: int) -> Any:
    if tags is None or tags.values is None:
        return _NO_TAGS.first(count)
    names = tags.values.to_arrow(pa.string()).take(pa.array(tags.items))
    return _lists(_TAGS, tags, names)


def _headers(headers: ListColumn | None, count: int) -> Any:
    if headers is None or headers.values is None:
        return _NO_HEADERS.first(count)
    parts = [headers.items.to_arrow(pa.string()), headers.values.to_arrow()]
    return _lists(_HEADERS, headers, pa.StructArray.from_arrays(parts, fields=list(_HEADER)))


def _lists(type_: Any, column: ListColumn, items: Any) -> Any:
    ends = pa.py_buffer(column.lists)
    return pa.Array.from_buffers(type_, len(column.lists) - 1, [None, ends], children=[items])


# --- to batches ---------------------------------------------------------------------------------


def checked(rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """The columns that ``encode`` looks at, in the types that it wants: it can't refuse them.

    Raises:
        InvalidRequestError: No ``value``, a column that cannot be cast, a null timestamp, tag or
            header name, or one name for two columns.
    """
    names = rows.schema.names
    if "value" not in names:
        raise InvalidRequestError("a record batch needs rows and a column named value")
    found: dict[str, Any] = {}
    for name, type_ in _WANTED.items():
        if names.count(name) > 1:
            raise InvalidRequestError(f"a record batch has two columns named {name}")
        if name in names:
            found[name] = _column(rows, name, type_)
    times = found.pop("timestamp", None)
    if "timestamp_ms" not in found:
        times = pa.repeat(now_ms, rows.num_rows) if times is None else times.cast(pa.int64())
        found["timestamp_ms"] = times
    _no_nulls(found["timestamp_ms"], "timestamp")
    if "tags" in found:
        _no_nulls(found["tags"].flatten(), "tag")
    if "headers" in found:
        names_of_headers, _ = _no_nulls(found["headers"].flatten(), "header").flatten()
        _no_nulls(names_of_headers, "header name")
    return pa.RecordBatch.from_pydict(found)


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
) -> bytes:
    """The same bytes as ``encode_columns`` from an Arrow record batch.

    Columns: ``value`` (binary), optional ``key`` (binary), ``timestamp_ms`` (int64) or
    ``timestamp`` (else now), ``tags`` (list<string>), ``headers`` (list<struct<key, value>>);
    others are ignored, other types are cast. ``indexed_headers``: whose hashes the batch holds.

    Raises:
        InvalidRequestError: No rows, no ``value``, a column that cannot be cast, a null timestamp,
            tag or header name.
    """
    count, schema = rows.num_rows, rows.schema.names
    if not count or "value" not in schema:
        raise InvalidRequestError("a record batch needs rows and a column named value")
    index, payload, flags = Parts(), Parts(), 0
    if "timestamp_ms" in schema:
        times = _column(rows, "timestamp_ms", pa.int64())
    elif "timestamp" in schema:
        times = _column(rows, "timestamp", _MILLIS).cast(pa.int64())
    else:
        times = pa.repeat(now_ms(), count)
    millis = _no_nulls(times, "timestamp").to_numpy()
    index.append(np.asarray(millis, "<i8").tobytes())
    keys = _column(rows, "key", pa.binary()) if "key" in schema else None
    if keys is None or keys.null_count == count:
        flags |= ProducerFlag.NO_KEYS
    else:
        _add_arrow(payload, keys)
        hashes = hash_of_keys(keys) if key_hashes is None else key_hashes
        index.add(payload[0])
        index.append(np.asarray(hashes, "<u8").tobytes())
    _add_arrow(payload, _column(rows, "value", pa.binary()))
    tags = _column(rows, "tags", _TAGS) if "tags" in schema else None
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
    headers = _column(rows, "headers", _HEADERS) if "headers" in schema else None
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
    return finish(index, payload, flags | hashes_flag, millis, codec, ids)


def hash_of_keys(keys: Any) -> UInt64s:
    """Of each key of a binary array; 0 of a null one."""
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


def _column(rows: pa.RecordBatch, name: str, type_: Any) -> Any:
    column = rows.column(name)
    if column.type == type_:
        return column
    if name == "timestamp_ms" and not pa.types.is_integer(column.type):
        raise InvalidRequestError(f"column {name} is {column.type}, not int64: milliseconds")
    try:
        return column.cast(type_, safe=False)
    except pa.ArrowException as error:
        raise InvalidRequestError(f"column {name} is not {type_}: {error}") from error


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
