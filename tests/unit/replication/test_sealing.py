"""Rules R25-R29: rolling and the seal by a live leader."""

from typing import Any

import pytest

from icecore.errors import ConflictError, UnavailableError
from icecore.model import Acks, NodeState, SegmentState
from icecore_replication.effects import (
    AdvanceHighWatermark,
    CollectSealDigests,
    CompleteProduce,
    FailProduce,
    PrepareSuccessor,
    ProposeIsr,
    ReportDivergence,
    RequestRecovery,
    SendSeal,
    StepDown,
)
from icecore_replication.inputs import (
    Fenced,
    LeaderInput,
    NodeChanged,
    RollRequested,
    SealCommitted,
    SealDigests,
    SealRejected,
    SealUnknown,
    SegmentUpdated,
    SuccessorFailed,
    SuccessorPrepared,
    Tick,
)
from icecore_replication.sealing import agreeing_nodes, diverging_nodes
from tests.support.replication_setup import Led, node, only, settings

SAME = (b"s" * 32, b"p" * 32)
ODD = (b"x" * 32, b"p" * 32)
SUCCESSOR = 8


def full(**changes: Any) -> Led:
    """A leader with one replicated batch, 100..110, and a wish to roll."""
    led = Led(**changes)
    led.produce()
    led.durable(110, *led.segment.replicas)
    assert only(PrepareSuccessor, led.do(RollRequested("asked"))) == [PrepareSuccessor("asked")]
    return led


def collecting() -> Led:
    led = full()
    assert led.do(SuccessorPrepared(SUCCESSOR)) == [CollectSealDigests(110, (1, 2, 3))]
    return led


def sealing() -> Led:
    led = collecting()
    assert led.do(SealDigests(110, {1: SAME, 2: SAME, 3: SAME})) == [
        SendSeal(110, 1, *SAME, (1, 2, 3), SUCCESSOR)
    ]
    return led


# --- when (R25) -----------------------------------------------------------------------------------


def test_rolls_by_size() -> None:
    led = Led(settings=settings(segment_bytes=3000))
    led.produce()
    assert only(PrepareSuccessor, led.produce()) == []
    assert only(PrepareSuccessor, led.produce()) == [PrepareSuccessor("size")]
    assert only(PrepareSuccessor, led.produce()) == []  # asked once
    assert not led.rolling


def test_rolls_by_age_of_the_first_batch() -> None:
    led = Led(settings=settings(segment_age_ms=1000))
    assert led.do(Tick(), at=5000.0) == []  # empty for ever: never rolled
    assert only(PrepareSuccessor, led.produce(at=6000.0)) == []
    assert led.do(Tick(), at=6999.0) == []
    assert led.do(Tick(), at=7000.0) == [PrepareSuccessor("age")]


def test_empty_segment_rolls_once_there_is_something() -> None:
    led = Led()
    assert led.do(RollRequested("topic altered")) == []
    assert only(PrepareSuccessor, led.produce()) == [PrepareSuccessor("topic altered")]


def test_too_few_in_sync_waits() -> None:
    led = Led(isr=(1,))
    led.produce(acks=Acks.LEADER)
    assert led.do(RollRequested("asked")) == []
    effects = led.do(SegmentUpdated(led.segment.changed(isr=(1, 2), version=2)))
    assert only(PrepareSuccessor, effects) == [PrepareSuccessor("asked")]


# --- successor first (R26) ------------------------------------------------------------------------


def test_appends_go_on_until_the_successor_stands() -> None:
    led = full()
    led.produce()
    led.durable(120, 1, 2, 3)
    assert led.do(SuccessorPrepared(SUCCESSOR)) == [CollectSealDigests(120, (1, 2, 3))]


def test_no_successor_backs_off_and_doubles() -> None:
    led = full()
    now, pauses = 0.0, []
    for _ in range(7):
        assert led.do(SuccessorFailed(UnavailableError()), at=now) == []
        start = now
        while not only(PrepareSuccessor, led.do(Tick(), at=now)):
            now += 500.0
        pauses.append(now - start)
    assert pauses == [1e3, 2e3, 4e3, 8e3, 16e3, 30e3, 30e3]


# --- drain (R27) ----------------------------------------------------------------------------------


