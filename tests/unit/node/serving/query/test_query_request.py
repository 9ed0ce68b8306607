"""Requests that ask for too much or for nonsense, and tokens that fit no question, are refused."""

import struct
from typing import Any

import google_crc32c
import pytest

from icecore.errors import InvalidRequestError
from icecore.v1 import common_pb2, data_pb2
from icecore_node.serving.query.query_request import PagePlace, checked_query, continuation

TOPIC = b"t" * 16


def request(**fields: Any) -> data_pb2.QueryRequest:
    fields.setdefault("partitions", [data_pb2.QueryPartition()])
    return data_pb2.QueryRequest(**fields)


def token(place: PagePlace, topic_id: bytes = TOPIC, **fields: Any) -> bytes:
    return continuation(checked_query(request(**fields), topic_id), place)


def partition(**fields: Any) -> list[data_pb2.QueryPartition]:
    return [data_pb2.QueryPartition(**fields)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"partitions": []}, "0 partitions in a query, 1 to 1024"),
        ({"partitions": 1025 * partition()}, "1025 partitions in a query, 1 to 1024"),
        ({"max_count": 10_001}, "max_count 10001 exceeds 10000: ask for more pages"),
        ({"max_bytes": (3 << 20) + 1}, "exceeds 3145728: ask for more pages"),
        ({"partitions": partition(from_offset=-1)}, "offsets from -1 to 0 are no range"),
        ({"partitions": partition(to_offset=-1)}, "offsets from 0 to -1 are no range"),
        ({"partitions": partition(from_offset=6, to_offset=5)}, "from 6 to 5 are no range"),
        ({"partitions": partition(segment_ids=range(10_001))}, "10001 segments in a query"),
        ({"filter": data_pb2.RecordFilter(keys=[b"%d" % n for n in range(1001)])}, "1001 keys"),
        ({"filter": data_pb2.RecordFilter(tags_none=["t"] * 101)}, "101 tags_none"),
        (
            {"filter": data_pb2.RecordFilter(headers=[common_pb2.Header(name="h")])},
            "the header 'h' of a filter has no value",
        ),
        (
            {"filter": data_pb2.RecordFilter(from_timestamp_ms=2, to_timestamp_ms=1)},
            "from_timestamp_ms 2 is not before to_timestamp_ms 1",
        ),
    ],
)
def test_what_is_too_much_or_no_range_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        checked_query(request(**fields), TOPIC)


def test_defaults() -> None:
    plan = checked_query(request(), TOPIC)
    assert (plan.max_count, plan.max_bytes, plan.start) == (100, 1 << 20, PagePlace())


@pytest.mark.parametrize("place", [PagePlace(), PagePlace(0, 0), PagePlace(1, 1 << 62)])
def test_a_token_leads_back_to_its_place(place: PagePlace) -> None:
    two = 2 * partition()
    known = token(place, partitions=two)
    again = request(partitions=two, continuation=known, max_count=7, max_bytes=7)
    assert checked_query(again, TOPIC).start == place


def test_the_order_of_conditions_does_not_matter() -> None:
    one = token(PagePlace(0, 5), filter=data_pb2.RecordFilter(keys=[b"a", b"b"]))
    other = data_pb2.RecordFilter(keys=[b"b", b"a", b"b"])
    assert checked_query(request(filter=other, continuation=one), TOPIC).start == PagePlace(0, 5)


@pytest.mark.parametrize(
    "fields",
    [
        {"newest_first": True},
        {"filter": data_pb2.RecordFilter(keys=[b"a"])},
        {"partitions": partition(partition=1)},
        {"partitions": partition(from_offset=1)},
        {"partitions": partition(segment_ids=[1])},
    ],
)
def test_a_token_of_another_request_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"another request.*ask again without it"):
        checked_query(request(continuation=token(PagePlace(0, 5)), **fields), TOPIC)


def test_a_token_of_another_topic_is_refused() -> None:
    foreign = token(PagePlace(0, 5), topic_id=b"u" * 16)
    with pytest.raises(InvalidRequestError, match="another request, or the topic is another one"):
        checked_query(request(continuation=foreign), TOPIC)


@pytest.mark.parametrize("bad", [b"x", bytes(25), bytes(24), b"\xff" * 25, b"x" * 100_000])
def test_a_malformed_token_is_refused(bad: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="ask again without it, from the start"):
        checked_query(request(continuation=bad), TOPIC)


def test_every_bit_of_a_token_counts() -> None:
    known = token(PagePlace(0, 5))
    for bit in range(8 * len(known)):
        bad = bytearray(known)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidRequestError):
            checked_query(request(continuation=bytes(bad)), TOPIC)


def forged(number: int, offset: int) -> bytes:
    known = token(PagePlace(0, 5))
    raw = known[:9] + struct.pack("<Iq", number, offset)
    return raw + struct.pack("<I", google_crc32c.value(raw))


@pytest.mark.parametrize(("number", "offset"), [(1, 0), (1 << 31, 0), (0, -2), (0, -(1 << 63))])
def test_a_forged_place_outside_of_the_request_is_refused(number: int, offset: int) -> None:
    with pytest.raises(InvalidRequestError, match="ask again without it"):
        checked_query(request(continuation=forged(number, offset)), TOPIC)
