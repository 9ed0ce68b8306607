"""Rules R14-R19: changes of the in-sync set, at the leader and at the coordinator."""

from typing import Any

import pytest

from icecore.errors import ConflictError, FencedError, InvalidRequestError
from icecore.model import Acks, NodeState, Segment, SegmentState
from icecore_replication.effects import (
    AdvanceHighWatermark,
    CompleteProduce,
    FailProduce,
    ProposeIsr,
)
from icecore_replication.inputs import (
    FollowerDiverged,
    FollowerLeft,
    FollowerProgress,
    IsrChangeFailed,
    IsrChangeUnknown,
    LeaderInput,
    NodeChanged,
    SegmentUpdated,
    Tick,
)
from icecore_replication.isr import (
    CommittedIsr,
    IsrProposal,
    PendingExpand,
    PendingShrink,
    accept_isr_change,
    can_expand,
    maximal_isr,
)
from tests.support.replication_setup import INCARNATION, Led, node, only, segment, settings

REGISTERED = {1: INCARNATION, 2: 12, 3: 13}


def proposal(**changes: Any) -> IsrProposal:
    fields: dict[str, Any] = {
        "node_id": 1,
        "incarnation": INCARNATION,
        "epoch": 5,
        "version": 1,
        "isr": (1, 2),
        "isr_incarnations": (11, 12),
        **changes,
    }
    return IsrProposal(**fields)


# --- the coordinator (R19) ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "incarnations"), [((1, 2), (11, 12)), ((1,), (11,)), ((1, 2, 3), (11, 0, 0))]
)
def test_accepts_what_needs_no_proof(isr: tuple[int, ...], incarnations: tuple[int, ...]) -> None:
    after = accept_isr_change(
        segment(), proposal(isr=isr, isr_incarnations=incarnations), REGISTERED
    )
    assert isinstance(after, Segment)
    assert (after.isr, after.version) == (isr, 2)
    assert after.changed(isr=segment().isr, version=1) == segment()


@pytest.mark.parametrize(
    ("record", "change", "error"),
    [
        ({"state": SegmentState.RECOVERING}, {}, FencedError),
        ({"epoch": 6}, {}, FencedError),
        ({"leader": 2}, {}, FencedError),
        ({"leader_incarnation": 99}, {}, FencedError),
        ({}, {"node_id": 2, "incarnation": 12}, FencedError),
        ({"version": 2}, {}, ConflictError),
        ({}, {"isr": (2, 3), "isr_incarnations": (12, 13)}, InvalidRequestError),
        ({}, {"isr": (1, 4), "isr_incarnations": (11, 14)}, InvalidRequestError),
        ({}, {"isr": (1, 1), "isr_incarnations": (11, 11)}, InvalidRequestError),
        ({}, {"isr_incarnations": (11,)}, InvalidRequestError),
        ({"isr": (1,)}, {"isr_incarnations": (11, 10)}, FencedError),  # 2 restarted meanwhile
        ({"isr": (1,)}, {"isr": (1, 3), "isr_incarnations": (11, 14)}, FencedError),
    ],
)
def test_refuses(record: dict[str, Any], change: dict[str, Any], error: type[Exception]) -> None:
    assert isinstance(accept_isr_change(segment(**record), proposal(**change), REGISTERED), error)


def test_refuses_to_add_a_node_that_may_not_join() -> None:
    answer = accept_isr_change(segment(isr=(1,)), proposal(), {1: INCARNATION})
    assert isinstance(answer, FencedError)


@pytest.mark.parametrize(
    ("state", "attached", "end", "expected"),
    [
        (NodeState.UP, True, 150, True),
        (NodeState.UP, True, 149, False),
        (NodeState.UP, False, 150, False),
        (NodeState.DOWN, True, 150, False),
        (NodeState.DRAINING, True, 150, False),
        (NodeState.READ_ONLY, True, 150, False),
    ],
)
def test_can_expand(state: NodeState, attached: bool, end: int, expected: bool) -> None:
    assert can_expand(segment(), node(2, state), attached, end, floor=150) is expected
    assert not can_expand(segment(), None, True, 999, 150)
    assert not can_expand(segment(), node(4), True, 999, 150)


