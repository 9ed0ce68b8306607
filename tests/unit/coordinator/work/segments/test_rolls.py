"""Tails are sealed by their leaders; one that can't be reached is asked later, and nothing ends."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from icecore.errors import UnavailableError
from icecore.model import NodeId, Segment
from icecore_coordinator.nodes.node_calls import RollAnswer
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.segments.rolls import TailRolls
from tests.support.cluster_states import segment, started
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


class Leaders:
    """Two of them; some are away."""

    def __init__(self, *away: int) -> None:
        self.away = away
        self.asked: list[int] = []

    async def roll(
        self, leader: NodeId, segments: Sequence[Segment], why: str, _: float
    ) -> list[RollAnswer]:
        self.asked.append(leader)
        if leader in self.away:
            raise UnavailableError(f"node {leader} can't be reached")
        return [RollAnswer() for _ in segments]


async def test_a_leader_that_is_away_keeps_nobody_from_being_asked() -> None:
    state, calls, clock = started(), Leaders(1), FakeClock()
    ports = SimpleNamespace(
        ledger=SimpleNamespace(state=state), calls=calls, clock=clock, timing=Timing()
    )
    rolls = TailRolls(cast(Any, ports))
    tails = [segment(state), segment(state).changed(segment_id=99, leader=NodeId(2))]
    await rolls.roll(tails, "retention")
    assert calls.asked == [1, 2]
    await rolls.roll(tails[:1], "retention")
    assert calls.asked == [1, 2], "it was asked just now"
    clock.now += Timing().roll_retry_ms
    calls.away = ()
    await rolls.roll(tails[:1], "retention")
    assert calls.asked == [1, 2, 1]
