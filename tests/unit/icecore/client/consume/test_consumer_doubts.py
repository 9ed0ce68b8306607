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


def questions(cluster: FakeCluster) -> int:
    return [name for _, name in cluster.calls].count("GetMetadata")


async def asked_after(cluster: FakeCluster, polls_s: float) -> int:
    """How often it asks for metadata within so long at the end of the log."""
    async with (
        Consumer(
            cluster.bootstrap, "t", net=cluster.net, start="earliest", max_wait_ms=50
        ) as consumer,
        Producer(cluster.bootstrap, net=cluster.net) as producer,
    ):
        await producer.send("t", b"v")
        assert len(await consumer.poll(5.0)) == 1
        before = questions(cluster)
        assert not await consumer.poll(polls_s)
        return questions(cluster) - before


async def test_nobody_asks_while_the_node_is_heard(cluster: FakeCluster) -> None:
    assert await asked_after(cluster, 0.5) == 0


async def test_one_question_when_the_answer_is_new(cluster: FakeCluster) -> None:
    cluster.ages_ms["Fetch"] = OLD_MS
    assert await asked_after(cluster, 0.5) == 1  # about ten polls, each of which tells of its age


async def test_three_questions_when_nobody_knows_more(cluster: FakeCluster) -> None:
    cluster.ages_ms["Fetch"] = cluster.ages_ms["GetMetadata"] = OLD_MS
    assert await asked_after(cluster, 0.5) == 3


async def test_it_asks_again_after_a_while(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "_DOUBT_MS", 200.0)
    cluster.ages_ms["Fetch"] = OLD_MS
    assert 2 <= await asked_after(cluster, 1.0) <= 6
