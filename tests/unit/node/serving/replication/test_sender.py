"""The leader's side of a Replicate stream, as far as it needs no stream."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from icecore.codec import batch
from icecore.model import Acks, SegmentId
from icecore.rpc import framing
from icecore.rpc.ports import Body, join
from icecore.v1 import replication_pb2
from icecore_node.replica.life import Led
from icecore_node.replication.leader import Leader, LeaderParts, Offered
from icecore_node.serving.replication.sender import (
    WATERMARK_DELAY_S,
    FollowerSender,
    Framer,
    Outgoing,
)
from tests.conformance.log_builder import LogBuilder, produced
from tests.support.replication_setup import nodes, segment
from tests.support.role_setup import Calls, Worker, context, replica


def outgoing(start: int, *buffers: bytes) -> Outgoing:
    length = sum(map(len, buffers))
    entry = replication_pb2.ReplicaDataEntry(segment_id=7, epoch=1, batches_length=length)
    return Outgoing(replication_pb2.ReplicaDataHeader(entries=[entry]), [start], list(buffers))


def test_followers_that_need_the_same_message_share_it() -> None:
    """And it is what a message of one's own would be."""
    framer = Framer()
    both, last = outgoing(0, b"batch-1", b"batch-2"), outgoing(1, b"batch-2")
    first = framer.frame(both)
    assert first == framing.frame_bulk(both.header.SerializeToString(), both.buffers)
    assert framer.frame(outgoing(0, b"batch-1", b"batch-2")) is first
    header, data = framing.split_bulk(join(framer.frame(last)), replication_pb2.ReplicaData)
    assert (header, data) == (last.header.SerializeToString(), b"batch-2")
    assert framer.frame(both) == first


def test_equal_headers_of_other_offsets_are_other_messages() -> None:
    framer = Framer()
    first, second = outgoing(0, b"batch-1"), outgoing(1, b"batch-2")
    assert first.header == second.header
    assert framer.frame(first) != framer.frame(second)
    assert join(framer.frame(second)).endswith(b"batch-2")


class OneFollower(NamedTuple):
    """A leader of segment 7, what its one follower is sent, and who sends it."""

    leader: Leader
    sender: FollowerSender
    messages: list[Body]

    def produce(self, value: bytes) -> None:
        raw = produced([value])
        offered = Offered(0, memoryview(raw), batch.parse_header(raw))
        self.leader.produce(cast(Any, Calls()), Acks.ALL, [offered])


def led() -> OneFollower:
    metrics = SimpleNamespace(replicated_bytes_out=SimpleNamespace(inc=lambda _: None))
    shared = context(Worker(), metrics=metrics)
    for node in nodes().values():
        shared.peers.learn(node)
    log = replica(shared, LogBuilder(7))
    record = segment(segment_id=7, epoch=1, base_offset=0)
    others: dict[str, Any] = {
        each: Calls() for each in ("coordinator", "report", "damage", "readers", "ticks")
    }
    lease: Any = SimpleNamespace(is_valid=True)
    leader = Leader(LeaderParts(context=shared, lease=lease, **others), log, record, lambda _: None)
    log.move(Led(leader))
    messages: list[Body] = []
    stream: Any = SimpleNamespace(write_now=lambda body: messages.append(body) or True)
    sender = FollowerSender(shared, cast(Any, None), Framer(), stream)
    leader.streams[3] = sender
    sender.attach(leader, 0)
    sender.add_credit(1 << 20)
    return OneFollower(leader, sender, messages)


async def test_each_batch_of_equal_length_is_sent() -> None:
    """A follower that keeps pace gets one message for each, all under one watermark."""
    _, sender, messages = one = led()
    bases: list[int] = []
    for _ in range(3):
        one.produce(b"same length")
        await asyncio.sleep(0)
        message = join(messages.pop())
        _, data = framing.split_bulk(message, replication_pb2.ReplicaData)
        bases += [header.base_offset for _, header in batch.iter_batches(data)]
    sender.close()
    assert bases == [0, 1, 2]


class Timers:
    """Stands for the loop: its time is what a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, function: Callable[[], None]) -> None:
        self._due.append((self.now_s, function))

    def call_later(self, wait_s: float, function: Callable[[], None]) -> Any:
        self._due.append((self.now_s + wait_s, function))
        return SimpleNamespace(cancel=lambda: None)

    def advance(self, wait_s: float) -> None:
        """So much time passes, and what is due meanwhile is called when it is."""
        until_s = self.now_s + wait_s
        while due := [each for each in self._due if each[0] <= until_s]:
            first = min(due, key=lambda each: each[0])
            self._due.remove(first)
            self.now_s = max(self.now_s, first[0])
            first[1]()
        self.now_s = until_s


def test_a_watermark_travels_alone_only_when_it_has_waited_for_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watermark that moved after the last data has its own wait, whenever the first one's is
    over."""
    timers = Timers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    _, sender, messages = one = led()
    timers.advance(WATERMARK_DELAY_S)
    messages.clear()  # with the watermark of the one that has attached
    for number in range(10):
        sender.mark_watermark(SegmentId(7))
        timers.advance(WATERMARK_DELAY_S / 2)
        one.produce(b"record %d" % number)
        timers.advance(0)
        assert len(messages) == number + 1, "each travels with the next data"
    sender.mark_watermark(SegmentId(7))
    timers.advance(WATERMARK_DELAY_S * 0.9)
    assert len(messages) == 10
    timers.advance(WATERMARK_DELAY_S * 0.1)
    (entry,) = header_of(messages.pop()).entries
    assert (entry.segment_id, entry.batches_length) == (7, 0)
    timers.advance(1.0)
    assert len(messages) == 10, "and once"


def header_of(message: Body) -> replication_pb2.ReplicaDataHeader:
    header, _ = framing.split_bulk(join(message), replication_pb2.ReplicaData)
    return replication_pb2.ReplicaDataHeader.FromString(header)
