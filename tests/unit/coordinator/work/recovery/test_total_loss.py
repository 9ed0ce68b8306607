"""All copies of a segment are UNKNOWN: it waits, and a person hears of it once per change."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.model import NodeId, Segment
from icecore.topic_settings import RESTART_EMPTY, UNAVAILABLE_ON_LOSS
from icecore_coordinator.decisions.segment_changes import start_recovery
from icecore_coordinator.nodes.alerts import Alerts
from icecore_coordinator.state.records import Change, updated_segment
from icecore_coordinator.work.recovery.total_loss import TotalLosses
from icecore_replication.recovery import FenceReply
from tests.support.cluster_states import ALL, commit, segment, started
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock

UNKNOWN, INTACT = FenceReply(intact=False), FenceReply(intact=True)


class World:
    """Segment 1 is RECOVERING."""

    def __init__(self, on_total_loss: str = UNAVAILABLE_ON_LOSS) -> None:
        self.state = started()
        settings = replace(segment(self.state).settings, on_total_loss=on_total_loss)
        commit(
            self.state, Change((updated_segment(self.state.segments[1], {"settings": settings}),))
        )
        version = self.state.segments[1].version
        commit(self.state, start_recovery(self.state, segment(self.state).segment_id, version))
        self.alerts = Alerts(FakeClock())
        ports = SimpleNamespace(ledger=self, alerts=self.alerts)
        self.losses = TotalLosses(cast(Any, ports))

    async def decide_each(self, items: Any, decision: Any) -> list[Change]:
        return [decision(self.state, each) for each in items]

    async def look(self, *replies: FenceReply | None) -> int:
        """A round of recovery, with the answers of nodes 1 to 3. Return the new alerts."""
        raised = self.alerts.raise_alert
        count = 0

        def count_and_raise(*alert: Any) -> None:
            nonlocal count
            count += 1
            raised(*alert)

        self.alerts.raise_alert = count_and_raise  # type: ignore[method-assign]
        answers = {
            NodeId(node_id): replace(reply, incarnation=ALL[node_id])  # type: ignore[arg-type]
            for node_id, reply in zip(ALL, replies, strict=True)
            if reply
        }
        found: list[tuple[Segment, Mapping[NodeId, FenceReply]]] = []
        found.append((segment(self.state), answers))
        await self.losses.allow(found)
        self.alerts.raise_alert = raised  # type: ignore[method-assign]
        return count


@pytest.fixture
def world() -> World:
    return World()


async def test_a_person_is_told_once(world: World) -> None:
    assert await world.look(UNKNOWN, UNKNOWN, UNKNOWN) == 1
    [alert] = world.alerts
    assert alert.segment_id == 1 and "on nodes 1, 2, 3: events/0 has no leader" in alert.why
    assert await world.look(UNKNOWN, UNKNOWN, UNKNOWN) == 0


async def test_who_does_not_answer_may_hold_everything(world: World) -> None:
    assert await world.look(UNKNOWN, UNKNOWN, None) == 0
    assert await world.look(UNKNOWN, UNKNOWN, INTACT) == 0


async def test_a_change_is_told_anew(world: World) -> None:
    assert await world.look(UNKNOWN, UNKNOWN, UNKNOWN) == 1
    assert await world.look(UNKNOWN, None, UNKNOWN) == 0
    assert await world.look(UNKNOWN, UNKNOWN, UNKNOWN) == 0, "nothing has changed"
    assert await world.look(UNKNOWN, INTACT, UNKNOWN) == 0
    assert await world.look(UNKNOWN, UNKNOWN, UNKNOWN) == 1


async def test_with_restart_empty_it_does_not_wait() -> None:
    world = World(RESTART_EMPTY)
    assert await world.look(UNKNOWN, UNKNOWN, UNKNOWN) == 1
    [alert] = world.alerts
    assert "it ends at what can be proved" in alert.why


async def test_what_is_sealed_is_forgotten(world: World) -> None:
    await world.look(UNKNOWN, UNKNOWN, UNKNOWN)
    world.state.unsealed.clear()
    await world.losses.allow([])
    assert not world.losses._told


async def test_the_alert_goes_when_the_segment_waits_no_more() -> None:
    world = World()
    await world.look(UNKNOWN, UNKNOWN, UNKNOWN)
    assert [each.segment_id for each in world.alerts] == [1]
    del world.state.unsealed[segment(world.state).segment_id]  # sealed, or deleted with its topic
    assert not list(world.alerts)
