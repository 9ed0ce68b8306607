"""R71, consumers: a batch that cannot be decoded stops them until a seek, or is skipped."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer, blocking
from icecore.codec import batch
from icecore.codec.batch import Codec
from icecore.errors import ConfigurationError, CorruptBatchError
from tests.support.fake_cluster import FakeCluster, FakePartition
from tests.support.poison import garbage, garbage_in_frame


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Partition 0: offsets 0 and 1, a corrupt batch of three, 5 and 6. Partition 1: 0 to 9."""
    async with FakeCluster() as cluster:
        poisoned, other = cluster.add_topic("t", partitions=2)
        await fill(cluster, poisoned, 0, 2)
        append(poisoned, garbage(Codec.ZSTD))
        await fill(cluster, poisoned, 5, 7)
        await fill(cluster, other, 0, 10)
        yield cluster


async def fill(cluster: FakeCluster, partition: FakePartition, start: int, end: int) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net, idempotent=False) as producer:
        values = [b"%d" % number for number in range(start, end)]
        await producer.send_batch("t", values, partition=partition.number)


def append(partition: FakePartition, raw: bytes) -> None:
    partition.append(raw, batch.parse_header(raw))


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    kwargs.setdefault("max_wait_ms", 100)
    kwargs.setdefault("partitions", [0])
    return Consumer(cluster.bootstrap, "t", net=cluster.net, stop_at_end=True, **kwargs)


async def test_iterating_raises_until_a_seek(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        got: list[int] = []
        for _ in range(3):
            with pytest.raises(CorruptBatchError, match=r"t/0.*offset 2.*seek to 5") as caught:
                got.extend([record.offset async for record in c])
                got.append(-1)
        where = {"topic": "t", "partition": "0", "offset": "2", "next_offset": "5"}
        assert caught.value.metadata == where
        assert c.position() == {0: 2}
        assert not c.is_at_end
        with pytest.raises(CorruptBatchError):
            await c.poll()
        await c.seek(0, 2)  # where it is: the same again
        with pytest.raises(CorruptBatchError):
            await c.poll()
        await c.seek(0, int(caught.value.metadata["next_offset"]))
        assert [record.offset async for record in c] == [5, 6]
        assert c.is_at_end
        assert c.corrupt_batches == 0


async def read_polled(c: Consumer) -> list[int]:
    got: list[int] = []
    while not c.is_at_end:
        got += [record.offset for record in await c.poll()]
    return got


async def read_rows(c: Consumer) -> list[int]:
    return [offset async for rows in c.batches() for offset in rows.column("offset").to_pylist()]


async def test_polls_and_arrow_batches_raise_until_a_seek(cluster: FakeCluster) -> None:
    for read in (read_polled, read_rows):
        async with consumer(cluster) as c:
            for _ in range(2):
                with pytest.raises(CorruptBatchError):
                    await read(c)
            assert c.position() == {0: 2}
            await c.seek(0, 5)
            assert await read(c) == [5, 6]


async def test_a_failure_is_raised_before_other_partitions_go_on(cluster: FakeCluster) -> None:
    async with consumer(cluster, partitions=[0, 1]) as c:
        got: list[tuple[int, int]] = []
        with pytest.raises(CorruptBatchError):
            got.extend([(r.partition, r.offset) async for r in c])
        with pytest.raises(CorruptBatchError):
            await c.poll()
        await c.seek(0, 5)
        rest = [(r.partition, r.offset) async for r in c]
        assert [each for each in rest if each[0] == 0] == [(0, 5), (0, 6)]


async def test_skipping_goes_on_counts_and_warns_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for read in (read_polled, read_rows):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "icecore.client.consume.decoder"):
            async with consumer(cluster, on_corrupt="skip") as c:
                assert await read(c) == ([0, 1, 5, 6])
                assert c.position() == {0: 7}
                assert c.corrupt_batches == 1
        warnings = [each for each in caplog.records if " next_offset=5 " in each.getMessage()]
        assert len(warnings) == 1


async def test_skipping_the_last_batch_reaches_the_end(cluster: FakeCluster) -> None:
    append(cluster.topics["t"][0], garbage_in_frame(Codec.LZ4))
    async with consumer(cluster, on_corrupt="skip", start=5) as c:
        assert await read_polled(c) == [5, 6]
        assert c.position() == {0: 10}
        assert c.corrupt_batches == 1


async def test_a_corrupt_last_batch_is_not_the_end(cluster: FakeCluster) -> None:
    append(cluster.topics["t"][0], garbage_in_frame(Codec.LZ4))
    async with consumer(cluster, start=5) as c:
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                await read_polled(c)
        assert c.position() == {0: 7}
        await c.seek(0, 10)
        assert await read_polled(c) == []


async def test_there_is_no_third_policy(cluster: FakeCluster) -> None:
    with pytest.raises(ConfigurationError, match="fail or skip"):
        consumer(cluster, on_corrupt="ignore")


async def test_blocking_consumers_have_the_same(cluster: FakeCluster) -> None:
    await asyncio.to_thread(read_blocking, cluster.bootstrap)


def read_blocking(bootstrap: str) -> None:
    with blocking.Consumer(bootstrap, "t", stop_at_end=True, partitions=[0]) as c:
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                assert [record.offset for record in c]
        c.seek(0, 5)
        assert [record.offset for record in c] == [5, 6]
    with blocking.Consumer(
        bootstrap, "t", stop_at_end=True, partitions=[0], on_corrupt="skip"
    ) as c:
        assert [record.offset for record in c] == [0, 1, 5, 6]
        assert c.corrupt_batches == 1
