"""Segments that a coordinator recovers by itself: tails without a leader, and deleted topics'
tails."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.model import Incarnation, NodeId, NodeState, SegmentId, SegmentState
from icecore.process.system import SystemRng
from icecore.topic_settings import KEEP_ALL
from icecore_coordinator.decisions.topic_deletion import delete_topic, undelete_topic
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_calls import WrittenReplica
from icecore_coordinator.state.records import Change, updated_segment
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.recovery.recovery import Recovery
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.producers import snapshot_digest
from icecore_replication.recovery import FenceReply
from tests.support.cluster_states import ALL, DIGEST, SETTINGS
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock
from tests.unit.coordinator.work.test_topics import World, settled

GRACE_MS = 60_000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    database = SqliteDatabase(":memory:")
    world = World(Ledger(SqliteStore(database), SystemRng()))
    await world.ledger.open()
    await world.start()
    yield world
    database.close()


def recovery_of(
    ledger: Ledger, world: World, calls: Any = None, copies: CopyReports | None = None
) -> Recovery:
    unused = cast(Any, None)
    heard = SimpleNamespace(high_watermark=lambda _: 0, forget_end=lambda *_: None)
    ports = WorkerPorts(
        ledger=ledger,
        calls=calls,
        live=world.live,
        heard=cast(Any, heard),
        copies=copies or CopyReports(),
        alerts=unused,
        clock=FakeClock(),
        timing=Timing(),
    )
    return Recovery(ports, cast(Any, NoSuccessors()))


class NoSuccessors:
    """Nothing can be opened now."""

    async def prepare(self, _: object) -> dict[Any, Any]:
        return {}

    async def confirm(self, _: object) -> dict[Any, Any]:
        return {}


class Holders:
    """Three nodes with the same ten records; node 3 takes its time to say so."""

    def __init__(self) -> None:
        self.is_late = asyncio.Event()
        self.is_done = asyncio.Event()

    async def fence(self, node_id: int, mine: Sequence[Any], _: float) -> list[FenceReply]:
        return [FenceReply(True, 10, 7, DIGEST, Incarnation(ALL[node_id]))] * len(mine)

    async def write_back(
        self, node_id: int, items: Sequence[Any], _: float
    ) -> list[WrittenReplica]:
        if node_id == 3:
            self.is_late.set()
            await self.is_done.wait()
        whole = WrittenReplica(Incarnation(ALL[node_id]), DIGEST, b"", snapshot_digest(b""), 0, 100)
        return [whole] * len(items)


async def opened(world: World) -> tuple[Recovery, int]:
    """A topic of one partition whose leader is well."""
    creating = asyncio.create_task(world.topics.create("events", 1, SETTINGS, GRACE_MS, KEEP_ALL))
    await settled()
    segment_id = await world.open_next()
    await creating
    recovery = recovery_of(world.ledger, world)
    assert recovery.needed() == []
    return recovery, segment_id


async def test_a_tail_whose_leader_is_gone_is_recovered(world: World) -> None:
    recovery, segment_id = await opened(world)
    world.live.note(1, state=NodeState.DOWN, is_connected=False)
    assert recovery.needed() == [segment_id]


async def test_what_a_deleted_topic_keeps_is_ended(world: World) -> None:
    recovery, segment_id = await opened(world)
    await world.ledger.decide(lambda state: delete_topic(state, "events", b"", 0))
    assert recovery.needed() == [segment_id]


async def keep_empty_tail(world: World) -> None:
    """Behind ten records that lie in object storage only; then delete the topic."""
    (tail,) = world.state.segments.values()
    fields = {"state": SegmentState.SEALED, "end_offset": 10, "replicas": (), "is_tiered": True}
    before = tail.segment.changed(segment_id=SegmentId(999), version=1, **fields)
    first = replace(tail, segment=before)
    moved = updated_segment(tail, {"base_offset": 10})
    await world.ledger.decide(lambda _: Change((moved, first)))
    await world.ledger.decide(lambda state: delete_topic(state, "events", b"", 0))


async def test_an_empty_tail_that_only_knows_the_producers_waits_for_its_topic(
    world: World,
) -> None:
    """It can't go, and nothing opens behind it: each round would ask every node in vain."""
    _, segment_id = await opened(world)
    calls = Holders()
    recovery = recovery_of(world.ledger, world, calls)
    await keep_empty_tail(world)
    assert recovery.needed() == [segment_id]
    await recovery.recover(recovery.needed())
    assert world.state.segments[SegmentId(segment_id)].segment.state is SegmentState.RECOVERING
    recovery._clock.now += GRACE_MS  # type: ignore[attr-defined]
    assert recovery.needed() == [] and not recovery.backoff.is_waiting
    await world.ledger.decide(lambda state: undelete_topic(state, "events", b"")[0])
    assert recovery.needed() == [segment_id], "at once"
    await world.ledger.decide(lambda state: delete_topic(state, "events", b"", 0))
    assert recovery.needed() == [segment_id], "who knows what it had meanwhile"


