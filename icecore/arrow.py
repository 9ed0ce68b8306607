"""Decoded batches as Arrow record batches over the same memory, without a copy of any value.

What is the same in every batch is made once: types, schemas, columns of nulls and of empty lists,
of which a batch takes a slice. In a batch of 256 KiB they would cost more than everything else.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from icecore.columns import BatchColumns, ListColumn

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


class _Same:
    """A column of equal entries: one long array, of which each batch gets the start."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._longest = make(0)

    def first(self, count: int) -> Any:
        if count > len(self._longest):
            self._longest = self._make(1 << count.bit_length())
        return self._longest.slice(0, count)


def _empty_lists(type_: Any, count: int) -> Any:
    ends, no_items = pa.py_buffer(np.zeros(count + 1, "<i4")), pa.array([], type_.value_type)
    return pa.Array.from_buffers(type_, count, [None, ends], children=[no_items])


_NO_KEYS = _Same(lambda count: pa.nulls(count, pa.binary()))
_NO_TAGS = _Same(lambda count: _empty_lists(_TAGS, count))
_NO_HEADERS = _Same(lambda count: _empty_lists(_HEADERS, count))


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
