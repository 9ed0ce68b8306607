"""Waiting for records, and giving up: a poll is empty only when there is nothing, and whoever stops
waiting loses nothing."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from icecore.codec.record import Record
from icecore.errors import InvalidRequestError, UnavailableError
from tests.support.fake_cluster import FakeCluster

LONG_S = 30


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=2) as cluster:
        cluster.add_topic("t", 2)
        async with asyncio.timeout(LONG_S):
            yield cluster


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    return Consumer(cluster.bootstrap, "t", net=cluster.net, max_wait_ms=50, **kwargs)


async def fill(cluster: FakeCluster, *counts: int, start: int = 0) -> None:
    """Numbers as values, in batches of these sizes, one partition after the other."""
    async with Producer(cluster.bootstrap, net=cluster.net, batch_bytes=1 << 20) as producer:
        for number, count in enumerate(counts):
            values = [b"%d" % n for n in range(start, start + count)]
            await producer.send_batch("t", values, partition=number % 2)
            start += count


@pytest.mark.parametrize("max_records", [1, 5, 10, 15, 10_000])
async def test_polls_until_one_is_empty_read_everything(
    cluster: FakeCluster, max_records: int
) -> None:
    await fill(cluster, 10, 10, 5, 10)
    async with consumer(cluster, stop_at_end=True) as c:
        found: list[int] = []
        while records := await c.poll(LONG_S, max_records):
            assert len(records) <= max_records
            found += [int(record.value or b"") for record in records]
            assert sum(c.position().values()) == len(found)
        assert sorted(found) == list(range(35))
        assert c.is_at_end


async def test_waiting_for_one_record_with_a_limit_ends_nothing(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        for iterator in (aiter(c), c.batches()):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(iterator), 0.02)
        await fill(cluster, 2)
        assert [(await anext(c)).value for _ in range(2)] == [b"0", b"1"]
        await fill(cluster, 2, start=2)
        rows = await anext(c.batches())
        assert rows.column("value").to_pylist() == [b"2", b"3"]


@pytest.mark.parametrize("seed", range(3))
async def test_who_is_cancelled_anywhere_loses_and_repeats_nothing(
    cluster: FakeCluster, seed: int
) -> None:
    rng = random.Random(seed)
    found: list[int] = []

    async def write() -> None:
        for start in range(0, 600, 20):
            await fill(cluster, 10, 10, start=start)
            await asyncio.sleep(rng.random() * 0.01)

    async with consumer(cluster, fetch_bytes=2000) as c:
        batches = c.batches()

        async def one() -> list[int]:
            return [int((await anext(c)).value or b"")]

        async def some() -> list[int]:
            return [int(r.value or b"") for r in await c.poll(0.005, 7)]

        async def rows() -> list[int]:
            return [int(value) for value in (await anext(batches)).column("value").to_pylist()]

        writing = asyncio.ensure_future(write())
        while len(found) < 600:
            task = asyncio.ensure_future(rng.choice([one, one, some, rows])())
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.01)
            task.cancel()
            try:
                found += await task
            except asyncio.CancelledError:
                continue
        await writing
    assert sorted(found) == list(range(600))
    by_partition = [[n for n in found if n // 10 % 2 == number] for number in (0, 1)]
    assert all(values == sorted(values) for values in by_partition)


async def test_rows_go_on_where_records_were_left(cluster: FakeCluster) -> None:
    await fill(cluster, 10)
    async with consumer(cluster, stop_at_end=True) as c:
        assert (await anext(c)).value == b"0"
        assert len(await c.poll(LONG_S, 2)) == 2
        rows = [rows async for rows in c.batches()]
        assert rows[0].column("offset").to_pylist() == list(range(3, 10))
        assert c.position() == {0: 10, 1: 0}
        assert c.is_at_end
        with pytest.raises(StopAsyncIteration):
            await anext(c)


async def test_a_consumer_that_could_not_start_is_closed(cluster: FakeCluster) -> None:
    c = consumer(cluster, partitions=[7])
    with pytest.raises(InvalidRequestError):
        await c.start()
    with pytest.raises(UnavailableError, match="closed"):
        await c.start()
    await c.close()


async def test_a_closed_consumer_says_so_instead_of_ending(cluster: FakeCluster) -> None:
    await fill(cluster, 10)
    async with consumer(cluster) as c:
        await anext(c)
    for read in (
        lambda: c.poll(0.1),
        lambda: anext(aiter(c)),
        lambda: anext(c.batches()),
    ):
        with pytest.raises(UnavailableError, match="the consumer is closed"):
            await read()


async def test_an_iteration_that_runs_when_it_is_closed_ends(cluster: FakeCluster) -> None:
    await fill(cluster, 10)
    async with consumer(cluster) as c:
        found = [record.value async for record in _closing_after(c, 10)]
    assert len(found) == 10


async def _closing_after(c: Consumer, count: int) -> AsyncIterator[Record]:
    closing: asyncio.Future[None] | None = None
    async for record in c:
        yield record
        count -= 1
        if not count:
            closing = asyncio.ensure_future(c.close())
    assert closing is not None
    await closing
