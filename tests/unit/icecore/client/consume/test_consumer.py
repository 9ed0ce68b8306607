"""Consumer: everything once and in order, across segments, replicas, failures and positions."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer, Record
from icecore.client.consume.reader import Reader
from icecore.errors import (
    ConfigurationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnavailableError,
    UnknownTopicError,
    UnsupportedError,
)
from tests.support.fake_cluster import FakeCluster, FakePartition


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as cluster:
        yield cluster


def consumer(cluster: FakeCluster, topic: str = "t", **kwargs: Any) -> Consumer:
    kwargs.setdefault("max_wait_ms", 100)
    return Consumer(cluster.bootstrap, topic, net=cluster.net, **kwargs)


async def fill(cluster: FakeCluster, start: int, end: int, topic: str = "t") -> None:
    """Numbers as values, ten to a batch."""
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for base in range(start, end, 10):
            values = [b"%d" % n for n in range(base, min(end, base + 10))]
            await producer.send_batch(topic, values, partition=0)


async def chain(cluster: FakeCluster, *owners: tuple[int, ...]) -> FakePartition:
    """A topic with one segment of 100 records per entry, on these nodes, leader first."""
    partition = cluster.topics["t"][0] if "t" in cluster.topics else cluster.add_topic("t")[0]
    for number, nodes in enumerate(owners):
        partition.open(nodes[0], nodes)
        if number == 0:
            del partition.segments[:-1]
        await fill(cluster, number * 100, number * 100 + 100)
    return partition


async def take(consumer: Consumer, count: int) -> list[Record]:
    records = []
    async for record in consumer:
        records.append(record)
        if len(records) == count:
            break
    return records


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


async def test_iteration_follows_new_records(cluster: FakeCluster) -> None:
    await chain(cluster, (1,))
    async with consumer(cluster) as c:
        assert numbers(await take(c, 35)) == list(range(35))
        assert c.position() == {0: 35}
        assert numbers(await take(c, 65)) == list(range(35, 100))
        waiting = asyncio.ensure_future(take(c, 10))
        await asyncio.sleep(0.25)
        await fill(cluster, 100, 110)
        records = await asyncio.wait_for(waiting, 5)
        assert [record.offset for record in records] == list(range(100, 110))
        assert (records[0].topic, records[0].partition) == ("t", 0)
        assert records[0].append_timestamp_ms == 1100
        assert await c.poll(0.05) == []
        assert c.high_watermarks() == {0: 110}


async def test_many_partitions_stop_at_end(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 7)
    async with Producer(cluster.bootstrap, net=cluster.net, batch_bytes=2000) as producer:
        for n in range(5000):
            await producer.send_wait("t", b"%d" % n, key=b"%d" % (n % 100))
    async with consumer(cluster, stop_at_end=True, fetch_bytes=3000, max_bytes=8000) as c:
        by_partition: dict[int, list[Record]] = {}
        async for record in c:
            by_partition.setdefault(record.partition, []).append(record)
        assert c.is_at_end
    assert sorted(n for records in by_partition.values() for n in numbers(records)) == [
        *range(5000)
    ]
    for records in by_partition.values():
        assert [record.offset for record in records] == list(range(len(records)))
        assert numbers(records) == sorted(numbers(records))


async def test_empty_topic_ends_at_once(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 3)
    async with consumer(cluster, stop_at_end=True) as c:
        assert [record async for record in c] == []


async def test_chain_over_nodes_that_share_nothing(cluster: FakeCluster) -> None:
    await chain(cluster, (1,), (2,), (3, 1), (2, 3), (1,))
    async with consumer(cluster, stop_at_end=True) as c:
        assert numbers([record async for record in c]) == list(range(500))
    async with consumer(cluster, start=250, stop_at_end=True) as c:
        assert numbers([record async for record in c]) == list(range(250, 500))


async def test_sealed_segments_are_read_from_another_replica(cluster: FakeCluster) -> None:
    await chain(cluster, (1, 2), (3,))
    broken: list[str] = []

    async def fail(node: int, method: str) -> None:
        if node == 1 and method == "_Fetch":
            broken.append(method)
            raise UnavailableError("down")

    cluster.before_call = fail
    async with consumer(cluster, stop_at_end=True) as c:
        assert numbers([record async for record in c]) == list(range(200))


@pytest.mark.parametrize("seed", range(4))
async def test_random_failures_lose_and_repeat_nothing(cluster: FakeCluster, seed: int) -> None:
    partition = await chain(cluster, (1, 2), (2, 3), (3, 1))
    rng = random.Random(seed)

    async def fail(node: int, method: str) -> None:
        if method == "_Fetch" and rng.random() < 0.2:
            raise rng.choice([UnavailableError(), UnavailableError("x"), UnknownTopicError()])
        if method == "_Fetch" and rng.random() < 0.1 and len(partition.segments) < 8:
            partition.open(rng.choice([1, 2, 3]), (1, 2, 3))

    cluster.before_call = fail
    async with consumer(cluster, fetch_bytes=3000) as c:
        found = await asyncio.wait_for(take(c, 300), 20)
        await fill(cluster, 300, 400)
        found += await asyncio.wait_for(take(c, 100), 20)
    assert numbers(found) == list(range(400))


async def test_damaged_answers_are_read_again(cluster: FakeCluster) -> None:
    partition = await chain(cluster, (1,))
    base, end, body = partition.tail.batches[3]
    partition.tail.batches[3] = (base, end, body[:-9] + b"\xff" + body[-8:])

    async def repair() -> None:
        await asyncio.sleep(0.1)
        partition.tail.batches[3] = (base, end, body)

    task = asyncio.ensure_future(repair())
    async with consumer(cluster, stop_at_end=True) as c:
        assert numbers([record async for record in c]) == list(range(100))
    await task


async def test_start_positions_and_seek(cluster: FakeCluster) -> None:
    await chain(cluster, (1,), (2,), (3,))
    moment = datetime.fromtimestamp((1000 + 150) / 1000, UTC)
    for start, first in [("earliest", 0), (42, 42), (moment, 150), (199, 199)]:
        async with consumer(cluster, start=start) as c:
            assert numbers(await take(c, 3)) == [first, first + 1, first + 2]
            await c.seek(0, "earliest")
            assert c.position() == {0: 0}
            assert numbers(await take(c, 250)) == list(range(250))
            await c.seek(0, moment)
            assert numbers(await c.poll(5, max_records=4)) == [150, 151, 152, 153]
            assert numbers(await c.poll(5, max_records=4)) == [154, 155, 156, 157]
    async with consumer(cluster, start="latest") as c:
        await fill(cluster, 300, 310)
        assert numbers(await take(c, 1)) == [300]
    late = datetime(2100, 1, 1, tzinfo=UTC)
    async with consumer(cluster, start=late) as c:
        assert c.position() == {0: 310}


async def test_a_seek_away_from_a_full_store_reads_on(cluster: FakeCluster) -> None:
    await chain(cluster, (1,))
    async with consumer(cluster, max_bytes=300, start=20) as c:
        assert numbers(await take(c, 1)) == [20]
        await c.seek(0, 50)
        assert numbers(await asyncio.wait_for(take(c, 10), 20)) == list(range(50, 60))


async def test_out_of_range(cluster: FakeCluster) -> None:
    partition = await chain(cluster, (1,), (2,))
    del partition.segments[0]
    partition.log_start = 100
    async with consumer(cluster, start=5) as c:
        with pytest.raises(OffsetOutOfRangeError):
            await take(c, 1)
        await c.seek(0, 150)
        assert numbers(await take(c, 1)) == [150]
    async with consumer(cluster, start=5, on_out_of_range="earliest") as c:
        assert numbers(await take(c, 1)) == [100]
        assert c.skipped_records() == {0: 95}
    async with consumer(cluster, start=5, on_out_of_range="latest") as c:
        waiting = asyncio.ensure_future(take(c, 1))
        await asyncio.sleep(0.2)
        await fill(cluster, 200, 210)
        assert numbers(await asyncio.wait_for(waiting, 5)) == [200]


async def test_a_policy_voids_nothing_that_was_fetched(cluster: FakeCluster) -> None:
    """As a seek would: what is in store, or half handed out, comes before what it moves to."""
    c = consumer(cluster, on_out_of_range="earliest")
    reader = Reader(0, 10, None)
    reader.offset, reader.buffered_bytes = 30, 500
    generation = reader.generation
    c._fetcher._apply_policy(
        reader, OffsetOutOfRangeError(log_start_offset=200, high_watermark=300)
    )
    assert (reader.offset, reader.delivered) == (200, 10)
    assert (reader.generation, reader.buffered_bytes) == (generation, 500)
    await c.close()


async def test_arrow_batches(cluster: FakeCluster) -> None:
    await chain(cluster, (1,), (2,))
    async with consumer(cluster, start=5, stop_at_end=True) as c:
        assert numbers(await take(c, 10)) == list(range(5, 15))
        found: list[int] = []
        async for rows in c.batches():
            assert rows.schema.metadata == {b"topic": b"t"}
            assert set(rows["partition"].to_pylist()) == {0}
            assert rows.column("offset").to_pylist() == [
                int(value) for value in rows.column("value").to_pylist()
            ]
            found += rows.column("offset").to_pylist()
        assert found == list(range(15, 200))
        assert c.position() == {0: 200}


async def test_a_poll_that_runs_out_of_time_skips_nothing(cluster: FakeCluster) -> None:
    await chain(cluster, (1,), (2,))
    found: list[int] = []
    async with consumer(cluster, fetch_bytes=300) as c, asyncio.timeout(60):
        while len(found) < 200:
            found += numbers(await c.poll(0))
            await asyncio.sleep(0.001)
    assert found == list(range(200))


async def test_a_node_that_lost_its_copies_is_waited_for(cluster: FakeCluster) -> None:
    await chain(cluster, (1,))
    calls = 0

    async def forget(node: int, method: str) -> None:
        nonlocal calls
        calls += method == "_Fetch"
        if method == "_Fetch" and calls <= 12:
            raise UnknownTopicError("nothing of it is on this node")

    cluster.before_call = forget
    async with consumer(cluster) as c:
        assert numbers(await take(c, 10)) == list(range(10))
    assert calls > 12


async def test_fatal_errors_and_arguments(cluster: FakeCluster) -> None:
    await chain(cluster, (1,))
    with pytest.raises(ConfigurationError):
        consumer(cluster, on_out_of_range="never")  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        await take(consumer(cluster), 1)
    with pytest.raises(UnknownTopicError):
        await consumer(cluster, "none", timeout_s=0.2).start()
    with pytest.raises(InvalidRequestError):
        await consumer(cluster, partitions=[1]).start()
    with pytest.raises(InvalidRequestError):
        await consumer(cluster, start=datetime(2026, 1, 1)).start()

    async def refuse(node: int, method: str) -> None:
        if method == "_Fetch":
            raise UnsupportedError("no")

    cluster.before_call = refuse
    async with consumer(cluster) as c:
        with pytest.raises(UnsupportedError):
            await take(c, 1)


async def test_close_ends_iterations(cluster: FakeCluster) -> None:
    await chain(cluster, (1,))
    c = consumer(cluster)
    await c.start()
    waiting = asyncio.ensure_future(take(c, 1000))
    await asyncio.sleep(0.2)
    await c.close()
    assert numbers(await asyncio.wait_for(waiting, 2)) == list(range(100))


# --- where it starts and ends -------------------------------------------------------------------


def moment(offset: int) -> datetime:
    """Return when the fake cluster took the record in."""
    return datetime.fromtimestamp(1 + offset / 1000, UTC)


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        (-5, None, range(195, 200)),
        (-1000, None, range(200)),
        ("earliest", -190, range(10)),
        (moment(150), moment(160), range(150, 160)),
        (moment(150).isoformat(), moment(160).replace(tzinfo=None).isoformat(), range(150, 160)),
        ("1970-01-01", moment(10), range(10)),
        ("1970-01-01T00:00:01.150Z", "1970-01-02", range(150, 200)),
        (95, 105, range(95, 105)),
        (105, 95, range(0)),
        ("earliest", "latest", range(200)),
    ],
)
async def test_start_and_until(
    cluster: FakeCluster, start: Any, until: Any, expected: range
) -> None:
    await chain(cluster, (1,), (2,))
    async with consumer(cluster, start=start, until=until, stop_at_end=until is None) as c:
        assert numbers([record async for record in c]) == list(expected)
        assert c.is_at_end
    async with consumer(cluster, start=start, until=until, stop_at_end=until is None) as c:
        found = (await c.to_arrow()).to_pydict()
        assert found["offset"] == list(expected)
        assert found["partition"] == [0] * len(expected)


async def test_an_offset_that_is_not_there_yet_is_waited_for(cluster: FakeCluster) -> None:
    await chain(cluster, (1,))
    async with consumer(cluster, start=-1, until=105, stop_at_end=True) as c:
        assert numbers([record async for record in c]) == [99]
    async with consumer(cluster, start=-1, until=105) as c:
        assert (await anext(c)).offset == 99
        await fill(cluster, 100, 110)
        assert numbers([record async for record in c]) == list(range(100, 105))
        await c.seek(0, -7)
        assert numbers([record async for record in c]) == [103, 104]


async def test_lag_is_known_or_left_out(cluster: FakeCluster) -> None:
    await chain(cluster, (1,))
    async with consumer(cluster, start=90) as c:
        assert c.lag() == c.high_watermarks() == {}
        await take(c, 4)
        assert (c.lag(), c.high_watermarks()) == ({0: 6}, {0: 100})
        await take(c, 6)
        assert c.lag() == {0: 0}


async def test_partitions_are_told_apart_in_one_table(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        await producer.send_batch("t", [b"a", b"b"], partition=1)
        await producer.send_batch("t", [b"c"], partition=0)
    async with consumer(cluster, stop_at_end=True) as c:
        table = await c.to_arrow()
        assert table.schema.metadata == {b"topic": b"t"}
        rows = table.select(["partition", "offset", "value"]).sort_by("value").to_pylist()
        assert [tuple(row.values()) for row in rows] == [(1, 0, b"a"), (1, 1, b"b"), (0, 0, b"c")]
        assert (await c.to_arrow()).num_rows == 0  # with all columns
    async with consumer(cluster) as c:
        with pytest.raises(InvalidRequestError, match="no end"):
            await c.to_arrow()
