"""The shell of a leader: batches get their offsets and times, callers their answers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest

from icecore.codec.batch import parse_header
from icecore.errors import IcecoreError
from icecore.model import Acks
from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE, SEGMENT_ENGINE, FlushMode
from icecore.v1 import replication_pb2
from icecore_node.replica.life import Led, Life
from icecore_node.replication.leader import Leader, LeaderParts, Offered, Produced
from icecore_node.serving.replication.follower_stream import FollowerStream, StreamParts
from icecore_node.serving.replication.sender import Framer
from icecore_replication.inputs import Damaged, Fenced, FollowerProgress, LeaderInput
from tests.conformance.log_builder import LogBuilder, produced
from tests.support.replication_setup import nodes, segment
from tests.support.role_setup import Calls, Clock, Worker, context, replica

OTHERS = (2, 3)


class Waiter:
    """Answers by slot."""

    def __init__(self) -> None:
        self.answers: dict[int, Produced | IcecoreError] = {}

    def produced(self, slot: int, result: Produced | IcecoreError) -> None:
        assert slot not in self.answers
        self.answers[slot] = result


def offered(slot: int, count: int = 1) -> Offered:
    raw = produced([b"%d" % number for number in range(count)])
    return Offered(slot, memoryview(raw), parse_header(raw))


class LedHere:
    """A leader of segment 7 in epoch 1 at base 0, on nodes 1, 2 and 3."""

    def __init__(self) -> None:
        self.worker, self.readers, self.waiter, self.clock = Worker(), Calls(), Waiter(), Clock()
        self.started: list[str] = []
        shared = context(self.worker, clock=self.clock, tasks=SimpleNamespace(start=self.start))
        for node in nodes().values():
            shared.peers.learn(node)
        self.context = shared
        self.replica = replica(shared, LogBuilder(7))
        record = segment(segment_id=7, epoch=1, base_offset=0)
        others: dict[str, Any] = {
            each: Calls() for each in ("coordinator", "report", "damage", "ticks")
        }
        lease: Any = SimpleNamespace(is_valid=True)
        self.lease = lease
        readers = cast(Any, self.readers)
        parts = LeaderParts(context=shared, lease=lease, readers=readers, **others)
        self.leader = Leader(parts, self.replica, record, lambda _: None)
        self.replica.move(Led(self.leader))

    def start(self, conversation: Any) -> Any:
        """No conversation with anybody gets an answer here."""
        self.started.append(conversation.__name__)
        conversation.close()
        return Calls()

    def produce(self, slot: int, count: int = 1) -> None:
        self.leader.produce(self.waiter, Acks.ALL, [offered(slot, count)])

    def replicate(self) -> None:
        """Our disk and the followers have everything."""
        self.worker.sync()
        end = self.replica.log.tail.end_offset
        self.leader.feed(*(FollowerProgress(node, 10 + node, end) for node in OTHERS))


def test_offsets_and_answers() -> None:
    led = LedHere()
    led.clock.wall_ms = 500
    led.produce(0, count=2)
    led.produce(1, count=3)
    assert [request.marks[0].base_offset for request, _ in led.worker.queue] == [0, 2]
    led.replicate()
    assert led.waiter.answers == {
        0: Produced(0, 7, 1, 500, 3, duplicate=False, batches_kept=5, flush_mode=FlushMode.SYNC),
        1: Produced(2, 7, 1, 500, 3, duplicate=False, batches_kept=5, flush_mode=FlushMode.SYNC),
    }


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        (SEGMENT_ENGINE, FlushMode.SYNC),
        (ROCKSDB_ENGINE, FlushMode.SYNC),
        (MEMORY_ENGINE, FlushMode.ASYNC),
    ],
)
def test_an_answer_says_whether_disks_have_it(engine: str, mode: FlushMode) -> None:
    led = LedHere()
    settings = replace(led.leader.segment.settings, engine=engine)
    led.leader.segment = led.leader.segment.changed(settings=settings)
    led.produce(0)
    led.replicate()
    answer = led.waiter.answers[0]
    assert isinstance(answer, Produced) and answer.flush_mode is mode


def test_append_times_go_on_when_the_clock_goes_back() -> None:
    led = LedHere()
    for slot, now_ms in enumerate((500, 400, 600)):
        led.clock.wall_ms = now_ms
        led.produce(slot)
    stamped = [request.marks[0].append_timestamp_ms for request, _ in led.worker.queue]
    assert stamped == [500, 500, 600]
    assert led.replica.log.tail.max_append_timestamp_ms == 600


def test_the_lease_is_looked_at_before_what_was_synced_is_acked() -> None:
    """R2: the loop may have stood still for the sync, so no tick has told of the lease."""
    led = LedHere()
    led.leader.produce(led.waiter, Acks.LEADER, [offered(0)])
    led.lease.is_valid = False
    led.worker.sync()
    assert not led.waiter.answers
    led.lease.is_valid = True
    led.leader.tick()
    assert cast(Produced, led.waiter.answers[0]).base_offset == 0
    led.leader.produce(led.waiter, Acks.LEADER, [offered(1)])
    led.worker.sync()
    assert cast(Produced, led.waiter.answers[1]).base_offset == 1


def test_followers_are_told_before_the_append_may_hold_the_loop() -> None:
    led, told = LedHere(), list[str]()
    stream: Any = SimpleNamespace(mark_data=lambda _: told.append("follower"))
    led.leader.streams[2] = stream
    append = led.worker.append
    with patch.object(led.worker, "append", lambda *given: (told.append("disk"), append(*given))):
        led.produce(0)
    assert told == ["follower", "disk"]


def test_a_group_is_one_step_and_wakes_followers_once() -> None:
    led, stream = LedHere(), Calls()
    led.leader.streams[2] = cast(Any, stream)
    steps = Mock(wraps=led.leader.core.step)
    with patch.object(led.leader.core, "step", steps):
        led.leader.produce(led.waiter, Acks.ALL, [offered(4, 2), offered(1), offered(3)])
    assert steps.call_count == 1
    assert stream.calls == [("mark_data", 7)]
    ((request, _),) = led.worker.queue
    assert [mark.base_offset for mark in request.marks] == [0, 2, 3]
    led.replicate()
    bases = {slot: cast(Produced, each).base_offset for slot, each in led.waiter.answers.items()}
    assert bases == {4: 0, 1: 2, 3: 3}


@pytest.mark.parametrize(
    ("item", "conversations"),
    [(Damaged("a CRC is wrong"), ["_request_recovery"]), (Fenced(2), [])],
)
def test_the_end_answers_everybody(item: LeaderInput, conversations: list[str]) -> None:
    led = LedHere()
    led.produce(0)
    led.leader.feed(item)
    led.produce(1)
    reasons = [cast(IcecoreError, answer).reason for answer in led.waiter.answers.values()]
    assert reasons == ["LEADER_LOST", "NOT_LEADER"]
    assert led.started == conversations
    assert (led.replica.role, led.replica.life) == (None, Life.RESIGNED)
    assert len(led.readers.of("wake")) == 1


def test_a_node_that_ends_a_role_itself_says_so(caplog: pytest.LogCaptureFixture) -> None:
    led = LedHere()
    led.produce(0)
    with caplog.at_level("INFO"):
        led.replica.end_role("the segment is deleted")
    assert 'event=leadership_ended segment_id=7 why="the segment is deleted"' in caplog.text
    assert "fenced" not in caplog.text
    lost = cast(IcecoreError, led.waiter.answers[0])
    assert (lost.reason, lost.message) == ("LEADER_LOST", "the segment is deleted")
    assert led.started == []  # whoever ended it knows: nobody is to recover


async def test_a_follower_that_leaves_is_no_diverged_one() -> None:
    led = LedHere()
    parts = StreamParts(
        context=led.context,
        table=cast(Any, SimpleNamespace(get=lambda _: led.replica)),
        leaders=cast(Any, SimpleNamespace(of=lambda _: led.leader)),
        reading=cast(Any, None),
        framer=Framer(),
    )
    stream = FollowerStream(parts, cast(Any, Calls()), node_id=3, incarnation=13)
    entry = replication_pb2.ProgressEntry
    seed = led.replica.log.tail.last_header_crc32c
    attach = entry(
        segment_id=7, epoch=1, durable_end_offset=0, last_header_crc32c=seed, attach=True
    )
    await stream._take_slowly(replication_pb2.ReplicaProgress(entries=[attach]))
    assert list(led.leader.streams) == [3]
    leaves = replication_pb2.ReplicaProgress(entries=[entry(segment_id=7, epoch=1, leaving=True)])
    assert stream._take(leaves.SerializeToString())
    assert "FollowerLeft" in led.leader.core.story()
    assert "FollowerDiverged" not in led.leader.core.story()
    assert led.leader.core.isr_state.proposal.isr == (1, 2)  # type: ignore[union-attr]
    assert not led.leader.streams
    stream._sender.close()
