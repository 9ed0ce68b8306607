"""Replicas and leaderships that must move before a node may leave, and nodes that leave without."""

from dataclasses import replace
from typing import Any, cast

import pytest

from icecore.errors import UnavailableError
from icecore.model import NodeState, Segment
from icecore_coordinator.decisions.placement import Placer
from icecore_coordinator.decisions.segment_changes import Opening, seal, start_recovery
from icecore_coordinator.nodes.node_calls import RollAnswer
from icecore_coordinator.state.records import Change
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.copies.leaving import LeadershipHandOver
from icecore_coordinator.work.segments.gains import ExpectedGains
from icecore_coordinator.work.worker_ports import WorkerPorts
from tests.support.cluster_states import (
    ALL,
    commit,
    prepared_successor,
    sealing,
    segment,
    started,
)
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


class World:
    """One topic on nodes 1 to 3, node 1 leads its one segment; calls to nodes are written down."""

    def __init__(self) -> None:
        self.state = started()
        self.clock = FakeClock()
        self.let_go: list[int] = []
        self.recovered: list[int] = []
        self.asked: list[tuple[int, list[int]]] = []
        self.answer = RollAnswer()
        unused = cast(Any, None)
        ports = WorkerPorts(
            ledger=cast(Any, self),
            calls=cast(Any, self),
            live=self.state.live,
            heard=unused,
            copies=unused,
            alerts=unused,
            clock=self.clock,
            timing=Timing(),
        )
        gains = ExpectedGains(self.clock, 4_000)
        self.hand_over = LeadershipHandOver(ports, gains, self.recovered.append, self.let_go.append)

    async def roll(self, node_id: int, segments: list[Segment], *_: Any) -> list[RollAnswer]:
        self.asked.append((node_id, [each.segment_id for each in segments]))
        if self.answer.error is not None:
            raise self.answer.error
        return [self.answer] * len(segments)

    def put(self, **changes: Any) -> None:
        """Change the segment."""
        record = self.state.segments[1]
        self.state.apply(Change((replace(record, segment=record.segment.changed(**changes)),)))

    def turn(self, node_state: NodeState, *nodes: int) -> None:
        for node_id in nodes:
            self.state.live.note(node_id, state=node_state)

    def needed(self) -> list[int]:
        """Once now, and again when nodes that stop together would have been heard of."""
        self.let_go.clear()
        assert self.hand_over.needed() == []
        self.let_go.clear()
        self.clock.now += Timing().hand_over_settle_ms
        return [each.segment_id for each in self.hand_over.needed()]


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_to_do_while_nobody_leaves(world: World) -> None:
    assert world.needed() == [] and not world.let_go and not world.hand_over.is_busy


def test_leader_hands_over_before_it_may_leave(world: World) -> None:
    world.turn(NodeState.DRAINING, 1)
    assert world.needed() == [1] and not world.let_go and world.hand_over.is_busy
    world.put(leader=2, leader_incarnation=ALL[2], replicas=(2, 3), isr=(2, 3))
    assert world.needed() == [] and world.let_go == [1]


def test_follower_may_leave_at_once_when_others_are_enough(world: World) -> None:
    world.turn(NodeState.DRAINING, 3)
    assert world.needed() == [] and world.let_go == [3]


def test_follower_that_is_needed_is_replaced(world: World) -> None:
    world.put(replicas=(1, 3), isr=(1, 3))
    world.turn(NodeState.DRAINING, 3)
    assert world.needed() == [1] and not world.let_go


def test_follower_that_nobody_can_replace_may_leave(world: World) -> None:
    world.put(replicas=(1, 3), isr=(1, 3))
    world.turn(NodeState.DRAINING, 3)
    world.turn(NodeState.DOWN, 2)
    assert world.needed() == [] and world.let_go == [3]


def test_nothing_moves_when_the_whole_cluster_stops(world: World) -> None:
    world.turn(NodeState.DRAINING, 1, 2, 3)
    assert world.needed() == [] and world.let_go == [1, 2, 3]


def test_recovery_under_way_keeps_its_replicas(world: World) -> None:
    commit(world.state, start_recovery(world.state, 1, segment(world.state).version))
    world.turn(NodeState.DRAINING, 3)
    assert world.needed() == [] and not world.let_go


async def test_leader_is_asked_once_a_while(world: World) -> None:
    world.turn(NodeState.DRAINING, 1)
    assert world.needed() == [1]
    await world.hand_over.hand_over([segment(world.state)])
    assert world.asked == [(1, [1])] and not world.recovered
    assert world.hand_over.needed() == []
    world.clock.now += Timing().hand_over_retry_ms
    assert world.hand_over.needed() == [segment(world.state)]


async def test_segments_that_stay_empty_are_recovered_and_failures_asked_again(
    world: World,
) -> None:
    world.answer = RollAnswer(is_empty=True)
    await world.hand_over.hand_over([segment(world.state)])
    assert not world.recovered  # it may just have opened
    await world.hand_over.hand_over([segment(world.state)])
    assert world.recovered == [1]
    world.answer = RollAnswer(UnavailableError("gone"))
    await world.hand_over.hand_over([segment(world.state)])
    assert len(world.asked) == 3 and world.recovered == [1]


# --- where successors open ------------------------------------------------------------------------


def test_draining_nodes_follow_only_where_there_are_too_few_others(world: World) -> None:
    world.turn(NodeState.DRAINING, 1)
    place = Placer(world.state, world.state.live).place(3, replicas=(1, 2, 3), leader=1, least=2)
    assert set(place.nodes) == {2, 3} and place.leader != 1
    world.turn(NodeState.DOWN, 3)
    place = Placer(world.state, world.state.live).place(3, replicas=(1, 2, 3), leader=1, least=2)
    assert (place.nodes, place.leader) == ((2, 1), 2)
    world.turn(NodeState.DRAINING, 2)
    assert (
        Placer(world.state, world.state.live).place(3, replicas=(1, 2, 3), leader=1, least=2).nodes
        == ()
    )


def test_successor_prepared_before_a_node_drains_opens_without_it(world: World) -> None:
    successor = prepared_successor(world.state)
    world.turn(NodeState.DRAINING, 1)
    commit(
        world.state,
        seal(world.state, world.state.live, sealing(world.state), Opening(successor, ALL), 1),
    )
    opened = segment(world.state, successor)
    assert opened.replicas == opened.isr == (2, 3) and opened.leader == 2


def test_draining_node_that_is_needed_opens_too_but_does_not_lead(world: World) -> None:
    successor = prepared_successor(world.state)
    world.turn(NodeState.DRAINING, 1)
    two = {1: ALL[1], 3: ALL[3]}
    commit(
        world.state,
        seal(world.state, world.state.live, sealing(world.state), Opening(successor, two), 1),
    )
    opened = segment(world.state, successor)
    assert opened.replicas == opened.isr == (1, 3) and opened.leader == 3
