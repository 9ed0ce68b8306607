"""Reading a range of offsets, and some columns of it: what a task of a larger program does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from icecore.errors import InvalidRequestError, OffsetOutOfRangeError
from tests.support.fake_cluster import FakeCluster


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=2) as cluster:
        cluster.add_topic("t", 2)
        async with Producer(cluster.bootstrap, net=cluster.net, batch_bytes=1 << 20) as producer:
            for start in (0, 10, 20):
                values = [b"%d" % n for n in range(start, start + 10)]
                await producer.send_batch("t", values, keys=values, partition=1)
        async with asyncio.timeout(30):
            yield cluster


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    return Consumer(
        cluster.bootstrap, "t", net=cluster.net, max_wait_ms=50, partitions=[1], **kwargs
    )


@pytest.mark.parametrize(("start", "end"), [(0, 30), (0, 7), (5, 25), (10, 20), (29, 30), (4, 4)])
async def test_a_range(cluster: FakeCluster, start: int, end: int) -> None:
    async with consumer(cluster, start=start, until=end) as c:
        assert [record.offset async for record in c] == list(range(start, end))
    async with consumer(cluster, start=start, until=end) as c:
        batches = [each async for each in c.batches(["offset"])]
        assert [n for each in batches for n in each.column(0).to_pylist()] == list(
            range(start, end)
        )


async def test_a_position_behind_the_end_is_said_and_not_taken_for_the_end(
    cluster: FakeCluster,
) -> None:
    """After a loss or a restore offsets are given out again."""
    async with consumer(cluster, start=31, stop_at_end=True) as c:
        with pytest.raises(OffsetOutOfRangeError) as error:
            await anext(c)
        assert error.value.metadata["high_watermark"] == "30"
    for policy, first in (("latest", 30), ("earliest", 0)):
        given = {"start": 31, "stop_at_end": True, "on_out_of_range": policy}
        async with consumer(cluster, **given) as c:
            assert [record.offset async for record in c] == list(range(first, 30))
            assert c.position() == {1: 30}
    async with consumer(cluster, start=30, stop_at_end=True) as c:
        assert [record.offset async for record in c] == []


async def test_an_end_in_the_future_is_waited_for(cluster: FakeCluster) -> None:
    async with consumer(cluster, start=25, until=32) as c:
        found = [(await anext(c)).offset for _ in range(5)]
        async with Producer(cluster.bootstrap, net=cluster.net) as producer:
            await producer.send_batch("t", [b"more"] * 5, partition=1)
        assert [*found, *[record.offset async for record in c]] == list(range(25, 32))


async def test_columns(cluster: FakeCluster) -> None:
    async with consumer(cluster, until=30) as c:
        rows = await anext(c.batches(["value", "schema_id", "key"]))
        assert rows.schema.names == ["value", "schema_id", "key"]
        assert rows.to_pylist()[3] == {"value": b"3", "schema_id": 0, "key": b"3"}
        assert rows.schema.metadata == {b"topic": b"t"}
        for wrong in (["valeu"], ["key", "key"]):
            with pytest.raises(InvalidRequestError, match="at most once of offset"):
                c.batches(wrong)


async def test_the_topic_that_is_read(cluster: FakeCluster) -> None:
    c = consumer(cluster)
    assert c.topic_id == b""
    async with c:
        known = c._metadata.known("t")
        assert known is not None
        assert c.topic_id == known.topic_id
