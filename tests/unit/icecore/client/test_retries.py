"""A client reports its retries in the log, to a function of the program, and in its metrics."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from threading import Thread
from typing import Any

import pytest
import pytest_asyncio

import icecore
from icecore import Consumer, Producer, RecordMetadata, Retry
from icecore.client.retries import DISTANCE_S, PATIENCE_S, Retries, call_back
from icecore.codec.batch import BatchHeader
from icecore.errors import (
    IcecoreError,
    NotLeaderError,
    ReadOnlyError,
    UnavailableError,
    UnknownTopicError,
)
from tests.support.fake_cluster import FakeCluster, FakePartition, Fate

LONG_S = 20


class FakeClock:
    def __init__(self) -> None:
        self.ms = 0.0

    def monotonic_ms(self) -> float:
        return self.ms

    def now_ms(self) -> int:
        return int(self.ms)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        async with asyncio.timeout(LONG_S):
            yield cluster


def refuse(cluster: FakeCluster, *errors: IcecoreError) -> None:
    """The first batches, one after the other."""
    left = list(errors)

    def fate(node: int, partition: FakePartition, header: BatchHeader) -> Fate:
        return Fate(left.pop(0), append=False) if left else Fate()

    cluster.on_produce = fate


def test_a_line_per_reason_and_a_warning_once_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    clock, told = FakeClock(), list[Retry]()
    retries = Retries(clock, told.append)
    full, moved = ReadOnlyError("disk of node 1 is full"), NotLeaderError("not here")
    with caplog.at_level(logging.INFO, "icecore"):
        for partition in range(5):
            retries.note(full, topic="t", partition=partition, since_ms=0, until_ms=120_000)
        retries.note(moved, topic="t", partition=0, since_ms=0)
        clock.ms = PATIENCE_S * 1000
        for partition in range(5):
            retries.note(full, topic="t", partition=partition, since_ms=0, until_ms=120_000)
        clock.ms += DISTANCE_S * 1000
        retries.note(full, topic="t", partition=0, since_ms=0, until_ms=120_000)
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (
            logging.INFO,
            "event=retrying topic=t partition=0 why=READ_ONLY "
            'error="disk of node 1 is full" waited_s=0.0 left_s=120.0 others=0',
        ),
        (
            logging.INFO,
            'event=retrying topic=t partition=0 why=NOT_LEADER error="not here" waited_s=0.0 '
            "left_s=none others=0",
        ),
        (
            logging.WARNING,
            "event=retrying topic=t partition=0 why=READ_ONLY "
            'error="disk of node 1 is full" waited_s=3.0 left_s=117.0 others=0',
        ),
        (
            logging.WARNING,
            "event=retrying topic=t partition=0 why=READ_ONLY "
            'error="disk of node 1 is full" waited_s=13.0 left_s=107.0 others=4',
        ),
    ]
    assert retries.count == len(told) == 12
    assert retries.last is told[-1]


async def test_a_producer_tells_of_each_retry(cluster: FakeCluster) -> None:
    told: list[Retry] = []
    refuse(cluster, ReadOnlyError("full"), NotLeaderError("moved"))
    async with Producer(cluster.bootstrap, net=cluster.net, on_retry=told.append) as producer:
        await producer.send_and_wait("t", b"0")
        assert [(each.topic, each.partition, each.error.reason) for each in told] == [
            ("t", 0, "READ_ONLY"),
            ("t", 0, "NOT_LEADER"),
        ]
        assert all(each.left_s and 100 < each.left_s < 120 for each in told)
        metrics = producer.metrics()
        assert (metrics.retries, metrics.last_retry) == (2, told[-1])


async def test_a_consumer_tells_of_each_retry(cluster: FakeCluster) -> None:
    told: list[Retry] = []

    async def fail(node: int, method: str) -> None:
        if method == "_Fetch" and len(told) < 2:
            raise UnavailableError("out to lunch")

    cluster.before_call = fail
    async with (
        Producer(cluster.bootstrap, net=cluster.net) as producer,
        Consumer(cluster.bootstrap, "t", net=cluster.net, on_retry=told.append) as consumer,
    ):
        await producer.send_and_wait("t", b"0")
        assert (await anext(consumer)).value == b"0"
    assert [(each.error.message, each.left_s) for each in told] == [("out to lunch", None)] * 2
    assert told[1].waited_s > told[0].waited_s >= 0


async def test_who_cannot_reach_a_coordinator_is_told() -> None:
    told: list[Retry] = []
    with pytest.raises(UnavailableError):
        async with Consumer("127.0.0.1:9", "t", timeout_s=0.3, on_retry=told.append):
            pass
    assert told
    assert {(each.topic, each.partition) for each in told} == {("", -1)}
    assert told[0].error.message.endswith("127.0.0.1:9: Connection refused")


async def test_a_function_that_fails_hurts_nobody(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("mine")

    refuse(cluster, ReadOnlyError("full"))
    async with Producer(cluster.bootstrap, net=cluster.net, on_retry=fail) as producer:
        handles = [producer.send("t", b"0", on_delivery=fail) for _ in range(2)]
        assert [(await handle).offset for handle in handles] == [0, 1]
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert said == ['event=callback_failed error="mine"'] * 3


# --- delivery -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown topic", "known topic"])
async def test_delivery_is_told_once_for_each_record(cluster: FakeCluster, is_known: bool) -> None:
    told: list[Any] = []
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        if is_known:
            await producer.send_and_wait("t", b"first")
        for n in range(3):
            producer.send("t", b"%d" % n, on_delivery=told.append)
        await producer.flush()
        await asyncio.sleep(0)
        first = int(is_known)
        assert [each.offset for each in told] == [first, first + 1, first + 2]
        assert all(isinstance(each, RecordMetadata) for each in told)


async def test_a_failure_that_was_told_is_not_raised_again(cluster: FakeCluster) -> None:
    told: list[Any] = []
    async with Producer(cluster.bootstrap, net=cluster.net, delivery_timeout_ms=1_000) as producer:
        producer.send("never", b"0", on_delivery=told.append)
        refuse(cluster, *[ReadOnlyError("full")] * 100)
        producer.send("t", b"0", on_delivery=told.append)
        await producer.flush()
        await asyncio.sleep(0)
    assert {type(each) for each in told} == {UnknownTopicError, ReadOnlyError}
    with pytest.raises(TypeError, match="on_delivery"):
        producer.send("t", b"0", on_delivery=1)  # type: ignore[arg-type]


# --- metrics ------------------------------------------------------------------------------------


async def test_metrics_count_what_became_of_records(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net, delivery_timeout_ms=1_000) as producer:
        producer.send("t", b"0")
        handle = producer.send_batch("t", [b"1", b"2"])
        before = producer.metrics()
        assert (before.buffered_records, before.records_acknowledged) == (3, 0)
        await handle
        for call in (producer.send("never", b"0"), producer.send_batch("never", [b"1", b"2"])):
            with pytest.raises(UnknownTopicError):
                await call
        with pytest.raises(icecore.errors.InvalidRequestError):
            producer.send("t", b"3", partition=9)
        after = producer.metrics()
    assert (after.records_acknowledged, after.records_failed) == (3, 3)
    assert (after.buffered_records, after.buffered_bytes, after.requests_under_way) == (0, 0, 0)
    assert 0 < after.latency_mean_ms <= after.latency_max_ms
    assert after.bytes_acknowledged > 3
    assert 1 <= after.batches_acknowledged <= 3


async def test_records_that_are_given_up_are_told(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As at the end of ``asyncio.run``, of a program that did not close its producer."""
    producer = Producer(cluster.bootstrap, net=cluster.net, linger_ms=10_000)
    await producer.start()
    await producer.send_batch("t", [b"0"])
    handles = [producer.send("t", b"1"), producer.send("t", b"2")]
    for task in list(producer._sender._tasks):
        task.cancel()
    for handle in handles:
        with pytest.raises(UnavailableError):
            await handle
    said = [each.getMessage() for each in caplog.records]
    assert said == ["event=records_given_up records=2"]
    await producer.close()


def test_an_exit_in_a_callback_ends_no_thread_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            call_back(sys.exit, 3)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert ended == [None]
    assert "ends no program here" in caplog.text
    with pytest.raises(SystemExit):  # an asyncio program runs its client itself
        call_back(sys.exit, 3)
