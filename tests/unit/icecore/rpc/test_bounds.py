"""Requests are counted before they become objects, and nothing honest is refused."""

import asyncio
import threading
import time
from typing import Any

import pytest

from icecore.errors import InvalidRequestError
from icecore.rpc import bounds, framing
from icecore.rpc.bounds import bound_of, bounded
from icecore.rpc.methods import ADMIN, DATA, NODE
from icecore.rpc.ports import Admitted, Body, CallContext, DirectHandler, Handlers, Received
from icecore.v1 import admin_pb2, common_pb2, coordinator_pb2, data_pb2

CALL = CallContext("peer", "anonymous", None)


async def answer(_: Received, __: CallContext) -> bytes:
    return b"answer"


def admit(_: bytes, __: int, ___: CallContext) -> Admitted | Body:
    return b"admitted"


METHODS = (
    *(DATA["Fetch"], DATA["ListOffsets"], DATA["Query"], DATA["InitProducer"]),
    *(ADMIN["GetMetadata"], ADMIN["ListSegments"], ADMIN["CreateTopic"]),
    *(NODE["Fence"], "/t.T/other"),
)
HANDLERS = bounded(
    Handlers(
        unary=dict.fromkeys(METHODS, answer),
        streams={},
        direct={DATA["Produce"]: DirectHandler(data_pb2.ProduceRequest, admit)},
    )
)


async def call(method: str, body: bytes) -> Body:
    return await HANDLERS.unary[method](body, CALL)


def produce(header: data_pb2.ProduceHeader | bytes) -> Body | Admitted:
    raw = header if isinstance(header, bytes) else header.SerializeToString()
    return HANDLERS.direct[DATA["Produce"]].admit(raw, 0, CALL)


def lists_of(method: str, count: int) -> bytes:
    """A request with so many items in its list."""
    if method == DATA["Fetch"]:
        header = data_pb2.FetchHeader(partitions=[data_pb2.FetchPartition()] * count)
        return data_pb2.FetchRequest(header=header).SerializeToString()
    if method == DATA["ListOffsets"]:
        items = [data_pb2.ListOffsetsPartition(earliest=True)] * count
        return data_pb2.ListOffsetsRequest(partitions=items).SerializeToString()
    if method == DATA["InitProducer"]:
        return data_pb2.InitProducerRequest(topics=["t"] * count).SerializeToString()
    if method == ADMIN["ListSegments"]:
        return admin_pb2.ListSegmentsRequest(partitions=range(count)).SerializeToString()
    return admin_pb2.GetMetadataRequest(topics=["t"] * count).SerializeToString()


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (DATA["Fetch"], bounds.PARTITIONS_MAX),
        (DATA["ListOffsets"], bounds.PARTITIONS_MAX),
        (DATA["InitProducer"], bounds.NAMED_TOPICS_MAX),
        (ADMIN["GetMetadata"], bounds.TOPICS_MAX),
    ],
)
async def test_lists_are_as_long_as_their_bound_and_no_longer(method: str, count: int) -> None:
    assert await call(method, lists_of(method, count)) == b"answer"
    with pytest.raises(InvalidRequestError, match=f"more than {count}"):
        await call(method, lists_of(method, count + 1))


async def test_packed_lists_are_counted_by_their_bytes() -> None:
    method = ADMIN["ListSegments"]
    assert await call(method, lists_of(method, 5_000)) == b"answer"
    with pytest.raises(InvalidRequestError, match="partitions"):
        await call(method, lists_of(method, 50_000))


async def test_requests_are_as_large_as_their_method_allows() -> None:
    method, limit = ADMIN["CreateTopic"], 4 << 20
    assert await call(method, b"\x0a\x00" * 10) == b"answer"
    with pytest.raises(InvalidRequestError, match="larger than max 4194304"):
        await call(method, bytes(limit + 1))
    assert await call("/t.T/other", bytes(limit + 1)) == b"answer"


async def test_fields_are_counted_at_any_depth() -> None:
    """Also those that are no lists: each costs time."""
    numbers = b"\x18\x01" * (bounds.FIELDS_MAX + 1)  # FetchPartition.partition again and again
    entry = b"\x32" + _length(numbers)
    body = b"\x0a" + _length(entry)
    with pytest.raises(InvalidRequestError, match="fields in a request"):
        await call(DATA["Fetch"], body)


def _length(data: bytes) -> bytes:
    value, out = len(data), bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value]) + data


async def test_groups_hide_nothing() -> None:
    body = b"\x0b" + b"\x0a\x00" * 200_000 + b"\x0c"
    with pytest.raises(InvalidRequestError, match="groups"):
        await call(ADMIN["GetMetadata"], body)