def test_maximal_is_the_union() -> None:
    change = ProposeIsr((1, 2), 4, (11, 12))
    assert maximal_isr(CommittedIsr((1,), 4)) == (1,)
    assert maximal_isr(PendingExpand((1, 3), 4, (1, 2, 3), change)) == (1, 2, 3)
    assert maximal_isr(PendingShrink((1, 2, 3), 4, change)) == (1, 2, 3)


# --- shrink (R14, R15) ----------------------------------------------------------------------------


def test_down_node_leaves_at_once_but_counts_until_the_answer() -> None:
    led = Led()
    led.produce()
    led.durable(110, 1, 2)
    assert led.do(NodeChanged(node(3, NodeState.DOWN))) == [ProposeIsr((1, 2), 1, (11, 12))]
    assert led.core.maximal_isr == (1, 2, 3)
    assert led.do(Tick()) == []  # one change in flight, and no ack yet
    done = led.do(SegmentUpdated(led.segment.changed(isr=(1, 2), version=2)))
    assert done == [CompleteProduce(1, 100, 2)]


def test_laggard_leaves_after_the_lag_time_and_not_before() -> None:
    led = Led()
    led.produce()
    led.durable(110, 1, 2, at=5.0)
    assert led.do(Tick(), at=10_000.0) == []
    assert led.do(Tick(), at=10_001.0) == [ProposeIsr((1, 2), 1, (11, 12))]


def test_idle_follower_is_no_laggard() -> None:
    led = Led()
    led.produce()
    led.durable(110, 1, 2, 3)
    assert led.do(Tick(), at=60_000.0) == []
    led.produce(at=60_001.0)
    assert led.do(Tick(), at=69_000.0) == []
    assert only(ProposeIsr, led.do(Tick(), at=70_001.0)) == [ProposeIsr((1,), 1, (11,))]


@pytest.mark.parametrize("behind", [10, 40], ids=["one batch", "four in flight"])
def test_slow_follower_that_keeps_pace_is_no_laggard(behind: int) -> None:
    """It is never quite at the end, but always has what was the end a little earlier."""
    led = Led()
    end = 100
    for second in range(1, 60):
        led.produce(at=second * 1000.0)
        end += 10
        effects = led.durable(end, 1, 2)
        effects += led.durable(max(end - behind, 100), 3)
        effects += led.do(Tick())
        assert only(ProposeIsr, effects) == []


def test_shrink_may_go_below_min_insync_replicas_and_then_refuses_writes() -> None:
    led = Led()
    led.produce()
    led.produce(acks=Acks.LEADER)
    led.do(NodeChanged(node(2, NodeState.DOWN)), NodeChanged(node(3, NodeState.DOWN)))
    effects = led.do(SegmentUpdated(led.segment.changed(isr=(1,), version=2)))
    assert only(FailProduce, effects) == []
    effects = led.durable(120, 1)
    assert [fail.error.reason for fail in only(FailProduce, effects)] == [
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    ]
    assert [done.request_id for done in only(CompleteProduce, effects)] == [2]
    assert only(AdvanceHighWatermark, effects) == []  # frozen
    (refused,) = only(FailProduce, led.produce())
    assert refused.error.reason == "NOT_ENOUGH_REPLICAS"
    assert led.core.log_end_offset == 120


def test_member_that_lost_bytes_leaves_at_once() -> None:
    led = Led()
    led.produce()
    led.durable(110, 1, 2, 3)
    assert only(ProposeIsr, led.attach(3, 110)) == []
    assert only(ProposeIsr, led.attach(3, 100)) == [ProposeIsr((1, 2), 1, (11, 12))]


