"""Produce: a request is checked as a whole, off the loop if need be, then appended in its order."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from icecore.codec import record
from icecore.codec.batch import Codec
from icecore.errors import IcecoreError, InvalidRequestError, NotLeaderError, ThrottledError
from icecore.rpc import framing
from icecore.rpc.ports import Admitted, CallContext, Outcome, join
from icecore.rpc.waiting import as_unary
from icecore.topic_settings import FlushMode, SegmentSettings
from icecore.v1 import data_pb2
from icecore_node.context import Tasks
from icecore_node.identity.identity import Identity
from icecore_node.io.executor import ThreadExecutor
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.metrics import NodeMetrics
from icecore_node.replication.leader import Offered, Produced, ProduceWaiter
from icecore_node.serving.produce import ProduceHandler
from tests.support.poison import garbage

CALL = CallContext("one", "anonymous", None)
OTHER_CALL = CallContext("another", "anonymous", None)
READER_THREADS = 2


def produced(base_offset: int, mode: FlushMode = FlushMode.SYNC) -> Produced:
    """Return the leader's answer for a batch."""
    return Produced(base_offset, 1, 1, 0, 1, duplicate=False, batches_kept=5, flush_mode=mode)


class OneLeader:
    """The replicas of a node and the leader of its one partition; acknowledges at once."""

    def __init__(self) -> None:
        self.segment = SimpleNamespace(settings=SegmentSettings())
        self.appended: list[int] = []
        """Record counts of batches."""
        self.lookups = 0
        self.gone_after = 1_000
        self.flush_mode = FlushMode.SYNC
        self.room_bytes = 1 << 30

    def leader(self, *_: object) -> "OneLeader":
        self.lookups += 1
        if self.lookups > self.gone_after:
            raise NotLeaderError("somebody else is")
        return self

    def take(self, _: object, length_bytes: int) -> None:
        self.room_bytes -= length_bytes
        if self.room_bytes < 0:
            raise ThrottledError("memory", retry_after_ms=50)

    def produce(self, waiter: ProduceWaiter, _: object, group: Sequence[Offered]) -> None:
        for each in group:
            base, count = sum(self.appended), each.header.record_count
            self.appended.append(count)
            waiter.produced(each.slot, produced(base, self.flush_mode))


@pytest_asyncio.fixture
async def executor() -> AsyncIterator[ThreadExecutor]:
    executor = ThreadExecutor(reader_threads=READER_THREADS)
    yield executor
    await asyncio.to_thread(executor.close)


def handler(leader: OneLeader, executor: ThreadExecutor) -> ProduceHandler:
    context = SimpleNamespace(
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0, now_ms=lambda: 1),
        metrics=NodeMetrics(),
        tasks=Tasks(lambda error: None),
        settings=SimpleNamespace(produce_inflight_bytes_max=64 << 20),
        identity=Identity(1),
    )
    room = SimpleNamespace(take=leader.take)
    heavy_work = HeavyWork(executor)
    return ProduceHandler(cast(Any, context), cast(Any, leader), heavy_work, cast(Any, room))


def request(*batches: bytes, timeout_ms: int = 10_000) -> bytes:
    entries = [data_pb2.ProducePartition(topic="t", batch_length=len(each)) for each in batches]
    header = data_pb2.ProduceHeader(partitions=entries, timeout_ms=timeout_ms)
    return join(framing.frame_bulk(header.SerializeToString(), batches))


def batch_of(count: int, value: bytes = b"v", codec: Codec = Codec.NONE) -> bytes:
    return record.encode_columns(values=[value] * count, timestamps_ms=[1] * count, codec=codec)


def large(count: int) -> bytes:
    """A megabyte of zeros per record: too much to inflate on the loop."""
    return batch_of(count, bytes((1 << 20) - 64), Codec.ZSTD)


