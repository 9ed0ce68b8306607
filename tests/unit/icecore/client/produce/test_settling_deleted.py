"""A topic is deleted while a producer sends to it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icecore import Producer
from icecore.codec.batch import BatchHeader
from icecore.errors import LeaderLostError, RequestTimeoutError, UnknownTopicError
from tests.support.fake_cluster import FakeCluster, FakePartition, Fate

LONG_S = 20


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as cluster:
        cluster.add_topic("t", 3)
        async with asyncio.timeout(LONG_S):
            yield cluster


def producer(cluster: FakeCluster) -> Producer:
    """Its delivery timeout is longer than a test may take."""
    return Producer(cluster.bootstrap, net=cluster.net, linger_ms=0, delivery_timeout_ms=100_000)


async def test_the_answer_is_final_at_once_and_says_what_to_do(cluster: FakeCluster) -> None:
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"old", partition=0)
        del cluster.topics["t"]
        for n in range(9):
            with pytest.raises(UnknownTopicError, match=r"topic t was deleted.*topic undelete t"):
                await p.send_and_wait("t", b"late", partition=n % 3)
        assert p.buffered_bytes == 0


async def test_a_node_that_hears_of_no_coordinator_is_not_believed(cluster: FakeCluster) -> None:
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"old", partition=0)
        kept = cluster.topics.pop("t")
        cluster.ages_ms["GetMetadata"] = 3_600_000
        sent = p.send("t", b"late", partition=0)
        await asyncio.sleep(1)
        assert not sent.is_done
        cluster.topics["t"] = kept
        assert (await sent).offset == 1


async def test_records_are_taken_again_once_it_is_back(cluster: FakeCluster) -> None:
    """Leaders remember what the producer sent before: what comes now is no duplicate of it."""
    async with producer(cluster) as p:
        for n in range(3):
            assert (await p.send_and_wait("t", b"old", partition=0)).offset == n
        kept = cluster.topics.pop("t")
        with pytest.raises(UnknownTopicError):
            await p.send_and_wait("t", b"late", partition=0)
        cluster.topics["t"] = kept
        for n in range(3, 6):
            assert (await p.send_and_wait("t", b"new", partition=0)).offset == n


async def test_an_attempt_without_answer_stays_unknown(cluster: FakeCluster) -> None:
    def lose(node: int, partition: FakePartition, header: BatchHeader) -> Fate:
        cluster.topics.pop("t", None)
        return Fate(LeaderLostError("who knows"))

    async with producer(cluster) as p:
        await p.send_and_wait("t", b"old", partition=0)
        cluster.on_produce = lose
        with pytest.raises(RequestTimeoutError, match=r"outcome is unknown.*topic t was deleted"):
            await p.send_and_wait("t", b"old", partition=0)
