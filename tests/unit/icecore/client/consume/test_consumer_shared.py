"""Several tasks read from one consumer: each record goes to one of them, whoever waits for what."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from tests.support.fake_cluster import FakeCluster

BURSTS, BURST = 40, 30


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.add_topic("t", partitions=2)
        async with asyncio.timeout(30):
            yield cluster


async def produce(cluster: FakeCluster) -> None:
    """Batches of some records, so that who takes a few leaves the rest to others."""
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for burst in range(BURSTS):
            values = [b"%d" % n for n in range(burst * BURST, (burst + 1) * BURST)]
            await asyncio.gather(*(producer.send("t", value) for value in values))


@pytest.mark.parametrize("kinds", ["poll poll poll", "poll next rows", "next next", "rows rows"])
async def test_no_record_is_lost_or_given_twice(cluster: FakeCluster, kinds: str) -> None:
    await produce(cluster)  # so that an answer brings many batches to those who wait for one
    found: list[bytes | None] = []
    async with Consumer(cluster.bootstrap, "t", net=cluster.net, max_wait_ms=50) as consumer:

        async def poll() -> None:
            found.extend(record.value for record in await consumer.poll(0.05, 7))

        async def next_() -> None:
            found.append((await anext(consumer)).value)

        rows_of = consumer.batches()

        async def rows() -> None:
            found.extend((await anext(rows_of)).column("value").to_pylist())

        async def read(kind: str) -> None:
            while True:
                await {"poll": poll, "next": next_, "rows": rows}[kind]()
                await asyncio.sleep(0)  # the others' turn

        readers = [asyncio.ensure_future(read(kind)) for kind in kinds.split()]
        async with asyncio.timeout(10):
            while len(found) < BURSTS * BURST:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        for reader in readers:
            reader.cancel()
        assert await asyncio.gather(*readers, return_exceptions=True)
    assert sorted(int(value or b"") for value in found) == list(range(BURSTS * BURST))
