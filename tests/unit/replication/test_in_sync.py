"""Rules R14-R18 for the in-sync set alone: what is proposed when, and what counts meanwhile."""

from icecore.model import NodeState
from icecore_replication.effects import ProposeIsr
from icecore_replication.in_sync import InSync
from icecore_replication.inputs import FollowerProgress
from icecore_replication.isr import CommittedIsr
from icecore_replication.leading import LeaderLimits
from tests.support.replication_setup import BASE, OTHERS, node, segment, start

LIMITS = LeaderLimits(replica_lag_ms_max=1_000.0, rejoin_wait_ms=200.0)


def in_sync(*members: int) -> InSync:
    ours = InSync(start(segment(isr=members)), LIMITS)
    ours.take_news()
    return ours


def attach(ours: InSync, node_id: int, end: int, log_end: int = 110) -> None:
    item = FollowerProgress(node_id, OTHERS[node_id], end, attach=True)
    follower = ours.followers.accept(item)
    assert follower is not None
    ours.record(follower, item, log_end, 0.0)


def change(
    ours: InSync, floor: int, *, log_end: int = 110, now_ms: float = 0.0, may_join: bool = True
) -> ProposeIsr | None:
    return ours.next_change(segment(), log_end, floor, now_ms, may_join=may_join)


def test_a_member_joins_at_the_floor_and_counts_at_once() -> None:
    ours = in_sync(1, 2)
    attach(ours, 3, 105)
    assert change(ours, 106) is None
    assert change(ours, 105, may_join=False) is None
    assert change(ours, 105) == ProposeIsr((1, 2, 3), 1, (11, 12, 13))
    assert (ours.state.isr, ours.maximal) == ((1, 2), (1, 2, 3))
    assert change(ours, 105) is None  # one in flight


def test_a_member_that_is_down_leaves_and_counts_until_the_answer() -> None:
    ours = in_sync(1, 2, 3)
    ours.change_node(node(3, NodeState.DOWN))
    assert change(ours, BASE, may_join=False) == ProposeIsr((1, 2), 1, (11, 12))
    assert ours.maximal == (1, 2, 3)
    ours.commit(segment(isr=(1, 2), version=2))
    assert (ours.state, ours.maximal) == (CommittedIsr((1, 2), 2), (1, 2))


def test_doubt_is_repeated_and_refusal_waits() -> None:
    ours = in_sync(1, 2, 3)
    ours.change_node(node(3, NodeState.DOWN))
    first = change(ours, BASE)
    assert ours.repeat(0.0) is None  # no answer yet is no doubt
    ours.answered(1, 0.0, is_refused=False)
    assert ours.repeat(499.0) is None
    assert ours.repeat(500.0) == first
    assert ours.repeat(501.0) is None
    ours.answered(1, 600.0, is_refused=True)  # an earlier sending may yet be applied
    assert ours.repeat(1100.0) == ProposeIsr((1, 2, 3), 1, (0, 0, 0))
    ours.answered(0, 1100.0, is_refused=True)
    assert ours.maximal == (1, 2, 3)


def test_ends_stand_still_for_who_nearly_joins_but_not_for_long() -> None:
    ours = in_sync(1, 2)
    for node_id in (2, 3):
        attach(ours, node_id, 110)
    ours.raise_own_end(120)
    attach(ours, 2, 120, log_end=120)
    assert ours.ends(segment(), 120, 0.0) == (120, 120)
    assert change(ours, 120, log_end=120) is None  # 3 had everything a moment ago
    ours.take_news()
    assert ours.ends(segment(), 120, 199.0) == (110, 110)
    ours.tick()
    assert ours.take_news() == (True, True)  # the wait may be over
    assert ours.ends(segment(), 120, 200.0) == (120, 120)
    assert change(ours, 120, log_end=120, now_ms=201.0) is None
    assert ours.ends(segment(), 120, 202.0) == (120, 120)  # not again so soon


def test_news() -> None:
    ours = in_sync(1, 2)
    ours.tick()
    assert ours.take_news() == (False, True)
    assert ours.take_news() == (False, False)
    ours.raise_own_end(BASE)
    assert ours.take_news() == (False, False)
    ours.raise_own_end(BASE + 1)
    assert ours.take_news() == (True, False)
    attach(ours, 2, BASE)
    assert ours.take_news() == (True, False)
    attach(ours, 3, BASE)  # no member: it may join
    assert ours.take_news() == (True, True)
    ours.disqualify(2, "left")
    assert ours.take_news() == (True, True)
    ours.disqualify(9, "left")
    assert ours.take_news() == (False, False)