def draining() -> Led:
    """End 120; node 3 still misses the last batch."""
    led = full()
    led.produce()
    led.durable(120, 1, 2)
    assert led.do(SuccessorPrepared(SUCCESSOR)) == []
    assert led.rolling
    return led


def test_produce_is_refused_and_duplicates_are_answered() -> None:
    led = Led()
    led.produce(producer_id=9, base_sequence=0)
    led.do(RollRequested("asked"), SuccessorPrepared(SUCCESSOR))
    led.do(SuccessorPrepared(SUCCESSOR))
    assert led.rolling
    (refused,) = only(FailProduce, led.produce(producer_id=9, base_sequence=10))
    assert (refused.error.reason, refused.error.indeterminate) == ("ROLLING", False)
    (refused,) = only(FailProduce, led.produce(producer_id=9, base_sequence=20))
    assert refused.error.reason == "ROLLING"  # not OUT_OF_ORDER: 10 was refused by us
    assert led.produce(producer_id=9, base_sequence=0) == []
    done = only(CompleteProduce, led.durable(110, 1, 2, 3))
    assert [(each.base_offset, each.duplicate) for each in done] == [(100, False), (100, True)]


def test_waits_for_every_member() -> None:
    led = draining()
    assert only(CollectSealDigests, led.durable(120, 3)) == [CollectSealDigests(120, (1, 2, 3))]


def test_waits_for_a_change_in_flight() -> None:
    led = draining()
    assert only(ProposeIsr, led.do(NodeChanged(node(3, NodeState.DOWN)))) != []
    assert led.do(Tick()) == []
    effects = led.do(SegmentUpdated(led.segment.changed(isr=(1, 2), version=2)))
    assert only(CollectSealDigests, effects) == [CollectSealDigests(120, (1, 2))]


def test_drops_laggards_once_then_collects() -> None:
    led = draining()
    assert led.do(Tick(), at=999.0) == []
    assert led.do(Tick(), at=1000.0) == [ProposeIsr((1, 2), 1, (11, 12))]
    effects = led.do(SegmentUpdated(led.segment.changed(isr=(1, 2), version=2)))
    assert only(CollectSealDigests, effects) == [CollectSealDigests(120, (1, 2))]


def test_never_drops_below_min_insync_replicas() -> None:
    led = full(settings=settings(min_insync_replicas=3))
    led.produce()
    led.durable(120, 1, 2)
    led.do(SuccessorPrepared(SUCCESSOR))
    assert led.do(Tick(), at=1000.0) == []
    assert not led.rolling
    assert only(FailProduce, led.produce()) == []
    assert led.core.log_end_offset == 130  # goes on at the same end


def test_unanswered_change_ends_the_wait_too() -> None:
    led = draining()
    led.do(NodeChanged(node(3, NodeState.DOWN)))
    led.do(Tick(), at=1001.0)
    assert not led.rolling


def test_death_below_min_insync_replicas_aborts() -> None:
    led = draining()
    effects = led.do(NodeChanged(node(2, NodeState.DOWN)), NodeChanged(node(3, NodeState.DOWN)))
    assert only(ProposeIsr, effects) == [ProposeIsr((1,), 1, (11,))]
    assert not led.rolling


# --- agree (R28) ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ({1: SAME, 2: SAME, 3: SAME}, (1, 2, 3)),
        ({1: SAME, 2: SAME, 3: ODD}, (1, 2)),
        ({1: SAME, 3: SAME}, (1, 3)),
        ({1: ODD, 2: SAME, 3: SAME}, (1,)),
        ({2: SAME, 3: SAME}, ()),
        ({1: SAME, 2: (SAME[0], b"other producers"), 9: SAME}, (1,)),
    ],
)
def test_agreeing_nodes(digests: dict[int, tuple[bytes, bytes]], expected: tuple[int, ...]) -> None:
    assert agreeing_nodes(1, (1, 2, 3), digests) == expected
    led = collecting()
    effects = led.do(SealDigests(110, digests))
    diverging = diverging_nodes(1, (1, 2, 3), digests)
    if diverging:
        assert effects == [ReportDivergence(110, diverging)]
        assert not led.rolling
    elif len(expected) >= 2:
        assert effects == [SendSeal(110, 1, *SAME, expected, SUCCESSOR)]
    else:
        assert effects == []
        assert not led.rolling


