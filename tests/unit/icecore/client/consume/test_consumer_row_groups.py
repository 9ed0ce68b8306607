"""A consumer that is given row groups of object storage hands out what it would of batches."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from icecore import Consumer
from icecore.client.consume import delivery
from icecore.codec import batch
from icecore.codec.columns import Record
from icecore.errors import CorruptBatchError
from tests.support.fake_cluster import FakeCluster
from tests.support.row_frames import framed, frames_of
from tests.support.tiered import Source, flights, plain, source_of, stamped

BASE = 0
ENTIRE = 12 * 50


@pytest.fixture
def source() -> Source:
    return source_of(flights(12), BASE)


@pytest_asyncio.fixture
async def cluster(source: Source) -> AsyncIterator[FakeCluster]:
    """Its log is row groups, and one batch behind them."""
    async with FakeCluster() as cluster:
        [partition] = cluster.add_topic("t")
        for frame in await frames_of(source, row_group_bytes=20_000):
            put(partition, frame)
        put(partition, stamped(plain([b"last"]), ENTIRE, 9))
        async with asyncio.timeout(30):
            yield cluster


def put(partition: Any, raw: bytes) -> None:
    header = batch.parse_header(raw)
    partition.tail.batches.append((header.base_offset, header.end_offset, raw))


def consumer(cluster: FakeCluster, **options: Any) -> Consumer:
    return Consumer(
        cluster.bootstrap,
        "t",
        net=cluster.net,
        **{"stop_at_end": True, "max_wait_ms": 50} | options,
    )


def expected(source: Source) -> list[Any]:
    return [(each.offset, each.value, each.key, each.tags, each.headers) for each in known(source)]


def known(source: Source) -> list[Record]:
    return [*source.records(), Record(b"last", offset=ENTIRE)]


def told(records: list[Record]) -> list[Any]:
    return [(each.offset, each.value, each.key, each.tags, each.headers) for each in records]


@pytest.mark.parametrize("at_once", [3, 4096])
async def test_records(
    cluster: FakeCluster, source: Source, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(delivery, "_ROWS_AT_ONCE", at_once)
    async with consumer(cluster) as c:
        found = [record async for record in c]
        assert told(found) == expected(source)
        assert found[-1].append_timestamp_ms == 9
        assert [each.append_timestamp_ms for each in found[:-1]] == [
            each.append_timestamp_ms for each in source.records()
        ]
        assert {(each.topic, each.partition) for each in found} == {("t", 0)}
        assert c.position() == {0: ENTIRE + 1}


@pytest.mark.parametrize("max_records", [1, 7, 49, 10_000])
async def test_polls(
    cluster: FakeCluster, source: Source, monkeypatch: pytest.MonkeyPatch, max_records: int
) -> None:
    monkeypatch.setattr(delivery, "_ROWS_AT_ONCE", 20)
    async with consumer(cluster) as c:
        found: list[Record] = []
        while records := await c.poll(5.0, max_records):
            assert len(records) <= max_records
            found += records
            assert c.position() == {0: found[-1].offset + 1}
    assert told(found) == expected(source)


@pytest.mark.parametrize("columns", [None, ("value",), ("tags", "offset"), ("schema_id", "topic")])
async def test_arrow(cluster: FakeCluster, source: Source, columns: Any) -> None:
    async with consumer(cluster) as c:
        found = pa.Table.from_batches([rows async for rows in c.batches(columns)])
    assert found.num_rows == ENTIRE + 1
    if columns and "value" in columns:
        assert found.column("value").to_pylist() == [each.value for each in known(source)]


async def test_a_place_in_the_middle_of_a_group_and_an_end_in_another(
    cluster: FakeCluster, source: Source
) -> None:
    async with consumer(cluster, start=133, until=411) as c:
        first = [await anext(c) for _ in range(5)]
        rows = pa.Table.from_batches([rows async for rows in c.batches()])
    offsets = [each.offset for each in first] + rows.column("offset").to_pylist()
    assert offsets == list(range(133, 411))
    values = [each.value for each in first] + rows.column("value").to_pylist()
    assert values == [each.value for each in source.records()[133:411]]


async def test_a_seek_leaves_what_is_left_of_a_group(
    cluster: FakeCluster, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_ROWS_AT_ONCE", 4)
    async with consumer(cluster) as c:
        assert len(await c.poll(5.0, 6)) == 4
        await c.seek(0, 60)
        assert (await anext(c)).offset == 60
        await c.seek(0, 2)
        assert told([record async for record in c]) == expected(source)[2:]


@pytest.mark.parametrize("policy", ["fail", "skip"])
async def test_one_that_is_no_row_group(cluster: FakeCluster, policy: Any) -> None:
    [partition] = cluster.add_topic("bad")
    put(partition, framed(b"PAR1 and no more", 5, (0, 5)))
    put(partition, stamped(plain([b"behind"]), 5, 9))
    async with Consumer(
        cluster.bootstrap, "bad", net=cluster.net, stop_at_end=True, on_corrupt=policy
    ) as c:
        if policy == "skip":
            assert [record.value async for record in c] == [b"behind"]
            assert c.corrupt_batches == 1
        else:
            with pytest.raises(CorruptBatchError, match="seek to 5"):
                await anext(c)
            await c.seek(0, 5)
            assert (await anext(c)).value == b"behind"


@pytest.mark.parametrize(
    "options", [{"tags_any": ["UA"]}, {"fetch_bytes": 1000}, {"max_bytes": 1000}]
)
async def test_who_did_not_ask_for_one_takes_none(
    cluster: FakeCluster, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that sends it all the same is not believed: a filter would be passed by."""
    monkeypatch.setattr("tests.support.fake_cluster.only_matching", lambda stored, _: stored)
    async with consumer(cluster, stop_at_end=False, **options) as c:
        assert not await c.poll(0.5)
