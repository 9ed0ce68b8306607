"""Nodes answer queries and filtered fetches alike over both transports, each for what it holds."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from icecore import Admin, Consumer, Producer
from icecore.codec import batch, record
from icecore.codec.columns import Record
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError, NotReplicaError, UnknownTopicError
from icecore.model import NodeInfo
from icecore.rpc import convert, framing
from icecore.rpc.addresses import Transport, peer_address
from icecore.rpc.ports import Body, join
from icecore.rpc.transports import Transports
from icecore.v1 import data_pb2

TOPIC = "finding"
RECORDS = 800
UNKNOWN = UnknownTopicError.reason
TRANSPORTS: tuple[Transport, ...] = ("grpc", "native")


class Caller:
    """Asks each node, by one transport."""

    def __init__(self, nodes: list[NodeInfo], transport: Transport) -> None:
        self.addresses = [
            peer_address(each, "auto" if transport == "native" else transport) for each in nodes
        ]
        self._net = Transports()

    async def _call(self, address: str, method: str, body: Body) -> bytes:
        return bytes(
            await self._net.call(address, f"/icecore.v1.DataService/{method}", body, timeout_s=30)
        )

    async def query(self, address: str, **fields: Any) -> list[data_pb2.QueryResponse]:
        """All pages."""
        fields.setdefault("partitions", [data_pb2.QueryPartition()])
        request = data_pb2.QueryRequest(topic=TOPIC, **fields)
        pages: list[data_pb2.QueryResponse] = []
        while not pages or request.continuation:
            body = await self._call(address, "Query", request.SerializeToString())
            pages.append(data_pb2.QueryResponse.FromString(body))
            request.continuation = pages[-1].continuation
        return pages

    async def until_heard(self, address: str) -> None:
        """Nodes hear of topics of which they hold nothing a heartbeat later."""
        async with asyncio.timeout(30):
            while True:
                pages = await self.query(address, max_count=RECORDS)
                errors = {each.error.reason for page in pages for each in page.partitions}
                if UNKNOWN not in errors:
                    return
                await asyncio.sleep(0.05)

    async def fetch(
        self, offset: int, wanted: data_pb2.RecordFilter
    ) -> tuple[data_pb2.FetchPartitionResult, bytes]:
        """Fetch from the first node that has this offset."""
        entry = data_pb2.FetchPartition(topic=TOPIC, offset=offset, filter=wanted)
        header = data_pb2.FetchHeader(partitions=[entry], max_bytes=1 << 20)
        request = data_pb2.FetchRequest(header=header).SerializeToString()
        for address in self.addresses:
            body = await self._call(address, "Fetch", request)
            head, batches = framing.split_bulk(join(body), data_pb2.FetchResponse)
            (result,) = data_pb2.FetchResponseHeader.FromString(head).partitions
            error = convert.error_from_proto(result.error)
            if error is None:
                return result, bytes(batches)
            assert isinstance(error, NotReplicaError | UnknownTopicError), error
        raise AssertionError(f"nobody has offset {offset}")

    async def close(self) -> None:
        await self._net.close()


@pytest.fixture(scope="module")
def log(shared_cluster: LocalCluster) -> list[Record]:
    """All records, in order."""
    return asyncio.run(produced(shared_cluster))


async def produced(cluster: LocalCluster) -> list[Record]:
    """Several sealed segments on two of three nodes, and an active one."""
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=2, segment_bytes=65_536)
        rng = random.Random(1)
        for number in range(RECORDS):
            producer.send(
                TOPIC,
                rng.randbytes(500),
                key=b"key-%d" % (number % 97),
                tags=[f"tag-{number % 5}"],
                timestamp_ms=number,
            )
            if number % 10 == 9:
                await producer.flush()
        assert len(await admin.list_segments(TOPIC)) > 2
        async with Consumer(cluster.bootstrap, TOPIC, stop_at_end=True) as consumer:
            return [each async for each in consumer]


@pytest.fixture(params=TRANSPORTS)
async def caller(
    request: pytest.FixtureRequest, shared_cluster: LocalCluster, log: list[Record]
) -> AsyncIterator[Caller]:
    async with Admin(shared_cluster.bootstrap) as admin:
        nodes = [each.node for each in (await admin.describe_cluster()).nodes]
    caller = Caller(nodes, request.param)
    yield caller
    await caller.close()


WANTED = data_pb2.RecordFilter(keys=[b"key-7", b"key-8"], tags_any=["tag-2", "tag-3"])


def matching(log: list[Record]) -> list[int]:
    keys, tags = set(WANTED.keys), set(WANTED.tags_any)
    return [each.offset for each in log if each.key in keys and tags.intersection(each.tags)]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_nodes_find_what_they_hold_and_say_what_they_do_not(
    caller: Caller, log: list[Record], newest_first: bool
) -> None:
    everywhere: set[int] = set()
    for address in caller.addresses:
        await caller.until_heard(address)
        pages = await caller.query(address, filter=WANTED, newest_first=newest_first, max_count=2)
        results = [result for page in pages for result in page.partitions]
        if reasons := {each.error.reason for each in results if each.HasField("error")}:
            assert reasons == {"NOT_REPLICA"}  # it holds no segment of the topic
            assert not any(page.complete for page in pages)
            continue
        found = [each.offset for result in results for each in result.records]
        assert found == sorted(set(found), reverse=newest_first)
        elsewhere = {
            offset
            for result in results
            for each in result.segments
            if each.outcome == data_pb2.SEARCH_OUTCOME_ELSEWHERE
            for offset in range(each.base_offset, each.end_offset)
        }
        assert all(page.complete for page in pages) == (not elsewhere)
        end = max(result.indexed_through_offset for result in results)
        expected = [each for each in matching(log) if each not in elsewhere and each < end]
        assert sorted(found) == expected
        everywhere |= set(found)
    assert sorted(everywhere) == matching(log)


async def test_a_filtered_fetch_gives_what_a_plain_filter_leaves(
    caller: Caller, log: list[Record]
) -> None:
    found: list[int] = []
    offset = 0
    while offset < len(log):
        result, batches = await asyncio.wait_for(caller.fetch(offset, WANTED), 30)
        assert result.next_offset > offset
        for position, header in batch.iter_batches(batches):
            found += record.decode(batches, position, header).offsets.tolist()
        offset = result.next_offset
    assert found == matching(log)


async def test_nonsense_is_refused_and_what_is_unknown_is_named(caller: Caller) -> None:
    address = caller.addresses[0]
    for fields in (
        {"max_count": 10_001},
        {"continuation": b"forged"},
        {"partitions": [data_pb2.QueryPartition(from_offset=2, to_offset=1)]},
    ):
        with pytest.raises(InvalidRequestError):
            await caller.query(address, **fields)
    (page,) = await caller.query(address, partitions=[data_pb2.QueryPartition(partition=9)])
    assert page.partitions[0].error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
    assert not page.complete
