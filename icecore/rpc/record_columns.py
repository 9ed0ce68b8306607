"""Columns of records as a message: what a node answers to a query that takes columns.

Numbers are little-endian bytes, because ten thousand of them as a packed field would become as many
objects on the way. Whoever reads them checks every length first.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from icecore.codec.columns import Headers, Int64s
from icecore.codec.record_columns import ByteStrings, RecordColumns
from icecore.errors import InternalError
from icecore.v1 import common_pb2, data_pb2


def to_proto(columns: RecordColumns) -> data_pb2.RecordColumns:
    """The message."""
    message = data_pb2.RecordColumns(
        offsets=_i64(columns.offsets),
        timestamps_ms=_i64(columns.timestamps_ms),
        append_timestamps_ms=_i64(columns.append_timestamps_ms),
        value_lengths=_i32(columns.values.lengths),
        values=columns.values.data,
    )
    if columns.keys is not None:
        message.key_lengths = _i32(columns.keys.lengths)
        message.keys = columns.keys.data
    if columns.tag_counts is not None and columns.tag_ids is not None:
        message.tag_counts = _i32(columns.tag_counts)
        message.tag_places = _i32(columns.tag_ids)
        message.tag_names.extend(columns.tag_names)
    if columns.headers is not None:
        message.header_counts = _i32(np.array([*map(len, columns.headers)], np.int64))
        for headers in columns.headers:
            for name, value in headers:
                message.headers.add(name=name, value=value)
    return message


def from_proto(message: data_pb2.RecordColumns) -> RecordColumns:
    """The columns.

    Raises:
        InternalError: They do not fit together.
    """
    offsets = _numbers("offsets", message.offsets, "<i8")
    count = len(offsets)
    if not count:
        raise InternalError("columns of no records in an answer")
    times = _numbers("timestamps", message.timestamps_ms, "<i8", count)
    appended = _numbers("append timestamps", message.append_timestamps_ms, "<i8", count)
    values = _strings("values", message.value_lengths, message.values, count)
    keys = None
    if message.key_lengths or message.keys:
        keys = _strings("keys", message.key_lengths, message.keys, count)
    counts = places = None
    names: Sequence[str] = ()
    if message.tag_counts or message.tag_places:
        names = list(message.tag_names)
        counts = _counts("tags", message.tag_counts, count)
        places = _numbers("tags", message.tag_places, "<i4", int(counts.sum()))
        if len(places) and not 0 <= places.min() <= places.max() < len(names):
            raise InternalError(f"a tag beyond the {len(names)} names of an answer")
    headers = None
    if message.header_counts or message.headers:
        headers = _headers(_counts("headers", message.header_counts, count), message.headers)
    return RecordColumns(offsets, times, appended, values, keys, counts, places, names, headers)


def _i64(numbers: Int64s) -> bytes:
    return numbers.astype("<i8", copy=False).tobytes()


def _i32(numbers: Int64s) -> bytes:
    return numbers.astype("<i4").tobytes()


def _numbers(what: str, data: bytes, kind: str, count: int | None = None) -> Int64s:
    """``count`` numbers, or as many as there are."""
    size = np.dtype(kind).itemsize
    if len(data) % size or (count is not None and len(data) != count * size):
        raise InternalError(f"{len(data)} bytes of {what} in an answer, where {count} are due")
    return np.frombuffer(data, kind).astype(np.int64)


def _counts(what: str, data: bytes, count: int) -> Int64s:
    counts = _numbers(f"counts of {what}", data, "<i4", count)
    if counts.min() < 0:
        raise InternalError(f"a record with {counts.min()} {what} in an answer")
    return counts


def _strings(what: str, lengths: bytes, data: bytes, count: int) -> ByteStrings:
    numbers = _numbers(f"lengths of {what}", lengths, "<i4", count)
    if numbers.min() < -1 or int(np.maximum(numbers, 0).sum()) != len(data):
        raise InternalError(
            f"{what} of {len(data)} bytes in an answer, whose lengths say otherwise"
        )
    return ByteStrings(numbers, data)


def _headers(counts: Int64s, headers: Sequence[common_pb2.Header]) -> list[Headers]:
    ends: list[Any] = [0, *np.cumsum(counts).tolist()]
    if ends[-1] != len(headers):
        raise InternalError(f"{len(headers)} headers in an answer, where {ends[-1]} are due")
    flat = [(each.name, each.value if each.HasField("value") else None) for each in headers]
    return [tuple(flat[low:high]) for low, high in pairwise(ends)]