@pytest.mark.parametrize("incarnation", [13, 23])
def test_member_that_lost_bytes_leaves_even_if_it_attaches_once_more(incarnation: int) -> None:
    """Another change is in flight when it comes back too short; by the answer its stream has
    broken again, or its process has."""
    led = Led(isr=(1, 3))
    led.produce()
    led.durable(110, 1, 3)
    assert only(ProposeIsr, led.attach(2, 110)) == [ProposeIsr((1, 2, 3), 1, (11, 12, 13))]
    assert only(ProposeIsr, led.attach(3, 100)) == []
    led.do(NodeChanged(node(3, incarnation=incarnation)))
    led.attach(3, 100, incarnation)
    led.attach(3, 110, incarnation)
    answer = SegmentUpdated(led.segment.changed(isr=(1, 2, 3), version=2))
    assert only(ProposeIsr, led.do(answer)) == [ProposeIsr((1, 2), 2, (11, 12))]
    # Once it is out, what it holds is what counts.
    effects = led.do(SegmentUpdated(led.segment.changed(isr=(1, 2), version=3)))
    assert only(ProposeIsr, effects) == [ProposeIsr((1, 2, 3), 3, (11, 12, incarnation))]


@pytest.mark.parametrize("item", [FollowerDiverged(3, 110), FollowerLeft(3)])
def test_member_that_is_none_any_more_leaves_at_once(item: LeaderInput) -> None:
    """It counts for nothing, and once it is out it may come back."""
    led = Led()
    led.produce(acks=Acks.QUORUM)
    led.durable(110, 3)
    assert only(ProposeIsr, led.do(item)) == [ProposeIsr((1, 2), 1, (11, 12))]
    assert led.durable(110, 1) == []
    led.do(SegmentUpdated(led.segment.changed(isr=(1, 2), version=2)))
    assert only(ProposeIsr, led.attach(3, 110)) == [ProposeIsr((1, 2, 3), 2, (11, 12, 13))]


def test_stranger_that_leaves_changes_nothing() -> None:
    assert Led().do(FollowerLeft(9)) == []


# --- expand (R16, R17) ----------------------------------------------------------------------------


def test_added_member_counts_before_the_answer() -> None:
    led = Led(isr=(1, 2))
    led.produce()
    led.durable(110, 1, 2)
    assert only(ProposeIsr, led.attach(3, 110)) == [ProposeIsr((1, 2, 3), 1, (11, 12, 13))]
    assert led.core.maximal_isr == (1, 2, 3)
    assert led.core.isr == (1, 2)
    led.produce()
    assert only(CompleteProduce, led.durable(120, 1, 2)) == []
    assert only(CompleteProduce, led.durable(120, 3)) == [CompleteProduce(2, 110, 3)]


@pytest.mark.parametrize(("end", "joins"), [(109, False), (110, True)])
def test_floor_is_everything_acked(end: int, joins: bool) -> None:
    """min_insync_replicas 1, acked on the leader alone: HW of a quorum would be too low a floor."""
    led = Led(settings=settings(min_insync_replicas=1), isr=(1,))
    led.produce(count=9)
    led.produce(count=1)
    led.do(Tick(), at=5_000.0)
    assert len(only(CompleteProduce, led.durable(110, 1))) == 2
    assert bool(only(ProposeIsr, led.attach(3, end))) == joins


def test_down_or_stranger_does_not_join() -> None:
    led = Led(isr=(1, 2))
    led.do(NodeChanged(node(3, NodeState.DOWN)))
    assert led.attach(3, 100) == []
    assert led.do(FollowerProgress(9, 1, 100, attach=True)) == []
    assert only(ProposeIsr, led.do(NodeChanged(node(3)))) == [
        ProposeIsr((1, 2, 3), 1, (11, 12, 13))
    ]


def steady_load_until(led: Led, rounds: int) -> tuple[int, list[ProposeIsr]]:
    """Node 3's report is always one batch behind, as under constant load."""
    proposals: list[ProposeIsr] = []
    end = led.core.log_end_offset
    for _ in range(rounds):
        led.produce(at=led.now_ms + 5)
        end += 10
        proposals += only(ProposeIsr, led.durable(end, 1, 2))
        proposals += only(ProposeIsr, led.durable(end - 10, 3))
    return end, proposals