def test_digests_of_another_end_are_ignored() -> None:
    led = collecting()
    assert led.do(SealDigests(100, {1: SAME, 2: SAME, 3: SAME})) == []
    assert led.rolling


def test_no_proposal_while_collecting_and_a_bounded_wait() -> None:
    led = collecting()
    assert led.do(NodeChanged(node(3, NodeState.DOWN))) == []
    assert led.do(Tick(), at=999.0) == []
    led.do(Tick(), at=1000.0)
    assert not led.rolling
    late = led.do(SealDigests(110, {1: SAME, 2: SAME, 3: SAME}))
    assert late == [ProposeIsr((1, 2), 1, (11, 12))]  # no seal; the change that had to wait
    assert only(FailProduce, led.produce()) == []


# --- the point of no return (R29) -----------------------------------------------------------------


def pending_at_seal() -> Led:
    """RF 5, three in sync: a quorum ack waits for its third copy while the seal is on its way."""
    led = Led(settings=settings(replication_factor=5), replicas=(1, 2, 3, 4, 5), isr=(1, 2))
    led.produce(acks=Acks.QUORUM)
    led.durable(110, 1, 2)
    led.do(RollRequested("asked"))
    led.do(SuccessorPrepared(SUCCESSOR))
    assert only(SendSeal, led.do(SealDigests(110, {1: SAME, 2: SAME}))) != []
    assert led.core.pending_count == 1
    return led


def test_stored_seal_answers_everybody_first() -> None:
    led = pending_at_seal()
    assert led.do(SealCommitted()) == [CompleteProduce(1, 100, 2), StepDown("sealed")]
    assert led.core.high_watermark == 110


def test_everything_is_visible_after_the_seal() -> None:
    led = Led(isr=(1, 2), settings=settings(replication_factor=5), replicas=(1, 2, 3, 4, 5))
    led.produce(acks=Acks.QUORUM)
    led.durable(110, 1, 2)
    assert led.core.high_watermark == 110


def test_own_seal_seen_in_the_record() -> None:
    led = pending_at_seal()
    record = led.segment.changed(
        state=SegmentState.SEALED, end_offset=110, seal_digest=SAME[0], version=2
    )
    assert led.do(SegmentUpdated(record)) == [CompleteProduce(1, 100, 2), StepDown("sealed")]


@pytest.mark.parametrize("change", [{"end_offset": 100}, {"seal_digest": b"other"}])
def test_somebody_elses_seal(change: dict[str, object]) -> None:
    led = pending_at_seal()
    fields = {"state": SegmentState.SEALED, "end_offset": 110, "seal_digest": SAME[0], **change}
    effects = led.do(SegmentUpdated(led.segment.changed(version=2, **fields)))
    assert [fail.error.reason for fail in only(FailProduce, effects)] == ["LEADER_LOST"]
    assert only(StepDown, effects) != []


@pytest.mark.parametrize(
    ("answer", "recover"),
    [(SealUnknown(), True), (SealRejected(ConflictError()), True), (Fenced(6), False)],
)
def test_any_other_answer_ends_leadership(answer: LeaderInput, recover: bool) -> None:
    led = pending_at_seal()
    effects = led.do(answer)
    assert [fail.error.reason for fail in only(FailProduce, effects)] == ["LEADER_LOST"]
    assert bool(only(RequestRecovery, effects)) == recover
    assert isinstance(effects[-1], StepDown)


def test_never_appends_after_the_seal_was_sent() -> None:
    led = sealing()
    for now in (10.0, 10_000.0, 1e6):
        (refused,) = only(FailProduce, led.produce(at=now))
        assert refused.error.reason == "ROLLING"
        assert led.do(Tick(), SuccessorFailed(UnavailableError()), SuccessorPrepared(9)) == []
    assert led.do(SealCommitted()) == [StepDown("sealed")]
    (refused,) = only(FailProduce, led.produce())
    assert refused.error.reason == "NOT_LEADER"
    assert only(AdvanceHighWatermark, led.do(SealCommitted())) == []
