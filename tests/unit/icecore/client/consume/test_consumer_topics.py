"""Consumers of several topics, and of those that fit a pattern."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from icecore import Consumer, Lookup, Producer, blocking
from icecore.client.cluster import metadata
from icecore.client.consume import subscription
from icecore.errors import (
    ConfigurationError,
    InvalidRequestError,
    TopicRecreatedError,
    UnknownTopicError,
)
from tests.support.fake_cluster import FakeCluster

LONG_S = 20
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "LOOK_S", 0.1)
    monkeypatch.setattr(metadata, "_AGE_MS_MAX", 100.0)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Topics a.1, a.2 with two partitions and b with one, ten records in the first of each."""
    async with FakeCluster(nodes=2) as cluster:
        for name in ("a.1", "a.2", "b"):
            cluster.add_topic(name, 1 if name == "b" else 2)
            await fill(cluster, name)
        yield cluster


async def fill(cluster: FakeCluster, topic: str, batches: int = 1, size: int = 1) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for _ in range(batches):
            values = [topic.encode() * size for _ in range(10)]
            await producer.send_batch(topic, values, partition=0)


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    kwargs.setdefault("max_wait_ms", 100)
    return Consumer(cluster.bootstrap, net=cluster.net, **kwargs)


async def counted(c: Consumer, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    while sum(found.values()) < count:
        record = await anext(c)
        assert record.value == record.topic.encode()
        found[record.topic] += 1
    return found


async def test_topics_are_read_together(cluster: FakeCluster) -> None:
    async with consumer(cluster, topics=["a.1", "b", "b"], stop_at_end=True) as c:
        found = Counter([record.topic async for record in c])
        assert found == {"a.1": 10, "b": 10}
        assert c.topics == ("a.1", "b") and c.topic == "" and c.is_at_end
        assert c.position("a.1") == {0: 10, 1: 0} and c.position("b") == {0: 10}
        assert c.lag("b") == {0: 0} and c.skipped_records("a.1") == {0: 0, 1: 0}
        with pytest.raises(InvalidRequestError, match="say which"):
            c.position()
        with pytest.raises(InvalidRequestError, match="not read"):
            c.position("a.2")
        await c.seek(0, 7, topic="b")
        assert [record.offset async for record in c] == [7, 8, 9]


async def test_start_and_end_hold_for_each(cluster: FakeCluster) -> None:
    async with consumer(cluster, topics=["a.1", "b"], start=-4, until=8, stop_at_end=True) as c:
        found = sorted([(record.topic, record.offset) async for record in c])
        assert found == [("a.1", 6), ("a.1", 7), ("b", 6), ("b", 7)]


async def test_arrow_rows_say_their_topic(cluster: FakeCluster) -> None:
    async with consumer(cluster, topics=["a.1", "b"], stop_at_end=True) as c:
        table = await c.to_arrow()
    assert Counter(table.column("topic").to_pylist()) == {"a.1": 10, "b": 10}
    assert table.column("topic").type == pa.string()
    async with consumer(cluster, topic="b", stop_at_end=True) as c:
        table = await c.to_arrow()
        assert "topic" not in table.column_names and table.schema.metadata == {b"topic": b"b"}


async def test_a_pattern_fits_whole_names(cluster: FakeCluster) -> None:
    async with consumer(cluster, pattern=r"a\..", stop_at_end=True) as c:
        assert Counter([record.topic async for record in c]) == {"a.1": 10, "a.2": 10}
    async with consumer(cluster, pattern="a", stop_at_end=True) as c:
        assert [record async for record in c] == [] and c.topics == ()


async def test_topics_made_later_are_read_whole(cluster: FakeCluster) -> None:
    async with consumer(cluster, pattern="a.*|new.*", start="latest") as c:
        assert set(c.topics) == {"a.1", "a.2"} and not c.is_at_end
        cluster.add_topic("new")
        await fill(cluster, "new")
        assert await counted(c, 10) == {"new": 10}
        (added,) = cluster.add_partitions("new", 1)
        await fill(cluster, "b")  # one that does not fit stays out
        while added.number not in c.position("new"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_pattern_that_fits_nothing_waits(cluster: FakeCluster) -> None:
    async with consumer(cluster, pattern="new") as c:
        assert await c.poll(0.2) == [] and not c.is_at_end
        cluster.add_topic("new")
        await fill(cluster, "new")
        assert await counted(c, 10) == {"new": 10}


async def test_a_topic_that_goes_is_left(cluster: FakeCluster) -> None:
    async with consumer(cluster, pattern="a.*") as c:
        await counted(c, 20)
        del cluster.topics["a.2"]
        while c.topics != ("a.1",):
            assert await c.poll(0.05) == []
        await fill(cluster, "a.1")
        assert await counted(c, 10) == {"a.1": 10}
        cluster.add_topic("a.2")
        await fill(cluster, "a.2")
        assert await counted(c, 10) == {"a.2": 10}


@pytest.mark.parametrize("policy", ["fail", "restart"])
async def test_one_topic_made_again(cluster: FakeCluster, policy: Any) -> None:
    async with consumer(cluster, topics=["a.1", "b"], on_recreated=policy) as c:
        await counted(c, 20)
        cluster.add_topic("b")
        await fill(cluster, "b")
        await fill(cluster, "a.1")
        if policy == "fail":
            with pytest.raises(TopicRecreatedError, match="topic b "):
                await counted(c, 20)
        else:
            assert await counted(c, 20) == {"a.1": 10, "b": 10}


async def test_a_large_topic_leaves_room_for_a_small_one(cluster: FakeCluster) -> None:
    """The bound in bytes holds for all together, and who waits longest is served first."""
    cluster.add_topic("large", 1)
    await fill(cluster, "large", batches=40, size=200)
    async with consumer(cluster, topics=["large", "b"], max_bytes=20_000, fetch_bytes=20_000) as c:
        seen: list[str] = []
        while "b" not in seen:
            seen.append((await anext(c)).topic)
            assert c._fetcher._buffered_bytes < 60_000
        assert len(seen) < 200


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"topic": "b", "pattern": "b"},
        {"topic": "b", "topics": ["b"]},
        {"topics": []},
        {"topics": [f"t{n}" for n in range(1001)]},
        {"pattern": "("},
        {"pattern": ""},
        {"pattern": "x" * 1001},
        {"pattern": "(" * 500},
    ],
)
async def test_what_is_no_choice_is_refused(cluster: FakeCluster, given: Any) -> None:
    with pytest.raises(ConfigurationError):
        consumer(cluster, **given)


