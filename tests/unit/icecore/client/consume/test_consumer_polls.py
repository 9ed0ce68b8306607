"""A consumer asks rarely while no records come, and makes few requests in vain."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from icecore.client.consume import fetch_slots
from icecore.client.consume.fetch_slots import FetchSlot
from icecore.client.consume.fetcher import Fetcher
from tests.support.fake_cluster import FakeCluster

LONG_S = 30
SHORT_MS = 20


@pytest_asyncio.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    monkeypatch.setattr(fetch_slots, "SHORT_WAIT_MS", SHORT_MS)
    async with FakeCluster(nodes=1) as cluster:
        cluster.add_topic("t", 4)
        async with asyncio.timeout(LONG_S):
            yield cluster


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how long each poll may last, in ms, in their order."""
    found: list[int] = []
    call = Fetcher._call

    async def noted(self: Fetcher, place: FetchSlot, readers: list[Any]) -> Any:
        found.append(place.wait_ms)
        return await call(self, place, readers)

    monkeypatch.setattr(Fetcher, "_call", noted)
    return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each look at all partitions."""
    found: list[int] = []
    dispatch = Fetcher._dispatch

    def noted(self: Fetcher) -> None:
        found.append(len(self.readers))
        dispatch(self)

    monkeypatch.setattr(Fetcher, "_dispatch", noted)
    return found


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    return Consumer(cluster.bootstrap, "t", net=cluster.net, **kwargs)


async def fill(cluster: FakeCluster, batches: int, value: bytes = b"v") -> None:
    """One record per batch, the partitions in turn."""
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for number in range(batches):
            await producer.send_batch("t", [value], partition=number % 4)


async def until_it_polls_long(c: Consumer, waits: list[int]) -> None:
    """For longer than any test takes."""
    for reader in c._fetcher.readers.values():
        reader.empty_polls = 20
    await until(lambda: max(waits, default=0) > 1000 * LONG_S / 2)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_polls_become_longer_up_to_the_limit_and_short_again_with_data(
    cluster: FakeCluster, waits: list[int]
) -> None:
    async with consumer(cluster, max_wait_ms=6 * SHORT_MS) as c:
        await until(lambda: 6 * SHORT_MS in waits)
        assert waits == [SHORT_MS, 2 * SHORT_MS, 4 * SHORT_MS, 6 * SHORT_MS]
        seen = len(waits)
        await fill(cluster, 1)
        assert len(await c.poll(LONG_S)) == 1
        await until(lambda: SHORT_MS in waits[seen:])


async def test_a_limit_below_the_first_wait_holds(cluster: FakeCluster, waits: list[int]) -> None:
    async with consumer(cluster, max_wait_ms=5):
        await until(lambda: len(waits) >= 5)
        assert set(waits) == {5}


async def test_a_seek_waits_behind_no_long_poll(cluster: FakeCluster, waits: list[int]) -> None:
    await fill(cluster, 8)
    async with consumer(cluster, start="latest", max_wait_ms=1000 * LONG_S) as c:
        await until_it_polls_long(c, waits)
        for offset in (1, 0, 1, 0):  # more than there are places for long polls
            for partition in range(4):
                await c.seek(partition, offset)
                found: list[tuple[int, int]] = []
                async with asyncio.timeout(LONG_S / 10):
                    while (partition, offset) not in found:
                        found += [(r.partition, r.offset) for r in await c.poll(LONG_S)]


async def test_data_end_a_long_poll_at_once(cluster: FakeCluster, waits: list[int]) -> None:
    async with consumer(cluster, max_wait_ms=1000 * LONG_S) as c:
        await until_it_polls_long(c, waits)
        await fill(cluster, 1)
        async with asyncio.timeout(LONG_S / 10):
            assert len(await c.poll(LONG_S)) == 1


async def test_who_waits_at_a_leader_that_was_replaced_asks_the_next_one(
    waits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is cut off: it goes on leading for itself, and its poll brings nothing."""
    monkeypatch.setattr(fetch_slots, "SHORT_WAIT_MS", SHORT_MS)
    async with FakeCluster(nodes=2) as cluster:
        cluster.add_topic("t")
        (partition,) = cluster.topics["t"]
        old, never = partition.tail.record.leader, asyncio.Event()

        async def cut_off(number: int, method: str) -> None:
            if (number, method) == (old, "_Fetch") and waits[-1] > 1000 * LONG_S / 2:
                await never.wait()

        cluster.before_call = cut_off
        async with asyncio.timeout(LONG_S), consumer(cluster, max_wait_ms=1000 * LONG_S) as c:
            await until_it_polls_long(c, waits)
            partition.open(3 - old, (3 - old,))
            await fill(cluster, 1)
            seen = len(waits)
            await c._metadata.refresh(is_newer=True)
            c._fetcher.look()
            assert len(await c.poll(LONG_S)) == 1
            assert waits[seen] == SHORT_MS


async def test_batches_are_taken_without_a_look_at_all_partitions(
    cluster: FakeCluster, looks: list[int]
) -> None:
    await fill(cluster, 400)
    async with consumer(cluster, stop_at_end=True) as c:
        assert sum([rows.num_rows async for rows in c.batches()]) == 400
    assert len(looks) < 20


async def test_many_seeks_are_one_look(cluster: FakeCluster, looks: list[int]) -> None:
    await fill(cluster, 4)
    async with consumer(cluster) as c:
        assert await c.poll(LONG_S)
        before = len(looks)
        for _ in range(100):
            await c.seek(1, 0)
        assert len(looks) == before
        assert [record.partition for record in await c.poll(LONG_S)] != []


async def test_who_lies_behind_and_who_is_at_the_end_are_asked_apart(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[int]]] = []
    call = Fetcher._call

    async def noted(self: Fetcher, place: FetchSlot, readers: list[Any]) -> Any:
        asked.append((place.kind, sorted(reader.partition for reader in readers)))
        return await call(self, place, readers)

    monkeypatch.setattr(Fetcher, "_call", noted)
    await fill(cluster, 8)
    async with consumer(cluster, start="latest", max_wait_ms=1000 * LONG_S) as c:
        await until(lambda: len(asked) > 3)
        assert {tuple(partitions) for _, partitions in asked} == {(0, 1, 2, 3)}
        assert asked[0][0] == fetch_slots.POLL and asked[3][0] == fetch_slots.LONG_POLL
        asked.clear()
        for partition in (1, 3):
            await c.seek(partition, 1)
        found = [(await c.poll(LONG_S))[0] for _ in range(2)]
    assert sorted((r.partition, r.offset) for r in found) == [(1, 1), (3, 1)]
    assert asked[0] == (fetch_slots.READ, [1, 3])
