"""Columns of records as a message: what went in comes out, and what does not fit is refused."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.codec.columns import Record
from icecore.codec.record_columns import columns_of, joined
from icecore.errors import InternalError
from icecore.rpc.record_columns import from_proto, to_proto
from icecore.v1 import data_pb2

RECORDS = st.lists(
    st.builds(
        Record,
        value=st.sampled_from((None, b"", b"value", b"longer value")),
        key=st.sampled_from((None, b"", b"a", b"\xff\xfe")),
        timestamp_ms=st.integers(-(1 << 63), (1 << 63) - 1),
        tags=st.lists(st.sampled_from(("", "x", "ü" * 40)), max_size=3).map(tuple),
        headers=st.lists(st.sampled_from((("h", b"1"), ("h", None), ("ü", b""))), max_size=2).map(
            tuple
        ),
        offset=st.integers(0, 1 << 62),
        append_timestamp_ms=st.integers(0, 1 << 62),
        partition=st.just(3),
        topic=st.just("t"),
    ),
    min_size=1,
    max_size=12,
)


@given(st.lists(RECORDS, min_size=1, max_size=4), st.integers(1, 12))
def test_what_goes_in_comes_out(parts: list[list[Record]], count: int) -> None:
    columns = joined([columns_of(records) for records in parts])
    message = data_pb2.RecordColumns.FromString(to_proto(columns).SerializeToString())
    every = [each for records in parts for each in records]
    assert from_proto(message).to_records(topic="t", partition=3) == every
    assert columns.first(count).to_records(topic="t", partition=3) == every[:count]


def whole() -> data_pb2.RecordColumns:
    one = Record(b"v", b"k", 1, ("x",), (("h", b"1"),), 5, 6)
    return to_proto(columns_of([one, one]))


def i32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


BROKEN: dict[str, Callable[[data_pb2.RecordColumns], object]] = {
    "no records": lambda it: it.ClearField("offsets"),
    "where 2 are due": lambda it: setattr(it, "timestamps_ms", bytes(8)),
    "append timestamps": lambda it: setattr(it, "append_timestamps_ms", bytes(17)),
    "lengths of values": lambda it: setattr(it, "value_lengths", i32(1)),
    "values of 2 bytes": lambda it: setattr(it, "value_lengths", i32(1, 2)),
    "keys of 3 bytes": lambda it: setattr(it, "keys", b"abc"),
    "keys of 2 bytes": lambda it: setattr(it, "key_lengths", i32(4, -2)),
    "-1 tags": lambda it: setattr(it, "tag_counts", i32(3, -1)),
    "4 bytes of tags": lambda it: setattr(it, "tag_places", i32(0)),
    "a tag beyond the 1": lambda it: setattr(it, "tag_places", i32(0, 1)),
    "a tag beyond": lambda it: setattr(it, "tag_places", i32(-1, 0)),
    "0 bytes of lengths of keys": lambda it: it.ClearField("key_lengths"),
    "0 bytes of counts of tags": lambda it: it.ClearField("tag_counts"),
    "0 bytes of counts of headers": lambda it: it.ClearField("header_counts"),
    "2 headers": lambda it: setattr(it, "header_counts", i32(1, 2)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_does_not_fit_is_refused(what: str) -> None:
    message = whole()
    BROKEN[what](message)
    with pytest.raises(InternalError, match=what):
        from_proto(message)