async def reasons(handler: ProduceHandler, body: bytes, call: CallContext = CALL) -> list[str]:
    answer = data_pb2.ProduceResponse.FromString(await as_unary(handler.handler)(body, call))
    return [each.error.reason for each in answer.partitions]


async def test_batches_keep_their_order_wherever_they_are_checked(executor: ThreadExecutor) -> None:
    leader = OneLeader()
    produce = handler(leader, executor)
    body = request(large(30), batch_of(2), garbage(Codec.LZ4), large(3), batch_of(4))
    assert await reasons(produce, body) == ["", "", "CORRUPT_BATCH", "", ""]
    assert leader.appended == [30, 2, 3, 4]
    assert produce.inflight_bytes == 0


@pytest.mark.parametrize("mode", FlushMode)
async def test_the_answer_says_what_durable_means(
    executor: ThreadExecutor, mode: FlushMode
) -> None:
    leader = OneLeader()
    leader.flush_mode = mode
    produce = handler(leader, executor)
    answer = await as_unary(produce.handler)(request(batch_of(1)), CALL)
    [result] = data_pb2.ProduceResponse.FromString(answer).partitions
    assert result.flush_mode == mode


async def test_who_leads_is_asked_again_after_the_check(executor: ThreadExecutor) -> None:
    leader = OneLeader()
    leader.gone_after = 3
    body = request(large(3), batch_of(1))
    assert await reasons(handler(leader, executor), body) == ["NOT_LEADER"] * 2
    assert leader.appended == []


async def test_what_memory_has_no_room_for_is_refused_as_a_whole(executor: ThreadExecutor) -> None:
    """A later batch that found room would pass an earlier one that did not."""
    leader = OneLeader()
    produce = handler(leader, executor)
    leader.room_bytes = len(batch_of(2)) + len(batch_of(3)) - 1
    assert await reasons(produce, request(batch_of(2), batch_of(3))) == ["THROTTLED"] * 2
    assert leader.appended == [] and produce.inflight_bytes == 0
    leader.room_bytes = len(batch_of(2))
    assert await reasons(produce, request(batch_of(2))) == [""]
    assert leader.appended == [2]


async def test_nothing_is_appended_after_the_time_is_over(
    executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = OneLeader()

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HeavyWork, "run", never)
    body = request(large(3), timeout_ms=1)
    assert await reasons(handler(leader, executor), body) == ["TIMEOUT"]
    assert leader.appended == []


async def test_the_loop_goes_on_while_much_is_inflated(executor: ThreadExecutor) -> None:
    leader = OneLeader()
    produce, go_on = handler(leader, executor), threading.Event()
    busy = [executor.run(go_on.wait) for _ in range(READER_THREADS)]
    slow = asyncio.ensure_future(as_unary(produce.handler)(request(*[large(31)] * 20), CALL))
    await asyncio.sleep(0)
    assert await reasons(produce, request(batch_of(1)), OTHER_CALL) == [""]
    assert leader.appended == [1]
    assert not slow.done()
    go_on.set()
    await asyncio.gather(*busy, slow)
    assert leader.appended == [1] + [31] * 20


def headers_of(body: bytes) -> tuple[bytes, memoryview]:
    return framing.split_bulk(body, data_pb2.ProduceRequest)


async def test_a_request_counts_from_its_header_on(executor: ThreadExecutor) -> None:
    produce = handler(OneLeader(), executor)
    produce._context.settings.produce_inflight_bytes_max = 1_000
    header, batches = headers_of(request(batch_of(2)))
    first = produce.admit(header, len(batches), CALL)
    assert isinstance(first, Admitted)
    assert produce.inflight_bytes == len(header) + len(batches)
    large_header, large_batches = headers_of(request(batch_of(100)))
    with pytest.raises(ThrottledError):
        produce.admit(large_header, len(large_batches), CALL)
    first.abandon()
    assert produce.inflight_bytes == 0
    alone = produce.admit(large_header, len(large_batches), CALL)
    assert isinstance(alone, Admitted)  # one is always taken
    answers: list[Outcome] = []
    alone.run(large_batches, answers.append)
    assert len(answers) == 1 and produce.inflight_bytes == 0