async def test_a_tail_of_a_deleted_topic_that_could_not_be_sealed_is_tried_again(
    world: World,
) -> None:
    _, segment_id = await opened(world)
    calls = Holders()
    calls.is_done.set()
    recovery = recovery_of(world.ledger, world, calls)
    await world.ledger.decide(lambda state: delete_topic(state, "events", b"", 0))
    for node_id in ALL:  # so that nobody copies from the donor
        world.live.note(node_id, state=NodeState.DOWN, is_connected=False)
    await recovery.recover(recovery.needed())
    assert world.state.segments[SegmentId(segment_id)].segment.state is SegmentState.RECOVERING
    assert recovery.backoff.is_waiting
    recovery._clock.now += GRACE_MS  # type: ignore[attr-defined]
    assert recovery.needed() == [segment_id]


async def test_nothing_is_recovered_of_a_topic_that_goes_for_good(world: World) -> None:
    """Its replicas are deleted meanwhile, so each try would fail and be told as trouble."""
    recovery, _ = await opened(world)
    await world.ledger.decide(lambda state: delete_topic(state, "events", b"", 0, is_now=True))
    assert recovery.needed() == []


async def test_nobody_looks_again_and_again_for_what_has_gone(world: World) -> None:
    """A segment that waits for another try makes the coordinator look at each tick, until it is
    gone."""
    _, segment_id = await opened(world)
    calls = Holders()
    calls.is_done.set()
    recovery = recovery_of(world.ledger, world, calls)
    for node_id in ALL:
        world.live.note(node_id, state=NodeState.DOWN, is_connected=False)
    await recovery.recover(recovery.needed())
    assert recovery.needed() == [] and recovery.backoff.is_waiting
    gone = world.state.segments[SegmentId(segment_id)]
    await world.ledger.decide(lambda _: Change((), (gone,)))
    assert recovery.needed() == [] and not recovery.backoff.is_waiting


async def test_damage_that_is_told_while_others_still_write_is_not_forgotten(world: World) -> None:
    """Its node says it once for each stream: nobody would ever make that copy again."""
    _, segment_id = await opened(world)
    calls, copies = Holders(), CopyReports()
    copies.note_unknown(NodeId(2), [SegmentId(segment_id)])
    recovery = recovery_of(world.ledger, world, calls, copies)
    recovering = asyncio.create_task(recovery.recover([SegmentId(segment_id)]))
    await calls.is_late.wait()
    await settled()
    copies.note_unknown(NodeId(2), [SegmentId(segment_id)])
    calls.is_done.set()
    await recovering
    assert world.state.segments[SegmentId(segment_id)].segment.state is SegmentState.SEALED
    assert list(copies.unknown()) == [(2, segment_id)]


async def test_who_was_written_back_is_unknown_no_longer(world: World) -> None:
    _, segment_id = await opened(world)
    calls, copies = Holders(), CopyReports()
    calls.is_done.set()
    for node_id in ALL:
        copies.note_unknown(NodeId(node_id), [SegmentId(segment_id)])
    await recovery_of(world.ledger, world, calls, copies).recover([SegmentId(segment_id)])
    assert not list(copies.unknown())