async def test_a_list_as_the_one_topic_says_where_it_belongs(cluster: FakeCluster) -> None:
    with pytest.raises(TypeError, match="give several as topics="):
        Consumer(cluster.bootstrap, ["a", "b"])  # type: ignore[arg-type]


async def test_too_many_topics_are_refused(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "TOPICS_MAX", 1)
    with pytest.raises(InvalidRequestError, match="fits 2 topics"):
        await consumer(cluster, pattern="a.*").start()


async def test_the_blocking_one_does_the_same(cluster: FakeCluster) -> None:
    await asyncio.to_thread(read_blocking, cluster)


def read_blocking(cluster: FakeCluster) -> None:
    with blocking.Consumer(cluster.bootstrap, pattern="a.*", stop_at_end=True) as c:
        assert Counter(record.topic for record in c) == {"a.1": 10, "a.2": 10}
        assert set(c.topics) == {"a.1", "a.2"} and c.position("a.1") == {0: 10, 1: 0}
        c.seek(0, 9, topic="a.2")
        assert [(each.topic, each.offset) for each in c] == [("a.2", 9)]
    with blocking.Consumer(cluster.bootstrap, topics=["a.1", "b"], stop_at_end=True) as c:
        assert Counter(c.to_arrow().column("topic").to_pylist()) == {"a.1": 10, "b": 10}


async def test_a_topic_that_is_not_there_is_told_at_once_unless_it_is_waited_for(
    cluster: FakeCluster,
) -> None:
    began_s = asyncio.get_running_loop().time()
    for given in ({}, {"position": "p"}, {"start": "latest"}):
        with pytest.raises(UnknownTopicError, match="later"):
            await consumer(cluster, topic="later", **given).start()
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        with pytest.raises(UnknownTopicError, match="later"):
            await producer.send_and_wait("later", b"v")
    async with Lookup(cluster.bootstrap, "later", net=cluster.net) as lookup:
        with pytest.raises(UnknownTopicError, match="later"):
            await lookup.find()
    assert asyncio.get_running_loop().time() - began_s < 2

    patient = consumer(cluster, topic="later", position="p", wait_for_topic_s=10)
    async with Producer(cluster.bootstrap, net=cluster.net, wait_for_topic_s=10) as producer:
        sent, begun = producer.send("later", b"v"), asyncio.ensure_future(patient.start())
        await asyncio.sleep(0.1)
        cluster.add_topic("later")
        await sent
        await begun
        async with patient:
            assert [each.value for each in await patient.poll(5)] == [b"v"]
