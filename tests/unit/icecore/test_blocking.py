"""The blocking client: several threads, ends of all kinds, and interruptions."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from icecore import RecordMetadata, blocking
from icecore.blocking.background import background
from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    RecordTooLargeError,
    ThrottledError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.topic_settings import SegmentSettings
from tests.support.fake_cluster import FakeCluster

LONG_S = 30
MIB = 1 << 20


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """It lives on a loop of its own."""
    started, stop = threading.Event(), threading.Event()
    found: list[FakeCluster] = []

    async def serve() -> None:
        async with FakeCluster() as fake:
            fake.add_topic("t")
            found.append(fake)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(LONG_S)
    yield found[0]
    stop.set()
    thread.join()


def in_thread(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_everything_there_and_back(cluster: FakeCluster) -> None:
    """The facade runs its own loop; the fake cluster lives on another one."""
    with blocking.Producer(cluster.bootstrap) as producer:
        handles = [producer.send("t", b"%d" % n, key=b"%d" % n) for n in range(5000)]
        assert handles[0].result(LONG_S).offset == 0
        producer.flush()
        assert len(producer.send_batch("t", [b"x"] * 10)) == 1
        with pytest.raises(TypeError):
            producer.send("t", "text")  # type: ignore[arg-type]
        producer.flush()
    with blocking.Admin(cluster.bootstrap) as admin:
        assert admin.describe_topics()[0].name == "t"
    with blocking.Consumer(cluster.bootstrap, "t", stop_at_end=True) as consumer:
        first = next(iter(consumer))
        assert consumer.position()[first.partition] == 1
        assert len(list(consumer)) == 5009


def test_a_closed_consumer_says_so_instead_of_ending(cluster: FakeCluster) -> None:
    with blocking.Producer(cluster.bootstrap) as producer:
        producer.send_batch("t", [b"x"] * 10)
    with blocking.Consumer(cluster.bootstrap, "t") as consumer:
        running = iter(consumer)
        next(running)
    assert len(list(running)) == 9, "what an iteration that runs has at hand, and its end"
    for read in (
        lambda: iter(consumer),
        lambda: consumer.poll(0.1),
        consumer.batches,
    ):
        with pytest.raises(UnavailableError, match="the consumer is closed"):
            read()


def test_threads_share_a_producer_and_a_consumer(cluster: FakeCluster) -> None:
    found: list[bytes | None] = []
    with (
        blocking.Producer(cluster.bootstrap) as producer,
        blocking.Consumer(cluster.bootstrap, "t") as consumer,
    ):

        def send(first: int) -> None:
            for n in range(first, first + 500):
                producer.send("t", b"%d" % n)
            producer.flush()

        def read() -> None:
            while len(found) < 2000:
                found.extend(record.value for record in consumer.poll(0.1, 100))

        threads = [in_thread(lambda n=n: send(n)) for n in (0, 500, 1000, 1500)]
        threads += [in_thread(read) for _ in range(3)]
        for thread in threads:
            thread.join(LONG_S)
            assert not thread.is_alive()
    assert sorted(int(value or b"") for value in found) == list(range(2000))


def test_a_closed_producer_refuses_and_may_be_closed_again(cluster: FakeCluster) -> None:
    producer = blocking.Producer(cluster.bootstrap)
    handle = producer.send("t", b"0")
    for thread in [in_thread(producer.close) for _ in range(3)]:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert handle.result(LONG_S).offset == 0
    producer.close()
    with pytest.raises(UnavailableError, match="closed"):
        producer.send("t", b"1")
    with pytest.raises(UnavailableError, match="closed"):
        producer.send_batch("t", [b"1"])
    producer.flush()


def test_what_is_refused_late_concerns_one_record(cluster: FakeCluster) -> None:
    with blocking.Producer(cluster.bootstrap) as producer:
        producer.send("t", b"0").result(LONG_S)

        async def fail(*_: object, **__: object) -> Any:
            raise MemoryError("nobody thought of this")

        producer._producer.send_wait, kept = fail, producer._producer.send_wait  # type: ignore[method-assign]
        bad = producer.send("t", b"1")
        with pytest.raises(MemoryError):
            bad.result(LONG_S)
        producer._producer.send_wait = kept  # type: ignore[method-assign]
        assert producer.send("t", b"2").result(LONG_S).offset == 1
        producer.flush()
        producer.send("t", b"3", partition=9)
        with pytest.raises(InvalidRequestError):
            producer.flush()
        producer.flush()


def test_a_thread_that_waits_for_room_is_refused_when_another_closes(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore.blocking.producer.INBOX_RECORDS_MAX", 1)
    may_go_on = threading.Event()
    producer = blocking.Producer(cluster.bootstrap)
    kept = producer._producer.send_wait

    async def hold(*arguments: Any, **keywords: Any) -> Any:
        await asyncio.to_thread(may_go_on.wait)
        return await kept(*arguments, **keywords)

    producer._producer.send_wait = hold  # type: ignore[method-assign]
    outcomes: list[str] = []
    taken: list[blocking.SendHandle] = []

    def send() -> None:
        try:
            while True:  # one is being handed over, one waits, the next has no room
                taken.append(producer.send("t", b"0"))
        except UnavailableError as error:
            outcomes.append(error.message)

    sending = in_thread(send)
    while not taken:
        time.sleep(0.001)
    closing = in_thread(producer.close)
    sending.join(LONG_S)
    assert outcomes == ["the producer is closed"]
    may_go_on.set()
    closing.join(LONG_S)
    assert not closing.is_alive()
    assert [handle.result(LONG_S).offset for handle in taken] == list(range(len(taken)))


def test_a_record_is_kept_as_it_was_given(cluster: FakeCluster) -> None:
    """An iterator is read once; a list may change after the call."""
    tags, headers = ["a"], {"h": b"1"}
    with blocking.Producer(cluster.bootstrap) as producer:
        producer.send("t", b"0", tags=iter(tags), headers=iter(headers.items()))
        producer.send("t", b"1", tags=tags, headers=headers)
        tags.append("b")
        headers["i"] = b"2"
    with blocking.Consumer(cluster.bootstrap, "t", stop_at_end=True) as consumer:
        found = [(record.tags, tuple(record.headers)) for record in consumer]
    assert found == [(("a",), (("h", b"1"),))] * 2


def test_try_send_refuses_when_the_buffer_is_full(cluster: FakeCluster) -> None:
    may_answer = threading.Event()

    async def hold(node: int, method: str) -> None:
        if method == "_Produce":
            await asyncio.to_thread(may_answer.wait)

    cluster.before_call = hold
    with blocking.Producer(cluster.bootstrap, buffer_bytes=2_000) as producer:
        handles: list[blocking.SendHandle] = []
        with pytest.raises(ThrottledError, match="full"):
            while True:
                handles.append(producer.try_send("t", b"%d" % len(handles), tags=["a"]))
        with pytest.raises(RecordTooLargeError):
            producer.try_send("t", bytes(9 * MIB))
        with pytest.raises(TypeError):
            producer.try_send("t", "text")  # type: ignore[arg-type]
        waiting = [producer.send("t", b"waits") for _ in range(3)]
        may_answer.set()
        assert [each.result(LONG_S).offset for each in handles] == list(range(len(handles)))
        assert [each.result(LONG_S).offset for each in waiting] == [
            len(handles) + number for number in range(3)
        ]
        assert producer.try_send("t", b"last").result(LONG_S).offset == len(handles) + 3
    with pytest.raises(UnavailableError, match="closed"):
        producer.try_send("t", b"0")


def test_records_that_wait_for_room_are_bounded_in_bytes(cluster: FakeCluster) -> None:
    async def hang(node: int, method: str) -> None:
        if method == "_Produce":
            await asyncio.Event().wait()

    cluster.before_call = hang
    producer = blocking.Producer(cluster.bootstrap, buffer_bytes=MIB, delivery_timeout_ms=500)
    taken: list[blocking.SendHandle] = []

    def send() -> None:
        try:
            while True:
                taken.append(producer.send("t", bytes(MIB // 2)))
        except UnavailableError:
            pass

    sending = in_thread(send)
    before = -1
    while before < 2 or len(taken) > before:
        before = len(taken)
        time.sleep(0.1)
    assert before <= 2 + 2 * 8 + 2, "the buffer, what crosses, what waits to cross"
    with pytest.raises(TimeoutError):
        producer.close(0)
    sending.join(LONG_S)
    assert not sending.is_alive()


def test_ctrl_c_while_closing_leaves_a_closed_producer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = blocking.Producer(cluster.bootstrap)
    producer.send("t", b"0").result(LONG_S)

    def interrupt(timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(producer, "_wait_for_inbox", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    producer.close()
    with pytest.raises(UnavailableError):
        producer.send("t", b"1")


def test_records_of_an_interrupted_wait_come_with_the_next(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        blocking.Producer(cluster.bootstrap) as producer,
        blocking.Consumer(cluster.bootstrap, "t") as consumer,
    ):
        producer.send_batch("t", [b"0", b"1"])
        run = background.run

        def interrupt(coroutine: Any, timeout_s: float | None = None) -> Any:
            run(coroutine, timeout_s)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(background, "run", interrupt)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(LONG_S)
        assert [record.value for record in consumer.poll(LONG_S)] == [b"0", b"1"]


def test_within_a_loop_it_works_and_waits(cluster: FakeCluster) -> None:
    async def use() -> int:
        with blocking.Producer(cluster.bootstrap) as producer:
            return producer.send("t", b"0").result(LONG_S).offset

    assert asyncio.run(use()) == 0


def test_the_clients_own_thread_does_not_wait_for_itself(cluster: FakeCluster) -> None:
    """As a finalizer would that happens to run there."""
    with blocking.Producer(cluster.bootstrap) as producer:

        async def close() -> None:
            producer.flush()

        with pytest.raises(InvalidRequestError, match="itself"):
            background.run(close(), LONG_S)


def test_a_client_that_could_not_be_made_leaves_nothing(cluster: FakeCluster) -> None:
    for _ in range(2):
        with pytest.raises(UnknownTopicError):
            blocking.Consumer(cluster.bootstrap, "never", timeout_s=1.0)
    with pytest.raises(TypeError):
        blocking.Producer(cluster.bootstrap, unknown=1)
    with blocking.Consumer(cluster.bootstrap, "t", stop_at_end=True) as consumer:
        assert list(consumer) == []
        consumer.close()
        with pytest.raises(UnavailableError, match="the consumer is closed"):
            consumer.poll(0.1)


NOT_CLOSED = """
import sys
from icecore.blocking import Producer
producer = Producer(sys.argv[1], linger_ms=100_000)
if sys.argv[2] == "lost":
    producer.send("t", b"0")
    producer.flush()
    producer.send("t", b"1")
    producer.send("t", b"2")
