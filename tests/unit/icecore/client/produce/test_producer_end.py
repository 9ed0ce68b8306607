"""A producer ends, by itself or with the program around it, and every handle has an outcome."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Producer
from icecore.client.produce.batches import Batch
from icecore.client.types import TopicMetadata
from icecore.errors import (
    ForkedError,
    IcecoreError,
    InternalError,
    InvalidRequestError,
    UnavailableError,
    UnknownTopicError,
)
from tests.support.fake_cluster import FakeCluster

LONG_S = 20


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=1) as cluster:
        cluster.add_topic("t")
        async with asyncio.timeout(LONG_S):
            yield cluster


async def hang_at(cluster: FakeCluster, wanted: str) -> asyncio.Event:
    """Calls of this method get no answer; set when there is one."""
    is_asked = asyncio.Event()

    async def hang(node: int, method: str) -> None:
        if method == wanted:
            is_asked.set()
            await asyncio.Event().wait()

    cluster.before_call = hang
    return is_asked


async def test_nothing_waits_for_answers_when_all_tasks_are_cancelled(cluster: FakeCluster) -> None:
    """As ``asyncio.run`` does when SystemExit comes out of a signal handler."""
    is_asked = await hang_at(cluster, "_Produce")
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        handle = producer.send("t", b"0")
        await is_asked.wait()
        for task in list(producer._sender._tasks):
            task.cancel()
        with pytest.raises(UnavailableError):
            await handle
        with pytest.raises(UnavailableError):
            producer.send("t", b"1")


@pytest.mark.parametrize("is_begun", [False, True])
async def test_nor_for_a_topic_that_nobody_looks_for_any_more(
    cluster: FakeCluster, is_begun: bool
) -> None:
    is_asked = await hang_at(cluster, "GetMetadata")
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        handles: list[Any] = [producer.send("t", b"0"), producer.send_batch("t", [b"1"])]
        if is_begun:
            await is_asked.wait()
        for task in list(producer._sender._tasks):
            task.cancel()
        for handle in handles:
            with pytest.raises(UnavailableError):
                await handle
        assert producer.buffered_bytes == 0


@pytest.mark.parametrize("method", ["_Produce", "GetMetadata"])
async def test_who_gives_up_closing_leaves_nobody_waiting(
    cluster: FakeCluster, method: str
) -> None:
    is_asked = await hang_at(cluster, method)
    producer = Producer(cluster.bootstrap, net=cluster.net)
    await producer.start()
    handles: list[Any] = [producer.send("t", b"0"), producer.send_batch("t", [b"1"])]
    await is_asked.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 0.05)
    for handle in handles:
        with pytest.raises(UnavailableError):
            await handle
    await producer.close()
    assert producer.buffered_bytes == 0


async def test_a_closed_producer_takes_nothing(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, net=cluster.net)
    with pytest.raises(UnavailableError, match="not started"):
        producer.send("t", b"0")
    await producer.start()
    await producer.start()
    assert (await producer.send_and_wait("t", b"0")).offset == 0
    waiting = producer.send("t", b"1")
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0)
    for _ in range(2):
        for call in (
            lambda: producer.send("t", b"2"),
            lambda: producer.send("other", b"2"),
            lambda: producer.send_batch("t", [b"2"]),
        ):
            with pytest.raises(UnavailableError, match="closed"):
                call()
        with pytest.raises(UnavailableError, match="closed"):
            await producer.send_and_wait("t", b"2")
        assert (await waiting).offset == 1
        await closing
        await producer.close()
        await producer.flush()
        await producer.ready()
    with pytest.raises(UnavailableError, match="closed"):
        await producer.start()
    assert producer.buffered_bytes == 0


async def test_what_cannot_be_encoded_is_definite_and_alone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Batch.encode

    def fail(batch: Batch, *arguments: Any) -> bytes:
        if b"bad" in batch.values:
            raise OverflowError("too large")
        return encode(batch, *arguments)

    monkeypatch.setattr(Batch, "encode", fail)
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"good")
        with pytest.raises(InvalidRequestError, match="encoded") as caught:
            await producer.send_and_wait("t", b"bad")
        assert not caught.value.indeterminate
        assert (await producer.send_and_wait("t", b"good")).offset == 1


@pytest.mark.parametrize("place", ["settle", "retry"])
async def test_a_mistake_of_ours_ends_the_producer_but_hangs_nobody(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        cluster.topics["t"][0].tail.record = cluster.topics["t"][0].tail.record.changed(leader=0)
        if place == "settle":
            cluster.topics["t"][0].open(1, (1,))

        def fail(*_: object) -> Any:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(producer._sender.settling, place, fail)
        with pytest.raises(UnavailableError):
            await producer.send_and_wait("t", b"0")
        with pytest.raises(UnavailableError):
            producer.send("t", b"1")


async def test_looking_for_a_topic_fails_in_an_unknown_way(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:

        async def fail(*_: object, **__: object) -> Any:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(producer._metadata, "topic", fail)
        handles: list[Any] = [producer.send("t", b"0"), producer.send_batch("t", [b"1"])]
        for handle in handles:
            with pytest.raises(InternalError, match="a mistake"):
                await handle
        monkeypatch.undo()
        assert (await producer.send_and_wait("t", b"2")).offset == 0


@pytest.mark.parametrize("has_partitions", [False, True])
async def test_a_topic_without_partitions_is_looked_for_until_it_has_some(
    cluster: FakeCluster, has_partitions: bool
) -> None:
    """It is being made: the coordinator knows it before its partitions."""
    cluster.add_topic("new", 0)
    async with Producer(
        cluster.bootstrap, net=cluster.net, delivery_timeout_ms=20_000 if has_partitions else 200
    ) as producer:
        handles: list[Any] = [producer.send("new", b"0"), producer.send_batch("new", [b"1"])]
        while cluster.calls.count((0, "GetMetadata")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if has_partitions:
            cluster.add_partitions("new", 1)
            assert (await handles[0]).offset == 0
            assert (await handles[1])[0].end_offset == 2
            return
        for handle in handles:
            with pytest.raises(UnknownTopicError, match="no partitions yet"):
                await handle
        assert producer.buffered_bytes == 0
        cluster.add_partitions("new", 1)
        assert (await producer.send_and_wait("new", b"2")).offset == 0


async def test_a_topic_found_without_partitions_is_not_found(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the search says: a topic that nobody looks for has queues, or is not kept."""

    async def find(name: str, **_: object) -> TopicMetadata:
        return TopicMetadata(name, b"i" * 16, (), "xxh64")

    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        monkeypatch.setattr(producer._metadata, "topic", find)
        for _ in range(2):
            handles: list[Any] = [producer.send("t", b"0"), producer.send_batch("t", [b"1"])]
            for handle in handles:
                with pytest.raises(UnknownTopicError):
                    await handle
            assert producer.buffered_bytes == 0
        monkeypatch.undo()
        assert (await producer.send_and_wait("t", b"2")).offset == 0


