"""Which segments a coordinator recovers by itself: tails that nobody leads, and what is kept."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from icecore.model import KEEP_ALL, NodeState
from icecore.process.system import SystemRng
from icecore_coordinator.config import Timing
from icecore_coordinator.decisions.topic_deletion import delete_topic
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.work.recovery import Recovery
from icecore_coordinator.work.worker_ports import WorkerPorts
from tests.support.cluster_states import SETTINGS
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


def recovery_of(ledger: Ledger, world: World) -> Recovery:
    unused = cast(Any, None)
    ports = WorkerPorts(
        ledger=ledger,
        calls=unused,
        live=world.live,
        heard=unused,
        copies=CopyReports(),
        pages=unused,
        clock=FakeClock(),
        timing=Timing(),
    )
    return Recovery(ports, unused)


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


async def test_nothing_is_recovered_of_a_topic_that_goes_for_good(world: World) -> None:
    """Its replicas are deleted meanwhile, so each try would fail and be told as trouble."""
    recovery, _ = await opened(world)
    await world.ledger.decide(lambda state: delete_topic(state, "events", b"", 0, is_now=True))
    assert recovery.needed() == []