else:
    producer.send("t", b"0")
    producer.flush()
"""


@pytest.mark.parametrize(("end", "told"), [("lost", 2), ("flushed", 0)])
def test_who_ends_without_closing_is_told(cluster: FakeCluster, end: str, told: int) -> None:
    program = [sys.executable, "-c", NOT_CLOSED, cluster.bootstrap, end]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LONG_S, check=True)
    line = f"event=producer_not_closed records_without_outcome={told}"
    assert done.stderr.strip() == (line if told else "")


def test_flush_and_close_end_in_time(cluster: FakeCluster) -> None:
    async def hang(node: int, method: str) -> None:
        if method == "_Produce":
            await asyncio.Event().wait()

    cluster.before_call = hang
    producer = blocking.Producer(cluster.bootstrap)
    handle = producer.send("t", b"0")
    with pytest.raises(TimeoutError):
        handle.result(0.05)
    with pytest.raises(TimeoutError, match="1 records have no outcome"):
        producer.flush(0.05)
    assert producer.metrics().buffered_records == 1
    for wrong in ("1", -1, True):
        for call in (producer.flush, producer.close, handle.result):
            with pytest.raises((TypeError, InvalidRequestError)):
                call(wrong)  # type: ignore[operator]
    with pytest.raises(TimeoutError):
        producer.close(0.05)
    with pytest.raises(IcecoreError) as caught:
        handle.result(LONG_S)
    assert caught.value.indeterminate
    with pytest.raises(UnavailableError):
        producer.send("t", b"1")
    producer.close()


def test_delivery_is_told(cluster: FakeCluster) -> None:
    told: list[Any] = []
    with blocking.Producer(cluster.bootstrap) as producer:
        good = producer.send("t", b"0", on_delivery=told.append)
        producer.send("t", b"1", partition=9, on_delivery=told.append)
        assert producer.send_and_wait("t", b"2").offset == 1
        producer.send("t", b"3", on_delivery=lambda _: producer.flush())  # which is logged
        producer.flush()
        assert good.result(LONG_S) in told
    assert {type(each) for each in told} == {RecordMetadata, InvalidRequestError}


def test_who_is_told_of_a_delivery_sends_without_waiting(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that waited for room would wait for its own thread, for ever."""
    monkeypatch.setattr("icecore.blocking.producer.INBOX_RECORDS_MAX", 2)
    outcomes: list[object] = []
    with blocking.Producer(cluster.bootstrap) as producer:

        def more(_: object) -> None:
            try:
                outcomes.extend(producer.send("t", b"more") for _ in range(5))
            except ThrottledError as error:
                outcomes.append(error)

        producer.send("t", b"0", on_delivery=more)
        producer.flush(LONG_S)
        producer.flush(LONG_S)
    *handles, refused = outcomes
    assert len(handles) == 2 and isinstance(refused, ThrottledError)


