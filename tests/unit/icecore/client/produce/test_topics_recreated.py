"""A topic is deleted and another one made under its name, in the middle of everything."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from icecore import Admin, Consumer, Producer
from icecore.client.cluster import held_segments, metadata
from icecore.codec.batch import BatchHeader
from icecore.codec.record import partition_for_key
from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    LeaderLostError,
    NotReplicaError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.model import Segment, SegmentState
from icecore_node.context import Peers
from icecore_node.identity.readers import Readers
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import ReplicaTable
from icecore_node.registry.topic_names import TopicNames
from tests.support.fake_cluster import FakeCluster, FakePartition, Fate

LONG_S = 20


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Its topic has three partitions; the first holds 10 records."""
    async with FakeCluster(nodes=3) as cluster:
        cluster.add_topic("t", 3)
        await fill(cluster, "old", 10)
        async with asyncio.timeout(LONG_S):
            yield cluster


async def fill(cluster: FakeCluster, what: str, count: int) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        values = [b"%s %d" % (what.encode(), n) for n in range(count)]
        await producer.send_batch("t", values, partition=0)


async def make_again(cluster: FakeCluster, partitions: int = 1, records: int = 25) -> None:
    cluster.add_topic("t", partitions)
    if records:
        await fill(cluster, "new", records)


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    return Consumer(cluster.bootstrap, "t", net=cluster.net, max_wait_ms=50, **kwargs)


async def rest(consumer: Consumer) -> tuple[list[str], IcecoreError | None]:
    """Return the values that come until the end or a failure, and the failure."""
    values: list[str] = []
    try:
        async for record in consumer:
            values.append((record.value or b"").decode())  # noqa: PERF401
    except IcecoreError as error:
        return values, error
    return values, None


OLD = [f"old {n}" for n in range(10)]
NEW = [f"new {n}" for n in range(25)]


@pytest.mark.parametrize("start", ["earliest", 4, 10])
async def test_a_consumer_fails_and_skips_nothing(cluster: FakeCluster, start: Any) -> None:
    async with consumer(cluster, start=start, partitions=[0]) as c:  # the others have no offset 4
        first = 0 if start == "earliest" else start
        found = [(await anext(c)).value for _ in range(first, 10)]
        assert found == [value.encode() for value in OLD[first:]]
        before = cluster.topic_id("t").hex()
        await make_again(cluster)
        values, error = await rest(c)
        assert not values
        assert isinstance(error, TopicRecreatedError) and not error.retriable
        assert before in error.message and cluster.topic_id("t").hex() in error.message
        for again in (c.poll(5), anext(c), anext(c.batches()), c.seek(0, "earliest")):
            with pytest.raises(TopicRecreatedError):
                await again
        await c.seek(0, 3)
        with pytest.raises(TopicRecreatedError):
            await c.poll(5)


