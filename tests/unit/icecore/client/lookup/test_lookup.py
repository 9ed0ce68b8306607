"""Lookup: exact pages in one order, whoever answers; honest about what nobody could search."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import pytest_asyncio

from icecore import Lookup, LookupPage, Producer
from icecore.client.lookup import merged_search
from icecore.client.lookup.merged_search import REQUESTS_MAX
from icecore.client.types import SearchOutcome
from icecore.codec.record import Record, partition_for_key
from icecore.codec.record_columns import columns_of
from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    NotReplicaError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
    UnsupportedError,
)
from icecore.model import SegmentState
from icecore.rpc.record_columns import to_proto
from icecore.topic_settings import SegmentSettings
from icecore.v1 import data_pb2
from tests.support import rotation
from tests.support.fake_cluster import FakeCluster, FakePartition
from tests.support.fake_query import answer_query

KEYS = [b"a", b"", b"\xff\x00", b"k" * 5000, None]
TAGS = [(), ("x",), ("x", "y"), ("y", "né"), tuple(f"t{n}" for n in range(1000))]
HEADERS = [(), (("h", b"1"),), (("h", b"2"), ("g", b"1")), (("h", None),)]
CONDITIONS: list[dict[str, Any]] = [
    {},
    {"keys": [b"a"]},
    {"keys": [b"", b"k" * 5000, b"nobody"]},
    {"tags_any": ["x", "t7"]},
    {"tags_all": ["x", "y"], "tags_none": ["né"]},
    {"tags_none": ["x", "y"]},
    {"headers": {"h": b"1", "g": b"1"}},
    {"from_event_time": 20, "to_event_time": 80},
    {"keys": [b"a"], "tags_any": ["x"], "from_event_time": 30},
    {"from_offset": 5, "to_offset": 17},
    {"from_append_time": 1007, "to_append_time": 1022},
    {"from_append_time": 1007, "from_offset": 11},
]


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as cluster:
        yield cluster


def lookup(cluster: FakeCluster, **kwargs: Any) -> Lookup:
    kwargs = {"net": cluster.net, "rng": None, "patience_s": 0.2} | kwargs
    return Lookup(cluster.bootstrap, "t", **kwargs)


def producer(cluster: FakeCluster) -> AbstractAsyncContextManager[Producer]:
    return Producer(cluster.bootstrap, net=cluster.net, linger_ms=0)


async def fill(cluster: FakeCluster, partitions: int, seed: int = 1) -> list[Record]:
    """Records in several segments on several nodes; what was produced, as it can be found."""
    rng = random.Random(seed)
    made = cluster.add_topic("t", partitions)
    records = []
    async with producer(cluster) as p:
        for number in range(60):
            key, partition = rng.choice(KEYS), rng.randrange(partitions)
            if key is not None:
                partition = partition_for_key(key, partitions)
            record = Record(
                b"%d" % number,
                key,
                rng.randrange(100),
                rng.choice(TAGS),
                rng.choice(HEADERS),
                partition=partition,
                topic="t",
            )
            found = await p.send_and_wait(
                "t",
                record.value,
                key=key,
                tags=record.tags,
                headers=record.headers,
                timestamp_ms=record.timestamp_ms,
                partition=partition,
            )
            record.offset, record.append_timestamp_ms = found.offset, found.append_timestamp_ms
            records.append(record)
            if rng.random() < 0.15:
                leader = rng.choice([1, 2, 3])
                made[partition].open(leader, tuple({leader, rng.choice([1, 2, 3])}))
    return records


def wanted(records: list[Record], given: dict[str, Any], newest_first: bool) -> list[Record]:
    """Return the records that match, by brute force."""

    def is_wanted(r: Record) -> bool:
        pairs = set(r.headers) & set(given.get("headers", {}).items())
        return (
            ("keys" not in given or r.key in given["keys"])
            and ("tags_any" not in given or any(t in r.tags for t in given["tags_any"]))
            and all(t in r.tags for t in given.get("tags_all", ()))
            and not any(t in r.tags for t in given.get("tags_none", ()))
            and ("headers" not in given or bool(pairs))
            and given.get("from_event_time", 0) <= r.timestamp_ms
            and r.timestamp_ms < given.get("to_event_time", 1000)
            and given.get("from_offset", 0) <= r.offset < given.get("to_offset", 1000)
            and given.get("from_append_time", 0) <= r.append_timestamp_ms
            and r.append_timestamp_ms < given.get("to_append_time", 10_000)
        )

    found = [each for each in records if is_wanted(each)]
    found.sort(key=lambda each: (each.append_timestamp_ms, each.partition, each.offset))
    return found[::-1] if newest_first else found


async def all_pages(search: Lookup, **given: Any) -> list[LookupPage]:
    """Each with the token of the one before, as a program would that keeps nothing else."""
    pages = [await search.find(**given)]
    while pages[-1].continuation:
        pages.append(await search.find(**given, continuation=pages[-1].continuation))
    return pages


ONE_BY_ONE = rotation.take(
    "unit: conditions whose records are looked up one by one", CONDITIONS, -(-len(CONDITIONS) // 3)
)
"""Pages of one record take most of the time."""


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_every_kind_against_brute_force(
    cluster: FakeCluster, partitions: int, newest_first: bool
) -> None:
    records = await fill(cluster, partitions)
    async with lookup(cluster) as search:
        for given in CONDITIONS:
            oracle = wanted(records, given, newest_first)
            for max_count in (1, 7, 10_000) if given in ONE_BY_ONE else (7, 10_000):
                asked = {**given, "newest_first": newest_first, "max_count": max_count}
                pages = await all_pages(search, **asked)
                found = [each for page in pages for each in page.records]
                assert found == oracle, f"{asked}"
                assert all(page.complete for page in pages)
                assert all(len(page.records) <= max_count for page in pages)
                if max_count > 1:
                    run = [page async for page in search.pages(**asked)]
                    assert [each for page in run for each in page.records] == oracle


async def test_a_full_page_asks_for_nothing_more(cluster: FakeCluster) -> None:
    await fill(cluster, 1)
    async with lookup(cluster) as search:
        page = await search.find(max_count=1)
        assert [each.value for each in page.records] == [b"0"]
        assert [each.max_count for each in cluster.queries] == [1]
        cluster.queries.clear()
        page = await search.find(max_count=3, newest_first=True)
        assert [each.value for each in page.records] == [b"59", b"58", b"57"]
        (first, *_) = cluster.queries
        tail = cluster.topics["t"][0].tail.record
        assert first.partitions[0].segment_ids[0] == tail.segment_id
        assert sum(each.max_count for each in cluster.queries) <= 6


async def test_at_most_some_requests_are_under_way(cluster: FakeCluster) -> None:
    for partition in cluster.add_topic("t", 30):
        partition.open(1, (1,))
    under_way, most = 0, 0

    async def watch(_: int, method: str) -> None:
        nonlocal under_way, most
        if method == "_Query":
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1

    cluster.before_call = watch
    async with lookup(cluster) as search:
        assert (await search.find()).indexed_through == dict.fromkeys(range(30), 0)
    assert 1 < most <= REQUESTS_MAX


async def test_what_is_appended_meanwhile_is_of_the_next_look_up(cluster: FakeCluster) -> None:
    """Pages of one look-up are one answer: it ends, whoever goes on to produce."""
    (partition,) = cluster.add_topic("t")
    for newest_first in (False, True):
        async with lookup(cluster) as search, producer(cluster) as p:
            await asyncio.gather(*(p.send_and_wait("t", b"before") for _ in range(4)))
            end = partition.tail.end
            found: list[int] = []
            page = await search.find(newest_first=newest_first, max_count=3)
            while page.records:
                assert page.indexed_through == {0: end - len(found) if newest_first else end}
                found += [each.offset for each in page.records]
                await p.send_and_wait("t", b"later")
                partition.open(2, (2,))
                if not page.continuation:
                    break
                page = await search.find(
                    newest_first=newest_first, max_count=3, continuation=page.continuation
                )
            assert found == sorted(range(end), reverse=newest_first)


# --- where to look --------------------------------------------------------------------------------


def asked_partitions(cluster: FakeCluster) -> set[int]:
    found = {each.partitions[0].partition for each in cluster.queries}
    cluster.queries.clear()
    return found


async def test_a_key_is_looked_for_where_it_may_have_lived(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 3)
    cluster.add_partitions("t", 2)
    cluster.add_partitions("t", 8)
    keys = [b"%d" % n for n in range(5)]
    async with lookup(cluster) as search:
        for key in keys:
            await search.find(keys=[key])
            places = {partition_for_key(key, count) for count in (3, 5, 13)}
            assert asked_partitions(cluster) == places
        await search.find(keys=keys[:2])
        several = {partition_for_key(key, count) for key in keys[:2] for count in (3, 5, 13)}
        assert asked_partitions(cluster) == several
        await search.find(keys=keys, partitions=[12, 1])
        assert asked_partitions(cluster) == {1, 12}
        await search.find(tags_any=["x"])
        assert asked_partitions(cluster) == set(range(13))


@pytest.mark.parametrize("why", ["custom", "unknown"])
async def test_where_a_key_has_lived_may_be_unknown(cluster: FakeCluster, why: str) -> None:
    if why == "custom":
        cluster.topic_settings["t"] = SegmentSettings(partitioner="custom")
    cluster.add_topic("t", 4)
    if why == "unknown":
        cluster.earlier_partitions["t"] = [0]
    async with lookup(cluster) as search:
        await search.find(keys=[b"k"])
    assert asked_partitions(cluster) == set(range(4))


async def test_segments_of_one_node_go_in_one_request(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        for replicas in ((1,), (1,), (2,), (2, 3), (3,)):
            partition.open(replicas[0], replicas)
            await p.send_and_wait("t", b"v")
    async with lookup(cluster) as search:
        page = await search.find()
        assert len(page.records) == 5
        calls = [number for number, method in cluster.calls if method == "_Query"]
        assert calls in ([1, 2, 3], [1, 2, 3])
        assert [len(each.partitions[0].segment_ids) for each in cluster.queries] == [2, 2, 1]


async def test_new_segments_are_found_at_once(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with lookup(cluster) as search, producer(cluster) as p:
        for number in range(5):
            await p.send_and_wait("t", b"v")
            assert len((await search.find()).records) == number + 1
            partition.open(number % 3 + 1, (number % 3 + 1,))


async def test_what_is_sealed_is_asked_for_once(cluster: FakeCluster) -> None:
    """The coordinator is asked for sealed segments once, whatever another partition has."""
    first, _, third = cluster.add_topic("t", 3)
    async with lookup(cluster) as search, producer(cluster) as p:
        for number in range(9):
            for partition in (first, third):
                await p.send_and_wait("t", b"v", partition=partition.number)
                if number < 4 or partition is first:
                    partition.open(1, (1,))
        await search.find()
        cluster.calls.clear()
        assert len((await search.find()).records) == 18
        lists = [each for each in cluster.calls if each == (0, "ListSegments")]
        assert len(lists) <= 3


async def test_copies_that_moved_are_found(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with lookup(cluster) as search, producer(cluster) as p:
        await p.send_and_wait("t", b"v")
        partition.open(2, (2,))
        assert len((await search.find()).records) == 1
        first = partition.segments[0]
        first.record = first.record.changed(replicas=(3,))
        page = await search.find()
        assert len(page.records) == 1
        assert page.complete
        assert page.segments[0].node_id == 3


# --- what can't be searched -----------------------------------------------------------------------


async def three_segments(cluster: FakeCluster) -> FakePartition:
    """One record each; the middle one on nodes 2 and 3."""
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        for replicas in ((1,), (2, 3), (1,)):
            if partition.tail.batches:
                partition.open(replicas[0], replicas)
            await p.send_and_wait("t", b"v")
    return partition


def broken(*nodes: int) -> Callable[[int, str], Any]:
    async def fail(number: int, method: str) -> None:
        if number in nodes and method == "_Query":
            raise UnavailableError("out of order")

    return fail


@pytest.mark.parametrize("newest_first", [False, True])
async def test_another_replica_is_asked(cluster: FakeCluster, newest_first: bool) -> None:
    await three_segments(cluster)
    cluster.before_call = broken(2)
    async with lookup(cluster) as search:
        for _ in range(4):
            page = await search.find(newest_first=newest_first)
            assert page.complete
            assert sorted(each.offset for each in page.records) == [0, 1, 2]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("max_count", [1, 10])
async def test_a_segment_that_nobody_can_search_is_named(
    cluster: FakeCluster, newest_first: bool, max_count: int
) -> None:
    await three_segments(cluster)
    cluster.before_call = broken(2, 3)
    async with lookup(cluster) as search:
        pages = await all_pages(search, newest_first=newest_first, max_count=max_count)
        found = [each.offset for page in pages for each in page.records]
        assert found == ([2, 0] if newest_first else [0, 2])
        assert not all(page.complete for page in pages)
        (gone,) = [each for page in pages for each in page.unavailable]
        assert (gone.base_offset, gone.end_offset, gone.records) == (1, 2, 0)
        assert "out of order" in gone.error
        assert (await search.record(0, 0)) is not None
        with pytest.raises(UnavailableError, match="offset 1"):
            await search.record(0, 1)
        cluster.before_call = None
        assert (await search.find()).complete


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_tail_without_leader(cluster: FakeCluster, newest_first: bool) -> None:
    partition = await three_segments(cluster)
    tail = partition.tail
    tail.record = tail.record.changed(leader=0)
    async with lookup(cluster) as search:
        page = await search.find(newest_first=newest_first)
        assert sorted(each.offset for each in page.records) == [0, 1]
        assert not page.complete
        assert page.unavailable[0].end_offset == -1
        assert page.indexed_through == {0: 2}
        tail.record = tail.record.changed(leader=1)
        page = await search.find(newest_first=newest_first)
        assert page.complete
        assert page.indexed_through == {0: 3}


async def test_a_new_leader_is_waited_for(cluster: FakeCluster) -> None:
    partition = await three_segments(cluster)
    tail = partition.tail
    tail.record = tail.record.changed(leader=0)
    async with lookup(cluster, patience_s=10) as search:
        asking = asyncio.ensure_future(search.find())
        await asyncio.sleep(0.1)
        tail.record = tail.record.changed(leader=1)
        assert (await asking).complete


async def test_records_that_were_declared_lost_are_missing(cluster: FakeCluster) -> None:
    partition = await three_segments(cluster)
    middle = partition.segments[1]
    middle.record = middle.record.changed(replicas=(), lossy=True)
    assert middle.record.state is SegmentState.SEALED
    async with lookup(cluster, patience_s=60) as search:
        page = await search.find()
    assert [each.offset for each in page.records] == [0, 2]
    assert not page.complete
    assert "lost" in page.unavailable[0].error


@pytest.mark.parametrize("newest_first", [False, True])
async def test_offsets_that_were_left_out_are_passed(
    cluster: FakeCluster, newest_first: bool
) -> None:
    """Nobody holds them, and nothing is missing."""
    partition = await three_segments(cluster)
    middle = partition.segments[1]
    middle.record = middle.record.changed(replicas=(), seal_digest=b"")
    assert middle.record.is_skipped and not middle.record.is_lost
    async with lookup(cluster, patience_s=60) as search:
        page = await search.find(newest_first=newest_first)
    assert sorted(each.offset for each in page.records) == [0, 2]
    assert page.complete and not page.unavailable


async def test_what_a_node_can_not_search_is_asked_elsewhere(cluster: FakeCluster) -> None:
    """It answers for the rest of what it was asked for."""
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        for _ in range(3):
            partition.open(1, (1, 2))
            await p.send_and_wait("t", b"v")
    damaged = partition.segments[2].record.segment_id

    def damage(number: int, answer: data_pb2.QueryResponse) -> None:
        for line in answer.partitions[0].segments:
            if number == 1 and line.segment_id == damaged:
                line.outcome = data_pb2.SEARCH_OUTCOME_UNAVAILABLE
                line.error.reason, line.error.message = "STORAGE", "a bad sector"
                answer.complete = False

    cluster.on_query = damage
    async with lookup(cluster) as search:
        for newest_first in (False, True):
            for _ in range(4):
                page = await search.find(newest_first=newest_first)
                assert page.complete
                assert sorted(each.offset for each in page.records) == [0, 1, 2]
        partition.segments[2].record = partition.segments[2].record.changed(replicas=(1,))
        page = await search.find()
        assert [each.offset for each in page.records] == [0, 2]
        assert "a bad sector" in page.unavailable[0].error


def forge_order(answer: data_pb2.QueryResponse) -> None:
    records = list(answer.partitions[0].records)
    del answer.partitions[0].records[:]
    answer.partitions[0].records.extend(reversed(records))


def forge_twice(answer: data_pb2.QueryResponse) -> None:
    answer.partitions[0].records.append(answer.partitions[0].records[-1])


def forge_key(answer: data_pb2.QueryResponse) -> None:
    answer.partitions[0].records[0].key = b"other"


def forge_place(answer: data_pb2.QueryResponse) -> None:
    answer.partitions[0].records[-1].offset += 100


def forge_columns(answer: data_pb2.QueryResponse) -> None:
    result = answer.partitions[0]
    other = Record(b"v", b"other", 0, offset=result.records[0].offset, append_timestamp_ms=1)
    del result.records[:]
    result.columns.append(to_proto(columns_of([other])))


def forge_columns_order(answer: data_pb2.QueryResponse) -> None:
    result = answer.partitions[0]
    columns = to_proto(columns_of([Record(b"v", b"k", 0, offset=at) for at in (2, 1)]))
    del result.records[1:]
    result.columns.append(columns)


def forge_lengths(answer: data_pb2.QueryResponse) -> None:
    answer.partitions[0].columns.append(data_pb2.RecordColumns(offsets=bytes(7)))


def forge_partition(answer: data_pb2.QueryResponse) -> None:
    answer.partitions[0].partition += 1


def forge_nothing(answer: data_pb2.QueryResponse) -> None:
    del answer.partitions[:]


def forge_range(answer: data_pb2.QueryResponse) -> None:
    answer.partitions[0].searched_from_offset = answer.partitions[0].searched_to_offset + 1


def forge_standstill(answer: data_pb2.QueryResponse) -> None:
    result = answer.partitions[0]
    del result.records[:]
    result.searched_to_offset = result.searched_from_offset
    answer.continuation = b"more"


def forge_incomplete(answer: data_pb2.QueryResponse) -> None:
    answer.complete = False
    del answer.partitions[0].records[:]


def forge_lag(answer: data_pb2.QueryResponse) -> None:
    result = answer.partitions[0]
    del result.records[:]
    result.searched_to_offset = result.searched_from_offset


@pytest.mark.parametrize(
    "forge",
    [
        forge_order,
        forge_twice,
        forge_key,
        forge_place,
        forge_columns,
        forge_columns_order,
        forge_lengths,
        forge_partition,
        forge_nothing,
        forge_range,
        forge_standstill,
        forge_incomplete,
        forge_lag,
    ],
)
async def test_a_node_that_answers_nonsense_is_not_believed(
    cluster: FakeCluster, forge: Callable[[data_pb2.QueryResponse], None]
) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        for _ in range(3):
            await p.send_and_wait("t", b"v", key=b"k")
    partition.open(3, (3,))
    sealed = partition.segments[0]
    sealed.record = sealed.record.changed(replicas=(1, 2))
    cluster.on_query = lambda number, answer: forge(answer) if number == 1 else None
    async with lookup(cluster) as search:
        for _ in range(4):
            page = await search.find(keys=[b"k"])
            assert page.complete
            assert [each.offset for each in page.records] == [0, 1, 2]
        sealed.record = sealed.record.changed(replicas=(1,))
        page = await search.find(keys=[b"k"])
        assert not page.complete
        assert page.records == ()


@pytest.mark.parametrize("searched", [1, 0])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_node_that_says_it_went_further_than_it_was_asked_is_not_believed(
    cluster: FakeCluster, newest_first: bool, searched: int
) -> None:
    """Else what comes behind is left out, or looked at for ever, and the answer calls itself
    complete."""
    partition = await three_segments(cluster)
    partition.segments[1].record = partition.segments[1].record.changed(replicas=(2,))

    def forge(_: int, answer: data_pb2.QueryResponse) -> None:
        result = answer.partitions[0]
        if any(each.base_offset == 1 for each in result.segments):
            result.searched_to_offset += 100
            result.searched_from_offset = result.searched_to_offset - searched
            answer.continuation = b"more"

    cluster.on_query = forge
    async with lookup(cluster) as search:
        page = await search.find(newest_first=newest_first)
        assert sorted(each.offset for each in page.records) == [0, 2]
        assert [each.base_offset for each in page.unavailable] == [1]


@pytest.mark.parametrize("takes_columns", [False, True])
async def test_a_node_that_sends_more_records_than_it_was_asked_for_is_not_believed(
    cluster: FakeCluster, takes_columns: bool
) -> None:
    """Else it would decide how much memory a look-up takes."""
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        for _ in range(10):
            await p.send_and_wait("t", b"v")
    partition.open(3, (3,))
    sealed = partition.segments[0]
    sealed.record = sealed.record.changed(replicas=(1, 2))

    def forge(number: int, answer: data_pb2.QueryResponse) -> None:
        if number == 1:
            request = data_pb2.QueryRequest()
            request.CopyFrom(cluster.queries[-1])
            request.max_count, request.takes_columns = 100, takes_columns
            answer.CopyFrom(answer_query(partition, number, request))

    cluster.on_query = forge
    async with lookup(cluster) as search:
        for _ in range(4):
            page = await search.find(max_count=4)
            assert page.complete
            assert [each.offset for each in page.records] == [0, 1, 2, 3]
        sealed.record = sealed.record.changed(replicas=(1,))
        page = await search.find(max_count=4)
        assert page.records == ()
        assert "10 records" in page.unavailable[0].error


async def test_a_leader_that_knows_less_than_was_seen_is_waited_for(cluster: FakeCluster) -> None:
    """As after a failover: what pages before have promised still comes."""
    cluster.add_topic("t")
    async with producer(cluster) as p:
        for _ in range(6):
            await p.send_and_wait("t", b"v")
    late = 3

    def lag(_: int, answer: data_pb2.QueryResponse) -> None:
        nonlocal late
        late -= 1
        result = answer.partitions[0]
        if late >= 0:
            del result.records[:]
            result.indexed_through_offset = 4
            result.searched_to_offset = max(4, result.searched_from_offset)
            answer.continuation = b""

    async with lookup(cluster, patience_s=10) as search:
        page = await search.find(max_count=5)
        cluster.on_query = lag
        page = await search.find(max_count=5, continuation=page.continuation)
        assert [each.offset for each in page.records] == [5]
        assert late < 0


async def test_errors_that_no_other_node_mends_are_raised(cluster: FakeCluster) -> None:
    await three_segments(cluster)
    async with lookup(cluster) as search:
        for error in (InvalidRequestError("no"), UnsupportedError("an old node")):

            async def fail(_: int, method: str, error: IcecoreError = error) -> None:
                if method == "_Query":
                    raise error

            cluster.before_call = fail
            with pytest.raises(type(error)):
                await search.find()


async def test_a_page_takes_no_longer_than_its_time(cluster: FakeCluster) -> None:
    await three_segments(cluster)

    async def hang(_: int, method: str) -> None:
        if method == "_Query":
            await asyncio.sleep(60)

    async with lookup(cluster, timeout_s=1) as search:
        await search.find()  # what follows knows the topic: half of its time is not over before
        cluster.before_call = hang
        with pytest.raises(RequestTimeoutError, match="timeout_s"):
            await search.find()


@pytest.mark.parametrize("partitions", [1, 3])
async def test_what_takes_long_comes_in_pages(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(merged_search, "REQUESTS_MAX", 1)
    records = await fill(cluster, partitions)

    async def dawdle(_: int, method: str) -> None:
        if method == "_Query":
            await asyncio.sleep(0.12)

    cluster.before_call = dawdle
    async with lookup(cluster, timeout_s=0.6) as search:
        for tag, newest_first in (("nobody's", False), ("x", True)):
            given = {"tags_any": [tag]}
            pages = [page async for page in search.pages(**given, newest_first=newest_first)]
            assert len(pages) > 1
            assert all(page.complete for page in pages)
            found = [each for page in pages for each in page.records]
            assert found == wanted(records, given, newest_first)
        last = records[-1]
        assert await search.record(last.partition, last.offset) == last


async def test_errors_of_one_partition_end_the_others(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 20)

    async def fail(number: int, method: str) -> None:
        if method == "_Query":
            if number == 1:
                raise InvalidRequestError("no")
            await asyncio.sleep(60)

    cluster.before_call = fail
    async with lookup(cluster) as search:
        with pytest.raises(InvalidRequestError):
            await search.find()


# --- continuations --------------------------------------------------------------------------------


async def test_continuations_of_others_are_refused(cluster: FakeCluster) -> None:
    await fill(cluster, 4)
    question = {"tags_any": ["x"], "max_count": 2}
    async with lookup(cluster) as search:
        token = (await search.find(**question)).continuation
        assert (await search.find(**{**question, "max_count": 9}, continuation=token)).records
        for other in (
            {"tags_any": ["y"]},
            {"tags_all": ["x"], "tags_any": None},
            {"newest_first": True},
            {"partitions": [0]},
            {"from_offset": 1},
            {"from_append_time": 1},
            {"to_event_time": 1},
        ):
            with pytest.raises(InvalidRequestError, match="another question"):
                await search.find(**{**question, **other, "continuation": token})
        for at in range(len(token)):
            bad = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
            with pytest.raises(InvalidRequestError, match="continuation"):
                await search.find(**question, continuation=bad)
        for bad in (token[:-1], token + b"x", b"x", b"x" * 2_000_000):
            with pytest.raises(InvalidRequestError, match="continuation"):
                await search.find(**question, continuation=bad)


async def test_a_topic_that_was_made_again(cluster: FakeCluster) -> None:
    await fill(cluster, 1)
    async with lookup(cluster) as search:
        token = (await search.find(max_count=2)).continuation
        pages = search.pages(max_count=2)
        assert len((await anext(pages)).records) == 2
        cluster.add_topic("t")
        search._asked_ms -= 5000
        assert (await search.find()).records == ()
        with pytest.raises(InvalidRequestError, match="made again"):
            await search.find(max_count=2, continuation=token)
        cluster.before_call = broken(1, 2, 3)
        with pytest.raises(TopicRecreatedError):
            await anext(pages)


# --- by id, by time, explained --------------------------------------------------------------------


async def test_records_by_id(cluster: FakeCluster) -> None:
    records = await fill(cluster, 2)
    async with lookup(cluster) as search:
        for each in records[::7]:
            assert await search.record(each.partition, each.offset) == each
        assert await search.record(0, 1_000_000) is None
        cluster.topics["t"][0].log_start = cluster.topics["t"][0].segments[0].end
        assert await search.record(0, 0) is None


async def test_offsets_by_append_time(cluster: FakeCluster) -> None:
    """The fake appends at 1000 + offset."""
    partition = await three_segments(cluster)
    partition.open(2, (2,))
    async with lookup(cluster) as search:
        for moment, lower, upper in ((0, 0, 0), (1000, 0, 1), (1001, 1, 2), (1002, 2, 3)):
            for given in (moment, datetime.fromtimestamp(moment / 1000, UTC)):
                found = await search.offset_at(given)
                assert found[0].offset == lower
                found = await search.offset_at(given, boundary="upper", partitions=[0])
                assert found[0].offset == upper
        between = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1001, microseconds=1)
        assert (await search.offset_at(between))[0].offset == 2
        assert (await search.offset_at(between, boundary="upper"))[0].offset == 2
        elsewhere = between.astimezone(timezone(timedelta(hours=5)))
        assert (await search.offset_at(elsewhere))[0].offset == 2
        assert (await search.offset_at(5000, boundary="upper"))[0].offset == 3


async def test_explained_only(cluster: FakeCluster) -> None:
    records = await fill(cluster, 3)
    async with lookup(cluster) as search:
        page = await search.explain(tags_any=["x"], newest_first=True)
        assert page.records == ()
        assert all(each.explain_only for each in cluster.queries)
        segments = [each for p in cluster.topics["t"] for each in p.segments if each.batches]
        named = {each.segment_id for each in page.segments}
        assert {each.record.segment_id for each in segments} <= named
        assert all(each.outcome is SearchOutcome.SCAN for each in page.segments)
        (one,) = (await search.explain(keys=[b"a"], from_offset=0, to_offset=1)).segments
        assert one.data_bytes > 0
    assert records


# --- bad input ------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_count": 0}, "max_count"),
    ({"max_count": 10_001}, "10000"),
    ({"max_count": -1}, "max_count"),
    ({"keys": [b"%d" % n for n in range(1_000_000)]}, "at most 1000"),
    ({"keys": [b"x" * (1 << 20), b"y"]}, "at most 1048576"),
    ({"keys": []}, "empty"),
    ({"tags_any": ()}, "empty"),
    ({"tags_all": [str(n) for n in range(101)]}, "at most 100"),
    ({"headers": {}}, "empty"),
    ({"headers": [("h", b"%d" % n) for n in range(101)]}, "at most 100"),
    ({"tags_none": ["\ud800"]}, "UTF-8"),
    ({"partitions": []}, "empty"),
    ({"partitions": [2]}, "partitions 0 to 1"),
    ({"from_offset": -1}, "from_offset"),
    ({"from_offset": 7, "to_offset": 7}, "not before"),
    ({"from_offset": 8, "to_offset": 7}, "not before"),
    ({"from_event_time": 5, "to_event_time": 5}, "not before"),
    ({"from_append_time": 6, "to_append_time": 5}, "not before"),
    ({"from_event_time": datetime(2026, 1, 1)}, "time zone"),
    ({"continuation": b"forged"}, "continuation"),
]
WRONG: list[dict[str, Any]] = [
    {"keys": b"k"},
    {"keys": ["k"]},
    {"keys": [[b"k"]]},
    {"keys": 1},
    {"tags_any": "x"},
    {"tags_any": [b"x"]},
    {"headers": {"h": "1"}},
    {"headers": {"h": None}},
    {"headers": [("h",)]},
    {"headers": b"h"},
    {"headers": {1: b"1"}},
    {"from_offset": "1"},
    {"to_offset": 1.5},
    {"from_event_time": "now"},
    {"from_append_time": True},
    {"partitions": "0"},
    {"newest_first": 1},
    {"max_count": True},
    {"continuation": "text"},
    {"unknown": 1},
]


async def test_newest_first_the_end_was_seen_whatever_is_missing_below_it(
    cluster: FakeCluster,
) -> None:
    (partition,) = cluster.add_topic("t")
    async with lookup(cluster) as search, producer(cluster) as p:
        await p.send_and_wait("t", b"before")
        partition.open(partition.tail.record.leader, partition.tail.record.replicas)
        for _ in range(3):
            await p.send_and_wait("t", b"later")
        asked: list[int] = []

        def lack_the_earlier(node_id: int, answer: data_pb2.QueryResponse) -> None:
            asked.append(node_id)
            if len(asked) == 1:
                answer.complete = False
                answer.partitions[0].segments[0].outcome = data_pb2.SEARCH_OUTCOME_ELSEWHERE

        cluster.on_query = lack_the_earlier
        page = await search.find(newest_first=True)
    assert [each.offset for each in page.records] == [3, 2, 1, 0]
    assert page.complete and page.indexed_through == {0: 4} and len(asked) == 2


@pytest.mark.parametrize(
    "asked", [{"max_count": 1}, {"from_offset": 6}, {"from_offset": 6, "newest_first": True}]
)
async def test_a_page_that_does_not_come_to_the_segment_that_took_appends(
    cluster: FakeCluster, asked: dict[str, Any]
) -> None:
    """It says nothing of that segment, and all the same that there is more behind it."""
    (partition,) = cluster.add_topic("t")
    leader, replicas = partition.tail.record.leader, partition.tail.record.replicas
    async with lookup(cluster) as search, producer(cluster) as p:
        await p.send_and_wait("t", b"v")
        partition.open(leader, replicas)
        for _ in range(3):
            await p.send_and_wait("t", b"v")
        assert len((await search.find()).records) == 4
        partition.open(leader, replicas)
        for _ in range(4):
            await p.send_and_wait("t", b"later")

        def say_little(_: int, answer: data_pb2.QueryResponse) -> None:
            (result,) = answer.partitions
            here = (result.searched_from_offset, result.searched_to_offset)
            lines = [each for each in result.segments if here[0] < each.end_offset]
            lines = [each for each in lines if each.base_offset < here[1]]
            del result.segments[:]
            result.segments.extend(lines)

        cluster.on_query = say_little
        pages = await all_pages(search, **asked)
    found = sorted(each.offset for page in pages for each in page.records)
    assert found == [*range(asked.get("from_offset", 0), 8)]


@pytest.mark.parametrize(
    "asked", [{"newest_first": True, "to_offset": 100}, {"from_offset": 100}, {"to_offset": 100}]
)
async def test_a_page_that_ended_with_nothing_claims_nothing_of_what_the_question_gave(
    cluster: FakeCluster, asked: dict[str, Any]
) -> None:
    """No node could search the partition before the time of the first page was over."""
    cluster.add_topic("t")
    is_away = [True]

    def lack_all(_: int, answer: data_pb2.QueryResponse) -> None:
        if is_away:
            answer.complete = False
            answer.partitions[0].segments[0].outcome = data_pb2.SEARCH_OUTCOME_ELSEWHERE

    cluster.on_query = lack_all
    async with lookup(cluster, timeout_s=2, patience_s=30) as search, producer(cluster) as p:
        for _ in range(4):
            await p.send_and_wait("t", b"v")
        before = await search.find(**asked)
        assert before.continuation and not before.records
        is_away.clear()
        page = await search.find(**asked, continuation=before.continuation)
    assert page.complete and not page.continuation and page.indexed_through == {0: 4}
    assert len(page.records) == (0 if "from_offset" in asked else 4)


async def test_bad_arguments(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    async with lookup(cluster) as search:
        for given, why in BAD:
            for ask in (search.find, search.explain):
                with pytest.raises(InvalidRequestError, match=why):
                    await ask(**given)
            with pytest.raises(InvalidRequestError, match=why):
                await anext(search.pages(**given))
        for given in WRONG:
            with pytest.raises(TypeError):
                await search.find(**given)
        for partition, offset in ((2, 0), (0, -1), (-1, 0), (0, 1 << 63)):
            with pytest.raises(InvalidRequestError):
                await search.record(partition, offset)
        for moment in (None, "now"):
            with pytest.raises(TypeError):
                await search.offset_at(moment)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError):
            await search.offset_at(1, boundary="middle")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError):
            await search.offset_at(1, partitions=[9])
    assert not cluster.queries


def test_not_replica_is_retriable() -> None:
    """The search relies on this."""
    assert NotReplicaError.retriable


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("max_count", [2, 100])
async def test_a_leader_whose_earlier_segment_is_not_sealed_yet(
    cluster: FakeCluster, newest_first: bool, max_count: int
) -> None:
    """It leads the next one already; who asks knows of the earlier one alone."""
    (partition,) = cluster.add_topic("t")
    async with lookup(cluster) as search, producer(cluster) as p:
        for _ in range(4):
            await p.send_and_wait("t", b"before")
        assert len((await search.find()).records) == 4
        earlier = partition.tail
        partition.open(earlier.record.leader, earlier.record.replicas)
        for _ in range(4):
            await p.send_and_wait("t", b"later")

        def unsealed(_: int, answer: data_pb2.QueryResponse) -> None:
            for line in answer.partitions[0].segments:
                line.sealed = False

        cluster.on_query = unsealed
        pages = await all_pages(search, newest_first=newest_first, max_count=max_count)
        found = sorted(each.offset for page in pages for each in page.records)
        assert found == [*range(8)]
        assert pages[0].indexed_through == {0: 8}