def test_a_consumer_is_a_stream_of_arrow(cluster: FakeCluster) -> None:
    with blocking.Producer(cluster.bootstrap) as producer:
        producer.send_batch("t", ["a", "b"])
        producer.send_batch("t", ["c"])

    def consumer(**settings: Any) -> blocking.Consumer:
        return blocking.Consumer(cluster.bootstrap, "t", **settings)

    with consumer(stop_at_end=True) as c:
        assert c.to_arrow()["value"].to_pylist() == [b"a", b"b", b"c"]
        assert c.lag() == {0: 0}
    with consumer(until=-1) as c:
        assert next(iter(c)).value == b"a"  # and the rest of its batch comes
        assert pa.table(c)["value"].to_pylist() == [b"b"]
    with consumer(stop_at_end=True) as c, c.arrow_reader() as reader:
        assert reader.read_next_batch()["partition"].to_pylist() == [0, 0, 0]
        assert c.lag() == {0: 0}, "neighbours come together"
    with consumer() as c, pytest.raises(InvalidRequestError, match="no end"):
        c.arrow_reader()


def test_a_record_beyond_the_limit_of_its_topic_is_refused_at_once(cluster: FakeCluster) -> None:
    cluster.topic_settings["small"] = SegmentSettings(record_bytes_max=1_000)
    cluster.add_topic("small")
    with blocking.Producer(cluster.bootstrap, linger_ms=20) as producer:
        first = [producer.send("small", value) for value in (b"a", bytes(1_001), b"b")]
        assert first[0].result(LONG_S).offset == 0
        with pytest.raises(RecordTooLargeError):
            first[1].result(LONG_S)
        for send in (producer.send, producer.try_send):
            with pytest.raises(RecordTooLargeError, match="1001 bytes exceeds 1000"):
                send("small", b"v" * 1_001)
        with pytest.raises(RecordTooLargeError, match="row 1"):
            producer.send_batch("small", [b"v", b"v" * 1_001])
        assert producer.send("small", b"last").result(LONG_S).offset == 2
