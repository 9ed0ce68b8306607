"""Segments without replicas are read by the nodes that the coordinator names; nobody notices."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Lookup, Producer
from icecore.client.types import SearchOutcome
from tests.support.fake_cluster import FakeCluster, FakePartition


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as cluster:
        yield cluster


async def chain(cluster: FakeCluster, segments: int) -> FakePartition:
    """Ten records in each segment; node 1 leads the last one."""
    partition = cluster.add_topic("t")[0]
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for number in range(segments):
            if number:
                partition.open(1, (1,))
            values = [b"%d" % at for at in range(10 * number, 10 * number + 10)]
            await producer.send_batch("t", values, partition=0)
    return partition


async def read(cluster: FakeCluster, count: int, **fields: Any) -> list[int]:
    found: list[int] = []
    async with Consumer(
        cluster.bootstrap, "t", net=cluster.net, max_wait_ms=100, start="earliest", **fields
    ) as consumer:
        async for each in consumer:
            found.append(int(each.value or b""))
            if len(found) == count:
                return found
    return found


async def test_from_object_storage_to_the_tail_without_gap(cluster: FakeCluster) -> None:
    partition = await chain(cluster, 6)
    for at, readers in enumerate([(2,), (3, 2), (2,), (3,)]):
        partition.drop_replicas(at, readers)
    async with asyncio.timeout(10):
        assert await read(cluster, 60) == list(range(60))
    assert len([each for _, each in cluster.calls if each == "ListSegments"]) <= 12


async def test_segments_that_leave_while_they_are_read(cluster: FakeCluster) -> None:
    partition = await chain(cluster, 8)
    found: list[int] = []
    async with (
        asyncio.timeout(20),
        Consumer(
            cluster.bootstrap,
            "t",
            net=cluster.net,
            max_wait_ms=100,
            start="earliest",
            fetch_bytes=1,
        ) as consumer,
    ):
        async for each in consumer:
            found.append(int(each.value or b""))
            if each.offset % 10 == 5 and each.offset < 70:
                partition.drop_replicas(each.offset // 10, (2,))
                partition.drop_replicas(min(each.offset // 10 + 1, 6), (3,))
            if len(found) == 80:
                break
    assert found == list(range(80))


async def test_a_reader_that_is_down_is_replaced(cluster: FakeCluster) -> None:
    partition = await chain(cluster, 3)
    partition.drop_replicas(0, (9, 2))
    partition.drop_replicas(1, (3,))
    async with asyncio.timeout(10):
        assert await read(cluster, 30) == list(range(30))


@pytest.mark.parametrize("newest_first", [False, True])
async def test_look_ups_ask_those_nodes(cluster: FakeCluster, newest_first: bool) -> None:
    partition = await chain(cluster, 4)
    partition.drop_replicas(0, (2,))
    partition.drop_replicas(1, (3, 2))
    async with Lookup(cluster.bootstrap, "t", net=cluster.net, patience_s=1) as lookup:
        page = await lookup.find(max_count=100, newest_first=newest_first)
        assert page.complete
        assert sorted(each.offset for each in page.records) == list(range(40))
        assert {each.outcome for each in page.segments} == {SearchOutcome.SCAN}
        partition.drop_replicas(2, (2,))
        page = await lookup.find(max_count=100, newest_first=newest_first)
        assert page.complete and len(page.records) == 40


async def test_times_are_looked_up_there(cluster: FakeCluster) -> None:
    partition = await chain(cluster, 4)
    for at in range(3):
        partition.drop_replicas(at, (2,))
    start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1010)
    async with (
        asyncio.timeout(10),
        Consumer(cluster.bootstrap, "t", net=cluster.net, max_wait_ms=100, start=start) as consumer,
    ):
        async for each in consumer:
            assert each.offset == 10
            break
