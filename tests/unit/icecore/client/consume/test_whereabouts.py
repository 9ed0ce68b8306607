"""Readers find the next node when one does not serve them; at the tail they ask no other server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from icecore.client.cluster.held_segments import FoundSegments
from icecore.client.consume import whereabouts
from icecore.errors import NotLeaderError, NotReplicaError, UnavailableError
from icecore.model import NO_SEGMENT, SegmentState
from tests.support.fake_cluster import FakeCluster

PARTITIONS = 40
LEADERLESS_S = 0.6


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Node 1 leads everything, node 2 follows; a record is in each partition."""
    async with FakeCluster(nodes=2) as cluster:
        for partition in cluster.add_topic("t", PARTITIONS):
            record = partition.tail.record
            partition.tail.record = record.changed(leader=1, replicas=(1, 2), isr=(1, 2))
        await fill(cluster)
        async with asyncio.timeout(30):
            yield cluster


async def fill(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for number in range(PARTITIONS):
            await producer.send_batch("t", [b"v"], partition=number)


def consumer(cluster: FakeCluster) -> Consumer:
    return Consumer(cluster.bootstrap, "t", net=cluster.net, start="earliest", max_wait_ms=50)


def kill_leader(cluster: FakeCluster) -> None:
    async def is_dead(number: int, _: str) -> None:
        if number == 1:
            raise UnavailableError("killed")

    cluster.before_call = is_dead
    for partition in cluster.topics["t"]:
        partition.tail.record = partition.tail.record.changed(
            leader=0, state=SegmentState.RECOVERING
        )


async def read(c: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        found += [(each.partition, each.offset) for each in await c.poll(0.2)]
    return sorted(found)


def asked(cluster: FakeCluster) -> list[str]:
    return [name for _, name in cluster.calls]


async def test_all_who_wait_for_a_leader_ask_together(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        await read(c, PARTITIONS)
        kill_leader(cluster)
        cluster.calls.clear()
        assert not await c.poll(LEADERLESS_S)
        assert "ListSegments" not in asked(cluster)
        assert asked(cluster).count("GetMetadata") < 30  # one each 15 ms at most, for all of them
        assert asked(cluster).count("Fetch") < PARTITIONS
        for partition in cluster.topics["t"]:
            partition.open(2, (2,))
        await fill(cluster)
        assert await read(c, PARTITIONS) == [(number, 1) for number in range(PARTITIONS)]
        assert "ListSegments" not in asked(cluster)


async def test_what_came_before_is_read_from_a_follower(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "_LEADERLESS_S", 600.0)
    async with consumer(cluster) as c:
        await read(c, PARTITIONS)
        kill_leader(cluster)
        for number in range(PARTITIONS):
            await c.seek(number, 0)
        async with asyncio.timeout(60):  # nobody waits for a leader
            assert await read(c, PARTITIONS) == [(number, 0) for number in range(PARTITIONS)]
    assert "ListSegments" not in asked(cluster)


@pytest.mark.parametrize(
    ("error", "attempts", "is_asked"),
    [
        (NotLeaderError(), 2, False),
        (NotReplicaError(), 1, True),
        (NotReplicaError(), 2, True),
        (NotLeaderError(), 20, True),
    ],
)
async def test_the_coordinator_is_asked_when_metadata_do_not_help(
    cluster: FakeCluster, error: Any, attempts: int, is_asked: bool
) -> None:
    async with consumer(cluster) as c:
        await read(c, PARTITIONS)
        reader = c._fetcher.readers["t", 3]
        reader.generation += 1  # nobody else moves it
        reader.is_busy, reader.attempts, reader.avoided = True, attempts, {1}
        cluster.calls.clear()
        await c._fetcher._whereabouts.find(reader, error)
        assert (reader.node_id, reader.segment_id) == (1, 0) if not reader.avoided else (2, 0)
        assert ("ListSegments" in asked(cluster)) == is_asked


async def test_records_of_which_nobody_has_spoken_are_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is away, and so is who holds the records: there is more behind them."""
    is_away = [True]
    log = cluster.topics["t"][0].tail.record
    gap = log.changed(
        segment_id=NO_SEGMENT,
        state=SegmentState.SEALED,
        end_offset=1,
        leader=0,
        replicas=(),
        isr=(),
    )

    async def refuse(number: int, name: str) -> None:
        if is_away and name == "_Fetch":
            raise NotReplicaError("not here")

    async def find(*_: Any, **__: Any) -> FoundSegments:
        return FoundSegments([gap if is_away else log], 0)

    cluster.before_call = refuse
    monkeypatch.setattr(whereabouts, "find_segments", find)
    async with Consumer(
        cluster.bootstrap, "t", net=cluster.net, start="earliest", partitions=[0], max_wait_ms=50
    ) as c:
        assert not await c.poll(0.6)
        assert (c.position(), c.skipped_records()) == ({0: 0}, {0: 0})
        is_away.clear()
        assert await read(c, 1) == [(0, 0)]


async def test_a_seek_meanwhile_counts(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        await read(c, PARTITIONS)
        kill_leader(cluster)
        reader = c._fetcher.readers["t", 3]
        reader.is_busy, reader.attempts = True, 2
        looking = asyncio.ensure_future(c._fetcher._whereabouts.find(reader, NotLeaderError()))
        await asyncio.sleep(0.02)
        reader.move_to(0)
        reader.node_id, reader.avoided = 2, {2}
        await looking
        assert reader.node_id == 2
