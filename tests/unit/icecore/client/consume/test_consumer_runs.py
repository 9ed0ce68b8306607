"""Small batches that lie one behind the other are handed out as one Arrow batch."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from icecore import Consumer, Producer
from icecore.codec import batch, record
from icecore.codec.batch import Codec
from icecore.codec.runs import RUN_BATCHES_MAX, RUN_BYTES_MAX
from tests.support.fake_cluster import FakeCluster, FakePartition


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Each partition of two: 30 batches of 4 records."""
    async with FakeCluster(nodes=1) as cluster:
        for partition in cluster.add_topic("t", partitions=2):
            for number in range(30):
                append(partition, [b"%d" % (4 * number + at) for at in range(4)])
        yield cluster


def append(partition: FakePartition, values: list[bytes], **columns: Any) -> None:
    raw = record.encode_columns(values=values, timestamps_ms=[5] * len(values), **columns)
    partition.append(raw, batch.parse_header(raw))


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    kwargs.setdefault("partitions", [0])
    kwargs.setdefault("stop_at_end", True)
    return Consumer(cluster.bootstrap, "t", net=cluster.net, **kwargs)


async def read(c: Consumer) -> list[list[int]]:
    """Offsets of each Arrow batch; each value says its offset."""
    found: list[list[int]] = []
    async for rows in c.batches():
        found.append(rows.column("offset").to_pylist())
        assert [int(value) for value in rows.column("value").to_pylist()] == found[-1]
    return found


async def test_many_are_one(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        assert await read(c) == [[*range(120)]]
        assert c.position() == {0: 120}


async def test_partitions_stay_apart(cluster: FakeCluster) -> None:
    async with consumer(cluster, partitions=None) as c:
        batches = [rows async for rows in c.batches()]
    assert [sorted(set(rows.column("partition").to_pylist())) for rows in batches] == [[0], [1]]
    assert [rows.num_rows for rows in batches] == [120, 120]


async def test_the_times_of_leaders_stay_those_of_each_batch(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        (rows,) = [rows async for rows in c.batches(["append_timestamp"])]
    times = [each.timestamp() for each in rows.column("append_timestamp").to_pylist()]
    assert times == [(1000 + offset - offset % 4) / 1000 for offset in range(120)]


async def test_a_run_begins_and_ends_within_batches(cluster: FakeCluster) -> None:
    async with consumer(cluster, start=5, stop_at_end=False, until=111) as c:
        assert await read(c) == [[*range(5, 111)]]
        assert c.position() == {0: 111}


async def test_what_a_seek_made_void_joins_nothing(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        assert (await c.poll(max_records=2))[-1].offset == 1
        assert await anext(c.batches())
        await c.seek(0, 50)
        assert await read(c) == [[*range(50, 120)]]


async def test_rows_go_on_where_records_ended(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        assert [each.offset for each in await c.poll(max_records=6)]
        start = c.position()[0]
        assert await read(c) == [[*range(start, 120)]]


async def test_others_are_batches_of_their_own(cluster: FakeCluster) -> None:
    partition = cluster.topics["t"][0]
    append(partition, [b"120"], tags=[("x",)])
    append(partition, [b"121"], keys=[b"k"])
    append(partition, [b"122"], keys=[b"k"])
    append(partition, [b"123"])
    async with consumer(cluster) as c:
        assert await read(c) == [[*range(120)], [120], [121, 122], [123]]


async def test_a_run_is_no_larger_than_its_bound(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("large")
    for _ in range(50):
        append(partition, [bytes(60 << 10)])
    async with Consumer(
        cluster.bootstrap, "large", net=cluster.net, stop_at_end=True, fetch_bytes=8 << 20
    ) as c:
        sizes = [rows.column("value").nbytes async for rows in c.batches()]
    assert len(sizes) == 2
    assert max(sizes) <= RUN_BYTES_MAX


async def test_what_inflates_to_much_is_not_joined(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("inflated")
    for length in (1 << 20, 1 << 20, 40 << 10, 40 << 10):
        append(partition, [bytes(length)], codec=Codec.ZSTD)
    assert all(len(raw) < 1000 for _, _, raw in partition.tail.batches)
    async with Consumer(cluster.bootstrap, "inflated", net=cluster.net, stop_at_end=True) as c:
        rows = [each.num_rows async for each in c.batches()]
    assert rows == [1, 1, 2]


async def test_a_run_of_single_records_ends_as_well(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("single")
    for _ in range(2 * RUN_BATCHES_MAX + 1):
        append(partition, [b"v"])
    async with Consumer(cluster.bootstrap, "single", net=cluster.net, stop_at_end=True) as c:
        rows = [each.num_rows async for each in c.batches()]
    assert rows == [RUN_BATCHES_MAX, RUN_BATCHES_MAX, 1]


async def test_a_filter_sees_each_batch(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net, idempotent=False) as producer:
        for number in range(120, 126):
            key = b"even" if number % 2 == 0 else b"odd"
            await producer.send_batch("t", [b"%d" % number], keys=[key], partition=0)
    async with consumer(cluster, keys=[b"odd"]) as c:
        assert [offset for each in await read(c) for offset in each] == [121, 123, 125]