def test_acks_wait_a_moment_for_a_follower_that_nearly_joins() -> None:
    led = Led(isr=(1, 2))
    led.attach(3, 100)
    led.do(IsrChangeFailed(1))
    _, proposals = steady_load_until(led, 200)
    assert proposals == [ProposeIsr((1, 2, 3), 1, (11, 12, 13))]


def test_a_follower_that_hangs_holds_acks_only_for_a_moment() -> None:
    led = Led(isr=(1, 2))
    led.produce()
    led.durable(110, 1, 2)
    led.do(Tick(), at=10.0)
    led.attach(3, 100)  # caught up a moment ago, below the floor: acks stand still
    led.produce(at=20.0)
    assert only(CompleteProduce, led.durable(120, 1, 2)) == []
    assert led.do(Tick(), at=209.0) == []
    effects = led.do(Tick(), at=211.0)
    assert [done.request_id for done in only(CompleteProduce, effects)] == [2]
    led.produce(at=212.0)
    led.attach(3, 101)
    assert only(CompleteProduce, led.durable(130, 1, 2)) != []  # not again so soon


# --- doubt (R18) ----------------------------------------------------------------------------------


def test_refused_proposal_is_tried_again_later() -> None:
    led = Led(isr=(1, 2))
    assert only(ProposeIsr, led.attach(3, 100)) != []
    led.do(IsrChangeFailed(1))
    assert led.core.isr_state == CommittedIsr((1, 2), 1)
    assert led.core.maximal_isr == (1, 2)
    assert led.do(Tick(), at=499.0) == []
    assert only(ProposeIsr, led.do(Tick(), at=501.0)) == [ProposeIsr((1, 2, 3), 1, (11, 12, 13))]


def test_unanswered_expansion_counts_until_a_higher_version() -> None:
    led = Led(isr=(1, 2))
    led.attach(3, 100)
    led.do(IsrChangeUnknown(1))
    assert led.core.maximal_isr == (1, 2, 3)
    again = ProposeIsr((1, 2, 3), 1, (11, 12, 13))
    assert led.do(Tick(), at=501.0) == [again]
    # The repetition was refused. The first sending may still arrive: so it still counts, and the
    # next proposal only raises the version.
    assert led.do(IsrChangeFailed(1)) == []
    assert led.core.maximal_isr == (1, 2, 3)
    assert led.do(Tick(), at=1002.0) == [ProposeIsr((1, 2), 1, (0, 0))]
    # The doubt is over; node 3 may be proposed afresh.
    effects = led.do(SegmentUpdated(led.segment.changed(version=2)))
    assert only(ProposeIsr, effects) == [ProposeIsr((1, 2, 3), 2, (11, 12, 13))]


def test_unanswered_shrink_counts_everybody() -> None:
    led = Led()
    led.produce()
    led.durable(110, 1, 2)
    led.do(NodeChanged(node(3, NodeState.DOWN)))
    led.do(IsrChangeUnknown(1))
    assert led.core.maximal_isr == (1, 2, 3)
    assert led.do(Tick(), at=501.0) == [ProposeIsr((1, 2), 1, (11, 12))]
    assert only(CompleteProduce, led.do(SegmentUpdated(led.segment.changed(isr=(1, 2), version=2))))


@pytest.mark.parametrize("version", [0, 2])
def test_answers_to_other_versions_change_nothing(version: int) -> None:
    led = Led(isr=(1, 2))
    led.attach(3, 100)
    before = led.core.isr_state
    assert led.do(IsrChangeFailed(version), IsrChangeUnknown(version)) == []
    assert led.core.isr_state == before


def test_old_records_change_nothing() -> None:
    led = Led(version=4)
    assert led.do(SegmentUpdated(segment(isr=(1,), version=4))) == []
    assert led.core.isr == (1, 2, 3)
