"""Partitions added to a topic in use: producers and consumers notice them while nothing fails."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer, Record
from icecore.client.cluster import metadata
from icecore.client.cluster.offsets import Position
from icecore.errors import InternalError, InvalidRequestError, UnavailableError
from tests.support.fake_cluster import FakeCluster, FakePartition

LONG_S = 20


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_AGE_MS_MAX", 100.0)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Its topic has one partition, which holds 10 records."""
    async with FakeCluster(nodes=3) as cluster:
        cluster.add_topic("t")
        await fill(cluster, "t")
        yield cluster


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    return Consumer(cluster.bootstrap, "t", net=cluster.net, max_wait_ms=100, **kwargs)


async def fill(cluster: FakeCluster, topic: str) -> None:
    """Ten records for its first partition."""
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        await producer.send_batch(topic, [b"%d" % n for n in range(10)], partition=0)


async def grow(cluster: FakeCluster) -> FakePartition:
    """One more partition, which holds 10 records already when it is first seen."""
    (added,) = cluster.add_topic("filled", 1)
    await fill(cluster, "filled")
    added.topic, added.number = "t", len(cluster.topics["t"])
    cluster.topics["t"].append(added)
    return added


async def take(consumer: Consumer, count: int) -> list[Record]:
    records = []
    async with asyncio.timeout(LONG_S):
        async for record in consumer:
            records.append(record)
            if len(records) == count:
                break
    return records


def offsets(records: list[Record], partition: int) -> list[int]:
    return [record.offset for record in records if record.partition == partition]


async def until_looked(cluster: FakeCluster, times: int) -> None:
    """Clients have asked who serves what so many times more."""
    wanted = cluster.calls.count((0, "GetMetadata")) + times
    async with asyncio.timeout(LONG_S):
        while cluster.calls.count((0, "GetMetadata")) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("start", ["earliest", "latest", 10, datetime(2100, 1, 1, tzinfo=UTC)])
async def test_added_partitions_are_read_from_their_start(
    cluster: FakeCluster, start: Position
) -> None:
    async with consumer(cluster, start=start) as c:
        old = 10 if start == "earliest" else 0
        records = await take(c, old) if old else []
        await grow(cluster)
        await grow(cluster)
        records += await take(c, 20)
        assert offsets(records, 0) == list(range(old))
        assert offsets(records, 1) == offsets(records, 2) == list(range(10))
        assert c.position() == {0: 10, 1: 10, 2: 10}
        assert c.high_watermarks().items() >= {1: 10, 2: 10}.items()
        await c.seek(2, "earliest")
        assert offsets(await take(c, 10), 2) == list(range(10))


async def test_a_log_that_starts_later_is_read_from_there(cluster: FakeCluster) -> None:
    async with consumer(cluster, start="latest") as c:
        (await grow(cluster)).log_start = 4
        assert offsets(await take(c, 6), 1) == list(range(4, 10))


async def test_what_was_asked_for_stays_the_same(cluster: FakeCluster) -> None:
    async with (
        consumer(cluster, partitions=[0]) as explicit,
        consumer(cluster, stop_at_end=True) as bounded,
        consumer(cluster) as growing,
    ):
        await grow(cluster)
        assert offsets(await take(growing, 20), 1) == list(range(10))
        await until_looked(cluster, 3)
        assert explicit.position().keys() == {0}
        records = [record async for record in bounded]
        assert offsets(records, 0) == list(range(10)) and len(records) == 10


async def test_another_topic_of_the_same_name_is_no_growth(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        await take(c, 10)
        cluster.add_topic("t", 3)
        await until_looked(cluster, 5)
        assert c.position().keys() == {0}


async def test_a_look_that_fails_is_repeated(cluster: FakeCluster) -> None:
    failed = 0

    async def fail(node: int, method: str) -> None:
        nonlocal failed
        if method == "GetMetadata" and failed < 3:
            failed += 1
            raise (UnavailableError if failed == 1 else InternalError)("not now")

    async with consumer(cluster, start="latest") as c:
        await grow(cluster)
        cluster.before_call = fail
        assert offsets(await take(c, 10), 1) == list(range(10))
    assert failed == 3


async def test_close_while_looking(cluster: FakeCluster) -> None:
    is_asked = asyncio.Event()

    async def hang(node: int, method: str) -> None:
        if method == "GetMetadata":
            is_asked.set()
            await asyncio.sleep(LONG_S)

    c = consumer(cluster)
    await c.start()
    cluster.before_call = hang
    async with asyncio.timeout(LONG_S / 2):
        await is_asked.wait()
        assert client_tasks()
        await c.close()
        with pytest.raises(UnavailableError, match="closed"):
            await anext(aiter(c))
    assert not client_tasks()


def client_tasks() -> list[str]:
    """Tasks of metadata and fetchers."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("Metadata.", "Fetcher."))]


async def test_a_producer_sends_to_added_partitions(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        await producer.send_and_wait("t", b"known", partition=0)
        with pytest.raises(InvalidRequestError):
            producer.send("t", b"early", partition=1)
        cluster.add_partitions("t", 1)
        async with asyncio.timeout(LONG_S):
            while True:
                try:
                    handle = producer.send("t", b"new", partition=1)
                    break
                except InvalidRequestError:
                    await asyncio.sleep(0.02)
            assert (await handle).offset == 0