async def test_headers_that_are_refused_without_batches(executor: ThreadExecutor) -> None:
    leader = OneLeader()
    produce = handler(leader, executor)
    produce._context.identity.cluster_id = b"c" * 16
    header, batches = headers_of(request(batch_of(2)))
    wrong = data_pb2.ProduceHeader(cluster_id=b"d" * 16).SerializeToString()
    for refused, length in ((header, len(batches) + 8), (b"\xff", 0), (wrong, 0)):
        with pytest.raises(IcecoreError):
            produce.admit(refused, length, CALL)
    acks = data_pb2.ProduceHeader.FromString(header)
    acks.acks = cast(Any, 9)
    with pytest.raises(InvalidRequestError, match="acks"):
        produce.admit(acks.SerializeToString(), len(batches), CALL)
    leader.gone_after = leader.lookups
    answer = produce.admit(header, len(batches), CALL)
    assert isinstance(answer, bytes)
    (result,) = data_pb2.ProduceResponse.FromString(answer).partitions
    assert result.error.reason == "NOT_LEADER"
    assert produce.inflight_bytes == 0 and leader.appended == []


async def test_an_answer_says_what_its_copies_are(executor: ThreadExecutor) -> None:
    leader = OneLeader()
    produce = handler(leader, executor)
    for mode in FlushMode:
        leader.flush_mode = mode
        answer = await as_unary(produce.handler)(request(batch_of(1)), CALL)
        (result,) = data_pb2.ProduceResponse.FromString(answer).partitions
        assert result.flush_mode == mode


async def test_what_a_leader_still_holds_counts_after_the_answer(executor: ThreadExecutor) -> None:
    leader = OneLeader()
    held: list[tuple[ProduceWaiter, Offered]] = []
    leader.produce = lambda waiter, _, group: held.extend((waiter, each) for each in group)  # type: ignore[method-assign]
    produce = handler(leader, executor)
    body = request(batch_of(2), batch_of(3), timeout_ms=1)
    assert await reasons(produce, body) == ["TIMEOUT"] * 2
    assert len(held) == 2 and produce.inflight_bytes > 0
    for waiter, each in held:
        assert produce.inflight_bytes > 0
        waiter.produced(each.slot, produced(0))
    assert produce.inflight_bytes == 0


async def test_requests_of_one_connection_are_appended_in_their_order(
    executor: ThreadExecutor,
) -> None:
    """Small ones go on where a large one ends, which is checked elsewhere meanwhile."""
    leader = OneLeader()
    produce = handler(leader, executor)
    bodies = [request(large(31)), request(batch_of(1)), request(large(2)), request(batch_of(3))]
    calls = [asyncio.ensure_future(as_unary(produce.handler)(body, CALL)) for body in bodies]
    await asyncio.gather(*calls)
    assert leader.appended == [31, 1, 2, 3]
    assert await reasons(produce, request(batch_of(4))) == [""]
    assert produce.inflight_bytes == 0 and not produce._last_later


async def test_who_waits_behind_a_request_that_timed_out_goes_on(
    executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = OneLeader()
    produce = handler(leader, executor)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HeavyWork, "run", never)
    body = request(large(3), timeout_ms=20)
    late = asyncio.ensure_future(as_unary(produce.handler)(body, CALL))
    await asyncio.sleep(0)
    assert await reasons(produce, request(batch_of(1))) == [""]
    await late
    assert leader.appended == [1]


async def test_a_request_that_names_nothing_is_refused(executor: ThreadExecutor) -> None:
    header = data_pb2.ProduceHeader().SerializeToString()
    with pytest.raises(InvalidRequestError, match="names no partition"):
        handler(OneLeader(), executor).admit(header, 0, CALL)