async def test_a_topic_that_is_forgotten_once_found_still_has_its_queues(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        monkeypatch.setattr(producer._metadata, "known", lambda _: None)
        assert (await producer.send_and_wait("t", b"0")).offset == 0
        producer._topics.look()
        assert (await producer.send_and_wait("t", b"1")).offset == 1


async def test_records_that_cannot_be_routed_hold_up_nobody(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        append = producer._append

        def fail(topic: Any, partition: Any, row: Any) -> Any:
            if row[0] == b"bad":
                raise RuntimeError("a mistake")
            return append(topic, partition, row)

        monkeypatch.setattr(producer, "_append", fail)
        bad, good = producer.send("t", b"bad"), producer.send("t", b"good")
        with pytest.raises(InternalError, match="a mistake"):
            await bad
        assert (await good).offset == 0
        assert producer.buffered_bytes == 0


async def test_who_gives_up_closing_twice_leaves_nobody_waiting(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked = await hang_at(cluster, "_Produce")
    is_closing = asyncio.Event()
    producer = Producer(cluster.bootstrap, net=cluster.net)
    await producer.start()
    handle = producer.send("t", b"0")
    await is_asked.wait()
    close = producer._sender.close

    async def hang() -> None:
        is_closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(producer._sender, "close", hang)
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0)
    closing.cancel()
    await is_closing.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(UnavailableError):
        await handle
    assert producer.buffered_bytes == 0
    await close()


async def test_flush_tells_of_records_whose_topic_was_not_found(cluster: FakeCluster) -> None:
    async with Producer(
        cluster.bootstrap, net=cluster.net, delivery_timeout_ms=2_000, buffer_bytes=100
    ) as producer:
        producer.send("never", bytes(200))
        with pytest.raises(UnknownTopicError):
            await producer.flush()
        await producer.ready()
        assert producer.buffered_bytes == 0


async def test_off_its_loop_a_producer_refuses(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        await producer.send_and_wait("t", b"0")
        with pytest.raises(IcecoreError, match="blocking"):
            await asyncio.to_thread(producer.send, "t", b"1")
        assert producer.buffered_bytes == 0
        assert (await producer.send_and_wait("t", b"2")).offset == 1


async def test_another_thread_is_refused_while_a_batch_is_open(cluster: FakeCluster) -> None:
    """It could tear the columns of the batch."""
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=10_000) as producer:
        await producer.send_batch("t", [b"0"])
        good = producer.send("t", b"1")
        for call in (lambda: producer.send("t", b"2"), lambda: producer.send_batch("t", [b"2"])):
            with pytest.raises(InvalidRequestError, match="event loop"):
                await asyncio.to_thread(call)
        await producer.flush()
        assert (await good).offset == 1


async def test_a_fork_is_refused_at_once(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=10_000) as producer:
        await producer.send_batch("t", [b"0"])
        good = producer.send("t", b"1")
        pid = os.fork()
        if pid == 0:
            os._exit(_calls_taken_in_a_fork(producer))
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await producer.flush()
        assert (await good).offset == 1


def _calls_taken_in_a_fork(producer: Producer) -> int:
    calls: list[Any] = [
        lambda: producer.send("t", b"2"),
        lambda: producer.send("new", b"2"),
        lambda: producer.send_batch("t", [b"2"]),
        lambda: producer.flush().send(None),
        lambda: producer.close().send(None),
        lambda: producer.ready().send(None),
    ]
    taken = 0
    for call in calls:
        try:
            call()
            taken += 1
        except ForkedError:
            continue
    return taken