async def test_what_was_fetched_comes_first(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        await anext(c)
        await make_again(cluster)
        values, error = await rest(c)
        assert values == OLD[1:]
        assert isinstance(error, TopicRecreatedError)


async def test_a_fetch_under_way_brings_nothing_of_the_new_topic(cluster: FakeCluster) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def hold(node: int, method: str) -> None:
        if method == "_Fetch":
            is_asked.set()
            await may_answer.wait()

    cluster.before_call = hold
    async with consumer(cluster, start=5) as c:
        await is_asked.wait()
        await make_again(cluster)
        may_answer.set()
        values, error = await rest(c)
        assert not values
        assert isinstance(error, TopicRecreatedError)


async def test_it_is_noticed_while_old_nodes_still_answer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has not heard of the delete goes on saying that there is nothing new."""
    monkeypatch.setattr(metadata, "_AGE_MS_MAX", 100.0)
    async with consumer(cluster, start="latest", partitions=[0]) as c:
        old, find = cluster.topics["t"], cluster.find
        old_id = cluster.topic_id("t")
        monkeypatch.setattr(
            cluster, "find", lambda item: old[0] if item.topic_id == old_id else find(item)
        )
        await make_again(cluster)
        values, error = await rest(c)
        assert not values
        assert isinstance(error, TopicRecreatedError)


async def test_a_lost_segment_is_not_looked_for_in_the_new_topic(cluster: FakeCluster) -> None:
    async with consumer(cluster, partitions=[0]) as c:
        fetcher = c._fetcher
        await make_again(cluster)
        with pytest.raises(TopicRecreatedError):
            await fetcher._whereabouts.find(fetcher.readers["t", 0], NotReplicaError("elsewhere"))
        with pytest.raises(TopicRecreatedError):
            await c.seek(0, datetime(2026, 1, 1, tzinfo=UTC))


def answer_by_name(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes show whoever asks for a topic of before the one that has its name now."""
    monkeypatch.setattr(cluster, "find", lambda item: cluster.topics["t"][item.partition])


async def until_failing(consumer: Consumer, attempts: int = 1) -> None:
    while consumer._fetcher.readers["t", 0].attempts < attempts:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
async def test_bounds_of_the_new_topic_are_not_the_old_ones(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    async with consumer(cluster, start=4, partitions=[0], on_out_of_range=policy) as c:
        assert len(await c.poll(LONG_S)) == 6
        answer_by_name(cluster, monkeypatch)
        await make_again(cluster, records=3)
        values, error = await rest(c)
        assert not values
        assert isinstance(error, TopicRecreatedError)


async def test_restart_does_not_take_them_either(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consumer(cluster, start=4, partitions=[0], on_recreated="restart") as c:
        assert len(await c.poll(LONG_S)) == 6
        answer_by_name(cluster, monkeypatch)
        await make_again(cluster, records=3)
        assert [(await anext(c)).value for _ in range(3)] == [b"new 0", b"new 1", b"new 2"]
        assert c.position() == {0: 3}


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
async def test_an_answer_of_before_does_not_prove_bounds(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """An answer of the coordinator from before the delete arrives after the bounds of the new
    topic."""
    is_answered, may_arrive = asyncio.Event(), asyncio.Event()
    async with consumer(cluster, start=4, partitions=[0], on_out_of_range=policy) as c:
        assert len(await c.poll(LONG_S)) == 6
        admin = c._connection.admin

        async def delay(*arguments: Any, **kwargs: Any) -> Any:
            answer = await admin(*arguments, **kwargs)
            is_answered.set()
            await may_arrive.wait()
            return answer

        monkeypatch.setattr(c._connection, "admin", delay)
        refreshing = asyncio.ensure_future(c._metadata.refresh())
        await is_answered.wait()
        answer_by_name(cluster, monkeypatch)
        await make_again(cluster, records=3)
        await until_failing(c)
        may_arrive.set()
        values, error = await rest(c)
        await refreshing
        assert not values
        assert isinstance(error, TopicRecreatedError)


async def test_bounds_of_a_topic_that_is_being_deleted_mean_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(item: Any) -> Any:
        raise OffsetOutOfRangeError(log_start_offset=0, high_watermark=0)

    async with consumer(cluster, start=4, partitions=[0], on_out_of_range="latest") as c:
        assert len(await c.poll(LONG_S)) == 6
        monkeypatch.setattr(cluster, "find", fail)
        del cluster.topics["t"]
        await until_failing(c, 3)
        assert c._fetcher.failure is None and c.position() == {0: 10}
        cluster.add_topic("t")
        values, error = await rest(c)
        assert not values
        assert isinstance(error, TopicRecreatedError)


async def test_a_seek_that_comes_too_late_keeps_what_is_in_store(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()
    async with consumer(cluster, partitions=[0]) as c:
        assert len(await c.poll(LONG_S, 4)) == 4
        lookup = c._subscription.lookups["t"]
        find = lookup.find

        async def delay(*arguments: Any) -> Any:
            found = await find(*arguments)
            is_asked.set()
            await may_answer.wait()
            return found

        monkeypatch.setattr(lookup, "find", delay)
        seeking = asyncio.ensure_future(c.seek(0, "latest"))
        await is_asked.wait()
        await make_again(cluster)
        c._on_recreated = "restart"
        await c._subscription.begin("t")
        may_answer.set()
        with pytest.raises(TopicRecreatedError):
            await seeking
        found = [(await anext(c)).value for _ in range(6 + 25)]
        assert found == [value.encode() for value in (*OLD[4:], *NEW)]


async def test_a_time_is_not_looked_for_in_two_topics(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of segments comes in pages, and the topic changes between two."""

    async def pages(*_: object, **__: object) -> list[Segment]:
        return [segment(1, cluster.topic_id("t")), segment(9, b"new")]

    async with consumer(cluster, partitions=[0]) as c:
        monkeypatch.setattr(held_segments, "list_segments", pages)
        with pytest.raises(TopicRecreatedError):
            await c.seek(0, datetime(2026, 1, 1, tzinfo=UTC))


async def test_restart_reads_all_of_the_new_topic(cluster: FakeCluster) -> None:
    async with consumer(cluster, on_recreated="restart") as c:
        assert (await c.poll(5, max_records=4))[-1].offset == 3
        await make_again(cluster, partitions=2)
        found = [(await anext(c)).value for _ in range(6 + 25)]
        assert found == [value.encode() for value in (*OLD[4:], *NEW)]
        assert c.position() == {0: 25, 1: 0}
        await make_again(cluster, partitions=1, records=3)
        assert [(await anext(c)).value for _ in range(3)] == [b"new 0", b"new 1", b"new 2"]
        assert c.position() == {0: 3}


async def test_restart_with_an_end_reads_to_the_end_of_the_new_topic(cluster: FakeCluster) -> None:
    async with consumer(cluster, on_recreated="restart", stop_at_end=True, start=5) as c:
        c._fetcher.readers["t", 0].end_offset = 12  # it held more when the consumer began
        assert [(await anext(c)).value for _ in range(5)] == [v.encode() for v in OLD[5:]]
        await make_again(cluster)
        values, error = await rest(c)
        assert (values, error) == (NEW, None)


async def test_restart_needs_its_partitions(cluster: FakeCluster) -> None:
    with pytest.raises(ConfigurationError):
        consumer(cluster, on_recreated="ignore")
    async with consumer(cluster, on_recreated="restart", partitions=[2]) as c:
        await make_again(cluster, partitions=1)
        _, error = await rest(c)
        assert error is not None and "partitions 0 to 0" in error.message


async def test_all_that_was_asked_for_is_the_end(cluster: FakeCluster) -> None:
    async with consumer(cluster, stop_at_end=True) as c:
        found = [(await anext(c)).value for _ in range(10)]
        await make_again(cluster)
        assert len(found) == 10 and await rest(c) == ([], None)


async def test_admin_looks_up_what_is_there_now(cluster: FakeCluster) -> None:
    async with Admin(cluster.bootstrap, net=cluster.net) as admin:
        assert (await admin.list_offsets("t", "latest"))[0].offset == 10
        await make_again(cluster, partitions=2)
        found = await admin.list_offsets("t", "latest")
        assert {n: each.offset for n, each in found.items()} == {0: 25, 1: 0}
        del cluster.topics["t"]
        with pytest.raises(UnknownTopicError):
            async with Admin(cluster.bootstrap, net=cluster.net, timeout_s=0.2) as impatient:
                await impatient.list_offsets("t", "latest")


# --- producers ----------------------------------------------------------------------------------


async def test_records_meant_for_the_old_topic_fail_and_the_next_ones_arrive(
    cluster: FakeCluster,
) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
        for _ in range(3):
            await producer.send_and_wait("t", b"old", partition=2)
        (only,) = cluster.add_topic("t", 1)
        with pytest.raises(TopicRecreatedError) as caught:
            await producer.send_and_wait("t", b"old", partition=2)
        assert not caught.value.indeterminate
        keys = [b"k%d" % n for n in range(20)]
        sent = [producer.send("t", b"new", key=key) for key in keys]
        assert [(await handle).offset for handle in sent] == list(range(20))
        assert next(iter(only.sequences.values()))[0][0] == 0
        assert producer.buffered_bytes == 0


async def test_keys_spread_over_the_partitions_of_the_new_topic(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"old", key=b"k")
        cluster.add_topic("t", 7)
        with pytest.raises(TopicRecreatedError):
            await producer.send_and_wait("t", b"old", key=b"k")
        for n in range(20):
            sent = await producer.send_and_wait("t", b"new", key=b"k%d" % n)
            assert sent.partition == partition_for_key(b"k%d" % n, 7)


async def test_an_attempt_without_answer_stays_unknown(cluster: FakeCluster) -> None:
    def lose(node: int, partition: FakePartition, header: BatchHeader) -> Fate:
        cluster.add_topic("t", 1)
        return Fate(LeaderLostError("who knows"))

    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"old", partition=0)
        cluster.on_produce = lose
        with pytest.raises(RequestTimeoutError, match="deleted and made again"):
            await producer.send_and_wait("t", b"old", partition=0)
        cluster.on_produce = lambda *_: Fate()
        assert (await producer.send_and_wait("t", b"new", partition=0)).offset == 0


async def test_a_hung_node_does_not_hold_what_is_lost(cluster: FakeCluster) -> None:
    is_asked = asyncio.Event()

    async def hang(node: int, method: str) -> None:
        if method == "_Produce":
            is_asked.set()
            await asyncio.Event().wait()

    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"old", partition=2)
        cluster.before_call = hang
        handle = producer.send("t", b"old", partition=2)
        await is_asked.wait()
        cluster.add_topic("t", 1)
        with pytest.raises((RequestTimeoutError, UnavailableError)):
            await handle


# --- nodes --------------------------------------------------------------------------------------


def segment(number: int, topic_id: bytes) -> Segment:
    return Segment(number, topic_id, "t", 0, SegmentState.ACTIVE, epoch=1)


def test_a_name_means_the_topic_of_its_newest_segment() -> None:
    names = TopicNames()
    assert names.id_for_client(b"", "t") == b""
    for number, topic_id in ((3, b"old"), (7, b"new"), (4, b"old")):
        names.learn(segment(number, topic_id))
    assert names.id_for_client(b"", "t") == b"new"
    names.check_current(b"new")
    with pytest.raises(UnknownTopicError, match="another one"):
        names.check_current(b"old")


def test_a_node_appends_nothing_to_a_topic_whose_name_another_has() -> None:
    """It leads the old one until the delete reaches it."""
    table = ReplicaTable(Readers())
    leaders, held = Leaders(table, 1, Peers()), table.of(b"old", 0)
    leader: Any = SimpleNamespace(segment=segment(3, b"old"))
    leader.replica = SimpleNamespace(role=leader, partition_key=held.key)
    leaders.put(leader)
    table.names.learn(segment(3, b"old"))
    assert leaders.leader(b"old", "", 0, 0) is leader
    table.names.learn(segment(9, b"new"))
    with pytest.raises(UnknownTopicError):
        leaders.leader(b"old", "", 0, 0)
    assert table.partition(b"old", "", 0) is held
