"""A leader that rests: no tick would have changed anything, and its members lose nothing by it."""

import copy
import random
from math import inf

import pytest

from icecore.model import NodeState
from icecore_replication.effects import CompleteProduce, PrepareSuccessor, ProposeIsr
from icecore_replication.inputs import (
    FollowerLeft,
    IsrChangeFailed,
    IsrChangeUnknown,
    NodeChanged,
    RollRequested,
    SegmentUpdated,
    SuccessorFailed,
    Tick,
)
from icecore_replication.isr import RETRY_MS
from icecore_replication.leader import LeaderLimits
from tests.support.replication_setup import BASE, Led, node, only, settings

AGE_MS = 50_000


def at_rest(**changes: object) -> Led:
    """All three have attached, and nothing was appended."""
    led = Led(settings=settings(segment_age_ms=AGE_MS), **changes)
    led.attach(2, BASE)
    led.attach(3, BASE)
    led.do(Tick(), at=100.0)
    return led


def test_an_empty_segment_rests_for_ever() -> None:
    led = at_rest()
    assert led.core.rests_until_ms == inf
    led.do(RollRequested("because"))
    led.do(Tick(), at=200.0)
    assert led.core.rests_until_ms == inf  # an empty one is not sealed


def test_a_segment_with_records_rests_until_it_is_old() -> None:
    led = at_rest()
    led.produce(at=1_000.0)
    assert led.core.rests_until_ms == -inf
    led.durable(BASE + 10, 1, 2, 3, at=1_010.0)
    led.do(Tick(), at=1_100.0)
    assert led.core.rests_until_ms == 1_000.0 + AGE_MS
    assert only(PrepareSuccessor, led.do(Tick(), at=1_000.0 + AGE_MS)) == [PrepareSuccessor("age")]
    assert led.core.rests_until_ms == -inf


def test_who_had_everything_before_the_rest_does_not_lag_after_it() -> None:
    led = at_rest()
    hour_ms = 3_600_000.0
    led.produce(at=hour_ms)
    assert only(ProposeIsr, led.do(Tick(), at=hour_ms + 100)) == []
    assert only(ProposeIsr, led.do(Tick(), at=hour_ms + 10_001)) != []  # but from then on


def test_who_lacked_something_before_a_pause_lags_after_it() -> None:
    led = at_rest()
    led.produce(at=1_000.0)
    led.durable(BASE + 10, 1, 2, at=1_010.0)
    assert led.core.rests_until_ms == -inf
    assert only(ProposeIsr, led.do(Tick(), at=12_000.0)) != []


@pytest.mark.parametrize("what", ["down", "left"])
def test_who_loses_a_member_rests_while_the_coordinator_is_asked(what: str) -> None:
    led = at_rest()
    news = NodeChanged(node(3, NodeState.DOWN)) if what == "down" else FollowerLeft(3)
    [proposal] = only(ProposeIsr, led.do(news))
    led.do(Tick(), at=200.0)
    assert led.core.rests_until_ms == inf
    led.do(IsrChangeUnknown(proposal.version), Tick(), at=210.0)
    assert led.core.rests_until_ms == 210.0 + RETRY_MS
    assert only(ProposeIsr, led.do(Tick(), at=210.0 + RETRY_MS)) == [proposal]
    led.do(SegmentUpdated(led.segment.changed(isr=proposal.isr, version=2)), Tick(), at=300.0)
    assert led.core.rests_until_ms == inf  # whoever is out has to come by itself
    effects = [*led.do(NodeChanged(node(3)), at=400.0), *led.attach(3, BASE)]
    assert [each.isr for each in only(ProposeIsr, effects)] == [(1, 2, 3)]


def test_who_waits_for_a_member_rests_until_it_lags() -> None:
    led = at_rest()
    led.produce(at=1_000.0)
    led.durable(BASE + 10, 1, 2, at=1_001.0)
    led.do(Tick(), at=1_100.0)
    lags_ms = 1_000.0 + LeaderLimits().replica_lag_ms_max
    assert led.core.rests_until_ms == lags_ms
    late = copy.deepcopy(led)
    assert only(CompleteProduce, led.durable(BASE + 10, 3, at=1_200.0))
    assert [each.isr for each in only(ProposeIsr, late.do(Tick(), at=lags_ms + 1))] == [(1, 2)]


def test_who_was_refused_a_change_rests_until_it_may_ask_again() -> None:
    led = at_rest()
    [proposal] = only(ProposeIsr, led.do(FollowerLeft(3)))
    led.do(IsrChangeFailed(proposal.version), Tick(), at=1_000.0)
    assert led.core.rests_until_ms == 1_000.0 + RETRY_MS
    assert only(ProposeIsr, led.do(Tick(), at=1_000.0 + RETRY_MS)) == [proposal]


def _something(led: Led, rng: random.Random) -> None:
    """One thing that may happen to a leader."""
    log_end, at = led.core.log_end_offset, led.core._now_ms + rng.choice([1, 20, 90, 700, 9_000])
    node_id = rng.choice([2, 3])
    match rng.randrange(9):
        case 0 | 1:
            led.produce(at=at)
        case 2 | 3:
            led.durable(log_end, *rng.choice([(1,), (1, 2), (1, 3), (1, 2, 3)]), at=at)
        case 4:
            led.do(NodeChanged(node(node_id, rng.choice([NodeState.UP, NodeState.DOWN]))), at=at)
        case 5:
            led.do(FollowerLeft(node_id), at=at)
        case 6:
            led.attach(node_id, rng.choice([log_end, led.core.durable_by_node[node_id]]))
        case 7:
            state = led.core.isr_state
            version = state.version
            proposal = getattr(state, "proposal", None)
            led.do(rng.choice([IsrChangeFailed(version), IsrChangeUnknown(version)]), at=at)
            if proposal is not None and rng.random() < 0.7:
                isr, segment = proposal.isr, led.core.segment
                led.do(SegmentUpdated(segment.changed(isr=isr, version=version + 1)), at=at)
        case _:
            led.do(rng.choice([RollRequested("so"), SuccessorFailed(ValueError())]), at=at)


def _seen(led: Led) -> object:
    core = led.core
    durable = dict(core.durable_by_node)
    return core.isr_state, core.roll, core.high_watermark, core.acked_end, durable, core.stopped


def _rests(seed: int) -> int:
    """Return how often a leader rested; ticks while it does are tried on a copy."""
    rng, led, rests = random.Random(seed), at_rest(), 0
    for _ in range(60):
        _something(led, rng)
        now = led.core._now_ms + 10
        led.do(Tick(), at=now)
        until = led.core.rests_until_ms
        if until <= now:
            continue
        rests += 1
        other = copy.deepcopy(led)
        before = _seen(other)
        for later in (100, 500, 1_000, 15_000, 15_100, AGE_MS - 1):
            if now + later < until:
                assert other.do(Tick(), at=now + later) == [], seed
        assert _seen(other) == before, seed
    return rests


def test_ticks_of_a_leader_that_rests_change_nothing() -> None:
    rests = [_rests(seed) for seed in range(60)]
    assert sum(rests) > 20
    assert sum(map(bool, rests)) > 10
