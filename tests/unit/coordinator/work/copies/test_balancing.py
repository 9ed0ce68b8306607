"""Segments are rolled to even out the load, a few at a time."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

from icecore.model import NodeState, Segment
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_calls import RollAnswer
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.copies.balancing import Balancer
from icecore_coordinator.work.segments.rolls import ROLLS_MIN
from icecore_coordinator.work.worker_ports import WorkerPorts
from tests.support.cluster_states import Cluster
from tests.unit.coordinator.decisions.test_balance import NODES, carry_out, lopsided
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock
from tests.unit.coordinator.work.copies.test_auditor import StateOnly

SEGMENTS = 30


class Lopsided:
    """Node 1 leads all segments of three nodes; calls of leaders are only kept."""

    def __init__(self, *, without_records: Sequence[int] = ()) -> None:
        self.state: Cluster = lopsided(SEGMENTS)
        self.clock = FakeClock()
        self.asked: list[tuple[int, list[int], str]] = []
        self.copies = CopyReports()
        self._without_records = without_records
        for node_id in NODES:
            self.state.live.note(node_id, up_since_ms=self.clock.monotonic_ms())
        ports = WorkerPorts(
            ledger=cast(Any, StateOnly(self.state)),
            calls=cast(Any, self),
            live=self.state.live,
            heard=cast(Any, self),
            copies=self.copies,
            alerts=cast(Any, None),
            clock=self.clock,
            timing=Timing(roll_up_wait_ms=10_000, balance_ms=60_000, roll_retry_ms=5_000),
        )
        self.balancer = Balancer(ports)

    def high_watermark(self, segment_id: int) -> int | None:
        return None if segment_id in self._without_records else 7

    async def roll(
        self, leader: int, segments: Sequence[Segment], why: str, _: float
    ) -> list[RollAnswer]:
        self.asked.append((leader, [each.segment_id for each in segments], why))
        return [RollAnswer() for _ in segments]

    async def look(self, after_ms: int = 0) -> list[int]:
        """Let time pass and look; return the segments that were asked to roll."""
        self.clock.now += after_ms
        before = len(self.asked)
        await self.balancer.look()
        return [each for _, asked, _ in self.asked[before:] for each in asked]


async def test_a_few_at_a_time_once_every_node_was_up_for_a_while() -> None:
    cluster = Lopsided()
    assert await cluster.look() == []  # a node that just came may go again
    first = await cluster.look(10_000)
    assert len(first) == ROLLS_MIN
    assert cluster.asked == [(1, first, "balance")]
    assert await cluster.look() == []  # as many are under way
    later = await cluster.look(5_001)  # those were refused: others first
    assert len(later) == ROLLS_MIN
    assert cluster.balancer.wait_ms() == 60_000


@pytest.mark.parametrize("state", [NodeState.DOWN, NodeState.DRAINING, NodeState.READ_ONLY])
async def test_nothing_moves_by_itself_while_a_node_is_away(state: NodeState) -> None:
    cluster = Lopsided()
    cluster.state.live.note(3, state=state, is_connected=state != NodeState.DOWN)
    assert await cluster.look(20_000) == []


async def test_nothing_moves_by_itself_while_a_copy_is_damaged() -> None:
    cluster = Lopsided()
    cluster.copies.note_unknown(3, [1])
    assert await cluster.look(20_000) == []


async def test_a_person_need_not_wait() -> None:
    cluster = Lopsided()
    cluster.state.live.note(3, state=NodeState.READ_ONLY, is_connected=True)
    assert cluster.balancer.plan() == []  # no third node could take a copy
    cluster.state.live.note(3, state=NodeState.UP, is_connected=True)
    planned = cluster.balancer.begin()
    assert len(planned) > 2 * ROLLS_MIN
    assert cluster.balancer.wake.is_set()
    assert cluster.balancer.wait_ms() == 1_000
    assert len(await cluster.look()) == ROLLS_MIN


async def test_what_leaders_refuse_is_asked_for_again_and_not_for_ever() -> None:
    cluster = Lopsided(without_records=range(6, SEGMENTS + 1))
    assert cluster.balancer.begin()
    asked = [segment_id for _ in range(60) for segment_id in await cluster.look(1_000)]
    assert max(Counter(asked).values()) > 1
    assert cluster.balancer.wait_ms() == 1_000
    await cluster.look(600_000)
    assert cluster.balancer.wait_ms() == 60_000


async def test_a_request_ends_when_all_is_even() -> None:
    cluster = Lopsided()
    carry_out(cluster.state, cluster.balancer.begin())
    assert await cluster.look() == []
    assert cluster.balancer.wait_ms() == 60_000


async def test_segments_without_records_are_left_alone() -> None:
    cluster = Lopsided(without_records=range(1, SEGMENTS + 1))
    assert cluster.balancer.begin() == []
    assert not cluster.balancer.wake.is_set()
    assert await cluster.look(20_000) == []