@pytest.mark.parametrize("body", [b"\xff" * 300_000, b"\x0a\xff" * 20_000, bytes(20_000)])
async def test_what_is_no_message_is_left_to_the_parser_or_refused(body: bytes) -> None:
    try:
        assert await call(ADMIN["GetMetadata"], body) == b"answer"
    except InvalidRequestError:
        return


async def test_others_have_their_turn_while_a_long_request_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, may_end = bounds._count, threading.Event()

    def patient(*given: Any) -> None:
        assert may_end.wait(30), "nobody else had a turn"
        count(*given)

    monkeypatch.setattr(bounds, "_count", patient)
    began = asyncio.ensure_future(
        call(DATA["Fetch"], lists_of(DATA["Fetch"], bounds.PARTITIONS_MAX))
    )
    for _ in range(5):
        await asyncio.sleep(0)
        assert not began.done()
    may_end.set()
    assert await began == b"answer"


def test_entries_records_and_labels_of_produce_are_counted() -> None:
    entry = data_pb2.ProducePartition
    limit = bounds.PRODUCED_PARTITIONS_MAX
    assert produce(data_pb2.ProduceHeader(partitions=[entry()] * limit)) == b"admitted"
    with pytest.raises(InvalidRequestError, match=f"more than {limit} partitions"):
        produce(data_pb2.ProduceHeader(partitions=[entry()] * (limit + 1)))

    def of(*records: common_pb2.Record) -> data_pb2.ProduceHeader:
        return data_pb2.ProduceHeader(partitions=[entry(records=records)])

    plain = common_pb2.Record(value=b"v")
    assert produce(of(*[plain] * bounds.CLEAR_RECORDS_MAX)) == b"admitted"
    with pytest.raises(InvalidRequestError, match="more than 10000 records"):
        produce(of(*[plain] * (bounds.CLEAR_RECORDS_MAX + 1)))
    with pytest.raises(InvalidRequestError, match="more than 100000 tags"):
        produce(of(common_pb2.Record(tags=["t"] * (bounds.LABELS_MAX + 1))))
    headers = [common_pb2.Header()] * (bounds.LABELS_MAX + 1)
    with pytest.raises(InvalidRequestError, match="more than 100000 headers"):
        produce(of(common_pb2.Record(headers=headers)))


def test_a_million_empty_entries_cost_milliseconds() -> None:
    began_s = time.process_time()
    with pytest.raises(InvalidRequestError):
        produce(b"\x22\x00" * 1_000_000)
    assert time.process_time() - began_s < 0.1


def test_only_reads_of_clients_may_be_stopped() -> None:
    assert bound_of(DATA["Fetch"]).is_read
    assert bound_of(ADMIN["GetMetadata"]).is_read
    for method in (DATA["Produce"], DATA["InitProducer"], ADMIN["CreateTopic"], NODE["Fence"]):
        assert not bound_of(method).is_read


def test_a_bulk_message_comes_in_few_parts() -> None:
    """Those that are framed in another way are understood, but not as a million headers."""
    header = data_pb2.ProduceHeader(timeout_ms=5)
    parts = b"\x0a" + _length(header.SerializeToString())
    read, batches = framing.split_bulk(parts * 3, data_pb2.ProduceRequest)
    assert data_pb2.ProduceHeader.FromString(read) == header
    assert not batches
    with pytest.raises(InvalidRequestError, match="more than 64 parts"):
        framing.split_bulk(parts * 100_000, data_pb2.ProduceRequest)


BETWEEN_SERVERS = [
    (f"/icecore.v1.{service.name}/{method.name}", each)
    for service in coordinator_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name not in ("Heartbeat", "Register")
    for each in method.input_type.fields
    if each.is_repeated
]


@pytest.mark.parametrize(
    ("method", "field"), BETWEEN_SERVERS, ids=lambda each: getattr(each, "name", each)
)
async def test_each_list_between_servers_has_a_bound(method: str, field: Any) -> None:
    """Empty items of a few bytes cost a coordinator gigabytes once they are objects."""
    handler = bounded(Handlers(unary={method: answer}, streams={})).unary[method]

    def request(count: int) -> bytes:
        if field.message_type is None and field.type not in (field.TYPE_BYTES, field.TYPE_STRING):
            packed = b"\x01" * count
            return encoded(field.number << 3 | 2) + encoded(count) + packed
        return (encoded(field.number << 3 | 2) + b"\x00") * count

    assert await handler(request(bounds.SERVER_ITEMS_MAX), CALL) == b"answer"
    with pytest.raises(InvalidRequestError, match="more than 4096"):
        await handler(request(bounds.SERVER_ITEMS_MAX + 1), CALL)


def encoded(number: int) -> bytes:
    """As protobuf writes a number."""
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def test_calls_between_servers_take_no_fair_turns() -> None:
    assert not bound_of(NODE["Fence"]).is_for_clients and bound_of(DATA["Fetch"]).is_for_clients
