"""Consumers that want some records only: nodes pick them, and nothing else moves or is missed."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer, Record
from icecore.v1 import data_pb2
from tests.support import fake_cluster
from tests.support.fake_cluster import FakeCluster

LONG_S = 20.0
WANTED: list[dict[str, Any]] = [
    {"keys": [b"a", b"\xff"]},
    {"tags_any": ["x", "z"]},
    {"tags_all": ["x", "y"]},
    {"tags_none": ["x"]},
    {"headers": {"h": b"1"}},
    {"keys": [b"a"], "tags_any": ["y"], "tags_none": ["z"]},
    {"keys": [b"nobody"]},
]


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=2) as cluster, asyncio.timeout(LONG_S):
        yield cluster


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    kwargs.setdefault("max_wait_ms", 100)
    return Consumer(cluster.bootstrap, "t", net=cluster.net, **kwargs)


async def fill(cluster: FakeCluster, count: int = 200) -> list[Record]:
    """Batches of ten, in three segments."""
    rng = random.Random(5)
    (partition,) = cluster.add_topic("t")
    records = [
        Record(
            b"%d" % number,
            rng.choice([b"a", b"b", b"\xff", None]),
            number,
            tuple(rng.sample(["x", "y", "z"], rng.randrange(4))),
            rng.choice([(), (("h", b"1"),), (("h", b"2"), ("h", b"1")), (("h", None),)]),
        )
        for number in range(count)
    ]
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for base in range(0, count, 10):
            part = records[base : base + 10]
            await producer.send_batch(
                "t",
                [each.value for each in part],
                keys=[each.key for each in part],
                tags=[each.tags for each in part],
                headers=[each.headers for each in part],
                timestamps_ms=[each.timestamp_ms for each in part],
                partition=0,
            )
            if base in (60, 130):
                partition.open(1 + base // 100, (1, 2))
    return records


def matching(records: list[Record], given: dict[str, Any]) -> list[bytes | None]:
    return [
        each.value
        for each in records
        if ("keys" not in given or each.key in given["keys"])
        and ("tags_any" not in given or set(given["tags_any"]) & set(each.tags))
        and set(given.get("tags_all", ())) <= set(each.tags)
        and not set(given.get("tags_none", ())) & set(each.tags)
        and ("headers" not in given or set(given["headers"].items()) & set(each.headers))
    ]


@pytest.mark.parametrize("is_picked_by_nodes", [True, False])
async def test_what_matches_comes_once_and_in_order(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, is_picked_by_nodes: bool
) -> None:
    """A node may pass on batches as they are; what does not match is left out here."""
    if not is_picked_by_nodes:
        monkeypatch.setattr(fake_cluster, "only_matching", lambda stored, _: stored)
    records = await fill(cluster)
    for given in WANTED:
        for start in (0, 15):
            oracle = matching(records[start:], given)
            async with consumer(cluster, start=start, stop_at_end=True, **given) as reading:
                found = [each async for each in reading]
                assert [each.value for each in found] == oracle
                assert all(each.value == b"%d" % each.offset for each in found)
                assert reading.position() == {0: 200}
            async with consumer(cluster, start=start, stop_at_end=True, **given) as reading:
                rows = [row async for batch in reading.batches() for row in batch.to_pylist()]
                assert [row["value"] for row in rows] == oracle


async def test_nothing_else_is_sent(cluster: FakeCluster) -> None:
    await fill(cluster)
    seen: list[data_pb2.RecordFilter] = []
    pick = fake_cluster.only_matching

    def watched(stored: bytes, wanted: data_pb2.RecordFilter) -> bytes:
        seen.append(wanted)
        return pick(stored, wanted)

    fake_cluster.only_matching = watched  # type: ignore[attr-defined]
    try:
        async with consumer(cluster, stop_at_end=True, keys=[b"b", b"a"]) as reading:
            assert [each async for each in reading]
    finally:
        fake_cluster.only_matching = pick  # type: ignore[attr-defined]
    assert {tuple(each.keys) for each in seen} == {(b"a", b"b")}
    async with consumer(cluster, stop_at_end=True) as reading:
        seen.clear()
        assert len([each async for each in reading]) == 200
    assert not seen


async def test_positions_move_over_what_is_not_wanted(cluster: FakeCluster) -> None:
    """So that a program that goes on there looks at nothing twice, and misses nothing."""
    records = await fill(cluster)
    oracle = matching(records, {"keys": [b"a"]})
    found: list[bytes | None] = []
    start = 0
    while True:
        async with consumer(cluster, start=start, stop_at_end=True, keys=[b"a"]) as reading:
            some = await reading.poll(LONG_S, 3)
            found += [each.value for each in some]
            assert reading.position()[0] > start or not some
            start = reading.position()[0]
        if not some:
            break
    assert found == oracle
    assert start == 200


async def test_a_match_that_comes_later_is_delivered(cluster: FakeCluster) -> None:
    await fill(cluster, 20)
    async with (
        consumer(cluster, start="latest", keys=[b"new"], max_wait_ms=5_000) as reading,
        Producer(cluster.bootstrap, net=cluster.net) as producer,
    ):
        for number in range(5):
            await producer.send_and_wait("t", b"other", key=b"old", partition=0)
            assert await reading.poll(0.05) == []
            await producer.send_and_wait("t", b"%d" % number, key=b"new", partition=0)
            (found,) = await reading.poll(LONG_S)
            assert found.value == b"%d" % number
        reading_on = asyncio.ensure_future(reading.poll(LONG_S))
        await asyncio.sleep(0.2)
        assert not reading_on.done()
        await producer.send_and_wait("t", b"last", key=b"new", partition=0)
        assert [each.value for each in await reading_on] == [b"last"]


async def test_what_is_there_is_looked_at_without_waiting(cluster: FakeCluster) -> None:
    """Nodes hold back what does not match; who only wants what is there must not wait for it."""
    await fill(cluster)
    async with consumer(cluster, stop_at_end=True, keys=[b"nobody"], max_wait_ms=60_000) as reading:
        assert [each async for each in reading] == []
    assert cluster.held_fetches == 0


async def test_seeking_with_a_filter(cluster: FakeCluster) -> None:
    records = await fill(cluster)
    async with consumer(cluster, stop_at_end=True, tags_any=["x"]) as reading:
        assert await reading.poll(LONG_S)
        await reading.seek(0, 150)
        found = [each.value async for each in reading]
    assert found == matching(records[150:], {"tags_any": ["x"]})
