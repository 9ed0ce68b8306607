"""Steps that a role may not take whatever its core says: then it stops, and the node ends."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.codec.batch import BatchHeader
from icecore.model import Acks
from icecore_node.config import NodeSettings
from icecore_node.context import NodeContext, Peers, ProducerFences, Tasks
from icecore_node.identity.identity import Identity
from icecore_node.identity.node_report import NodeReport
from icecore_node.io.tail_cache import TailCache
from icecore_node.replica.life import Followed, Led, Life
from icecore_node.replica.replica import Replica
from icecore_node.replica.replica_log import StampedBatch
from icecore_node.replication.follower import Follower, FollowerParts
from icecore_node.replication.leader import Leader, LeaderParts, Offered
from icecore_node.replication.leader_ticks import LeaderTicks
from icecore_node.storage.engine import NO_TAIL, LogTail, SegmentIdentity
from icecore_replication.inputs import StreamOpened, Tick
from icecore_replication.invariants import InvariantError
from icecore_replication.producers import ProducerTable
from tests.support.replication_setup import BASE, INCARNATION, LEADER, segment

HEADER = cast(
    BatchHeader,
    SimpleNamespace(
        batch_length=160, record_count=10, producer_id=0, producer_epoch=0, base_sequence=0
    ),
)
RAW = bytes(160)


def identity(base_offset: int = BASE) -> SegmentIdentity:
    return SegmentIdentity(b"c" * 16, b"t" * 16, 0, 7, 0, 5, base_offset)


def tail(end_offset: int) -> LogTail:
    return replace(NO_TAIL, end_offset=end_offset)


class Shell:
    """A node with production's settings as its roles see it, and what they do to others."""

    def __init__(self, base_offset: int = BASE, sealed_end_offset: int | None = None) -> None:
        self.ended_by: list[BaseException] = []
        self.told: list[object] = []
        settings = NodeSettings.model_validate({"data": Path("unused"), "node_id": LEADER})
        none: dict[str, Any] = dict.fromkeys(("rng", "net", "executor", "disks", "store"))
        clock = SimpleNamespace(monotonic_ms=lambda: 0.0, now_ms=lambda: 1)
        worker = SimpleNamespace(append=lambda *_: None)
        known = Identity(LEADER)
        known.register(b"c" * 16, INCARNATION, coordinator_epoch=1)
        self.context = NodeContext(
            settings=settings,
            clock=cast(Any, clock),
            pool=cast(Any, SimpleNamespace(worker_for=lambda *_: worker)),
            cache=TailCache(1 << 20),
            metrics=cast(Any, None),
            identity=known,
            peers=Peers(),
            producer_fences=ProducerFences(),
            tasks=Tasks(self.ended_by.append),
            **none,
        )
        is_sealed = sealed_end_offset is not None
        life = Life.SEALED if is_sealed else Life.IDLE if base_offset >= 0 else Life.PREPARED
        self.replica = Replica(
            self.context.log_io,
            identity(base_offset),
            tail(base_offset),
            ProducerTable() if life is Life.IDLE else None,
            life=life,
            sealed_end_offset=sealed_end_offset,
        )
        self.readers: Any = SimpleNamespace(wake=self.told.append)

    def follower(self) -> Follower:
        link = SimpleNamespace(
            attach=lambda _: None, report=lambda *given: self.told.append(given[2])
        )
        nobody: Any = None
        parts = FollowerParts(context=self.context, damage=nobody, readers=self.readers)
        role = Follower(parts, self.replica, segment(), cast(Any, link), nobody)
        self.replica.move(Followed(role))
        return role

    def leader(self) -> Leader:
        """Alone in sync, with a batch of ten records on its way to the disk."""
        nobody: Any = None
        lease: Any = SimpleNamespace(is_valid=True)
        parts = LeaderParts(
            context=self.context,
            coordinator=nobody,
            report=NodeReport(),
            lease=lease,
            damage=nobody,
            readers=self.readers,
            ticks=LeaderTicks(),
        )
        leader = Leader(parts, self.replica, segment(isr=(LEADER,)), lambda _: None)
        self.replica.move(Led(leader))
        waiter = SimpleNamespace(produced=lambda _, result: self.told.append(result))
        leader.produce(waiter, Acks.LEADER, [Offered(0, memoryview(RAW), HEADER)])
        return leader


def test_a_broken_core_ends_the_node_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    shell = Shell()
    role = shell.follower()
    role.core.log_end_offset = BASE - 1
    with caplog.at_level(logging.CRITICAL):
        for _ in range(15):
            role.feed(StreamOpened())
        assert shell.ended_by == []
        for _ in range(35):
            role.feed(StreamOpened())
    [broken] = shell.ended_by
    assert isinstance(broken, InvariantError) and "took StreamOpened" in str(broken)
    [line] = [record.getMessage() for record in caplog.records]
    assert line == 'event=invariant_broken segment_id=7 what="log ends"'


def ended_by(shell: Shell) -> list[str]:
    assert shell.told == []
    return [str(each) for each in shell.ended_by]


def test_what_is_not_durable_here_is_not_reported() -> None:
    shell = Shell()
    role = shell.follower()
    role.core.log_end_offset = role.core.durable_end_offset = BASE + 10
    for _ in range(2):
        role.feed(StreamOpened())
    assert ended_by(shell) == ["not durable here"]


def test_what_is_not_durable_here_is_not_acknowledged() -> None:
    shell = Shell()
    leader = shell.leader()
    leader.core._in_sync.raise_own_end(BASE + 10)
    for _ in range(2):
        leader.feed(Tick())
    assert ended_by(shell) == ["an ack for what is not durable here"]


def test_what_is_not_durable_here_is_not_shown() -> None:
    shell = Shell()
    leader = shell.leader()
    for node_id in leader.segment.replicas:
        leader.core._in_sync.followers.durable[node_id] = BASE + 10
    leader.core._in_sync._moved = True
    leader.feed(Tick())
    assert ended_by(shell) == ["visible before it is durable here"]


def test_a_leader_begins_on_an_empty_log() -> None:
    shell = Shell()
    shell.replica.log.tail = tail(BASE + 10)
    with pytest.raises(AssertionError, match="empty log"):
        shell.leader()


@pytest.mark.parametrize(
    ("held_base", "sealed_end_offset", "base_offset", "why"),
    [
        (-1, None, -1, "prepared"),
        (BASE, BASE, BASE, "sealed"),
        (BASE, None, BASE + 1, "continues the log"),
        (BASE, None, BASE - 1, "continues the log"),
    ],
)
def test_an_append_continues_a_log_that_may_grow(
    held_base: int, sealed_end_offset: int | None, base_offset: int, why: str
) -> None:
    replica = Shell(held_base, sealed_end_offset).replica
    stamped = StampedBatch(
        header_bytes=RAW,
        header=HEADER,
        body=b"",
        base_offset=base_offset,
        end_offset=base_offset + 10,
        append_timestamp_ms=0,
        header_crc32c=0,
    )
    with pytest.raises(AssertionError, match=why):
        replica.log.extend(stamped, [])
    assert replica.log.tail.end_offset == held_base
