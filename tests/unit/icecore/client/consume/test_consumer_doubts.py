"""A consumer whose node says that no coordinator hears of it asks others who leads by now."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from icecore.client.consume import whereabouts
from tests.support.fake_cluster import FakeCluster

OLD_MS = 10_000


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        async with asyncio.timeout(30):
            yield cluster


@pytest.fixture(autouse=True)
def no_second_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten fetches of a busy machine may take longer than the pause between two rounds."""
    monkeypatch.setattr(whereabouts, "_DOUBT_MS", 600_000.0)


def count(cluster: FakeCluster, method: str) -> int:
    return [name for _, name in cluster.calls].count(method)


async def asked(cluster: FakeCluster, questions_min: int = 0, **ages_ms: int) -> int:
    """Return how often a consumer at the end of the log asks for metadata once answers have these
    ages: until it has asked ``questions_min`` times, and then during ten more fetches."""
    async with (
        Consumer(
            cluster.bootstrap, "t", net=cluster.net, start="earliest", max_wait_ms=50
        ) as consumer,
        Producer(cluster.bootstrap, net=cluster.net) as producer,
        asyncio.timeout(30),
    ):
        await producer.send("t", b"v")
        assert len(await consumer.poll(5.0)) == 1
        before = count(cluster, "GetMetadata")
        cluster.ages_ms.update(ages_ms)
        while count(cluster, "GetMetadata") - before < questions_min:
            assert not await consumer.poll(0.05)
        fetches = count(cluster, "_Fetch") + 10
        while count(cluster, "_Fetch") < fetches:
            assert not await consumer.poll(0.05)
        return count(cluster, "GetMetadata") - before


async def test_nobody_asks_while_the_node_is_heard(cluster: FakeCluster) -> None:
    assert await asked(cluster) == 0


async def test_one_question_when_the_answer_is_new(cluster: FakeCluster) -> None:
    assert await asked(cluster, 1, Fetch=OLD_MS) == 1


async def test_three_questions_when_nobody_knows_more(cluster: FakeCluster) -> None:
    cluster.ages_ms["GetMetadata"] = OLD_MS  # from the first answer on: nothing was ever new
    assert await asked(cluster, 3, Fetch=OLD_MS) == 3


async def test_it_asks_again_after_a_while(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "_DOUBT_MS", 200.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await asked(cluster, 2, Fetch=OLD_MS)
    assert 2 <= found <= 1 + (loop.time() - began) / 0.2
