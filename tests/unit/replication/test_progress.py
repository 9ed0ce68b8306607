"""Rules R7 and R8: which reports of followers count, and what they replace."""

import random

import pytest

from icecore.model import NodeState
from icecore_replication.inputs import FollowerProgress
from icecore_replication.progress import Followers
from tests.support.replication_setup import BASE, node, nodes

LAG_MS = 1_000.0


def followers() -> Followers:
    return Followers((1, 2, 3), 1, nodes(), BASE, 0.0)


def report(
    known: Followers, end: int, *, incarnation: int = 12, attach: bool = False, log_end: int = 200
) -> bool:
    """From node 2; whether it counted."""
    item = FollowerProgress(2, incarnation, end, attach)
    follower = known.accept(item)
    if follower is not None:
        known.record(follower, item, log_end, 0.0)
    return follower is not None


def test_only_the_registered_incarnation_counts() -> None:
    known = followers()
    assert not report(known, 150, incarnation=11)
    assert not report(known, 150, incarnation=22)
    assert report(known, 150)
    assert known.durable == {1: BASE, 2: 150, 3: BASE}


def test_a_report_that_came_too_early_comes_back_with_its_registration() -> None:
    known = followers()
    report(known, 150, incarnation=22)
    report(known, 160, incarnation=32)
    assert known.change_node(node(2, incarnation=22)) is None  # a newer one has reported since
    report(known, 170, incarnation=32)
    early = known.change_node(node(2, incarnation=32))
    assert early is not None and early.durable_end_offset == 170
    assert known.durable[2] == BASE


def test_an_attach_below_an_earlier_report_is_never_forgotten() -> None:
    known = followers()
    report(known, 150)
    report(known, 140)
    assert known.durable[2] == 150
    assert not known.must_leave(2, 150, 0.0, LAG_MS)
    report(known, 140, attach=True)
    known.change_node(node(2, incarnation=22))
    report(known, 200, incarnation=22)
    assert known.durable[2] == 200
    assert known.must_leave(2, 200, 0.0, LAG_MS) == "lost bytes"


@pytest.mark.parametrize(
    ("state", "now_ms", "why"),
    [
        (NodeState.UP, LAG_MS, ""),
        (NodeState.UP, LAG_MS + 1, "lags"),
        (NodeState.DOWN, 0.0, "node is down"),
    ],
)
def test_why_a_member_must_leave(state: NodeState, now_ms: float, why: str) -> None:
    known = followers()
    known.change_node(node(2, state))
    assert known.must_leave(2, BASE + 1, now_ms, LAG_MS) == why


def test_who_is_disqualified_counts_for_nothing() -> None:
    known = followers()
    report(known, 150)
    assert known.disqualify(2, "left")
    assert known.durable[2] == BASE
    assert known.must_leave(2, 150, 0.0, LAG_MS) == "left"
    assert not known.disqualify(9, "left")


@pytest.mark.parametrize("seed", range(20))
def test_invariants_of_progress(seed: int) -> None:
    rng, known, log_end = random.Random(seed), followers(), BASE
    incarnation, before = 12, (12, 0.0)
    for now in range(200):
        log_end += rng.choice((0, 0, 5))
        choice = rng.randrange(10)
        if choice == 0:
            incarnation += 10
            known.change_node(node(2, incarnation=incarnation))
        elif choice == 1:
            known.disqualify(2, "left")
        else:
            item = FollowerProgress(2, incarnation, rng.randint(BASE, log_end), attach=choice < 4)
            follower = known.accept(item)
            assert follower is not None
            known.record(follower, item, log_end, float(now))
        one = known.by_node[2]
        assert BASE <= known.durable[2] <= one.reported_end <= log_end
        assert BASE <= one.seen_log_end <= log_end
        assert one.attached or known.durable[2] == BASE
        assert one.caught_up_ms <= now and one.seen_ms <= now
        assert before <= (one.incarnation, one.caught_up_ms) or one.incarnation > before[0]
        before = (one.incarnation, one.caught_up_ms)
