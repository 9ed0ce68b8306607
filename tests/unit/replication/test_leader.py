"""Rules R1-R9 and the end of leadership: produce, acknowledge, follow the followers."""

from typing import Any

import pytest

from icecore.errors import InternalError, InvalidRequestError, OutOfSpaceError
from icecore.model import Acks, SegmentState
from icecore_replication.effects import (
    AdvanceHighWatermark,
    Append,
    CompleteProduce,
    FailProduce,
    RequestRecovery,
    StepDown,
)
from icecore_replication.inputs import (
    Damaged,
    Fenced,
    FollowerProgress,
    LeaderInput,
    LeaseChanged,
    LocalDurable,
    LocalFailed,
    NodeChanged,
    ProduceAbandoned,
    ProduceReceived,
    SegmentUpdated,
    Stopped,
    Tick,
)
from icecore_replication.leader import LeaderCore, LeaderLimits
from icecore_replication.producers import ProducerTable
from tests.support.replication_setup import INCARNATION, Led, node, only, segment, settings, start

# --- birth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_id", "incarnation", "changes"),
    [
        (2, 12, {}),
        (1, INCARNATION + 1, {}),  # a restarted process never resumes
        (1, INCARNATION, {"state": SegmentState.RECOVERING}),
        (1, INCARNATION, {"base_offset": -1}),
    ],
)
def test_only_the_named_incarnation_leads(
    node_id: int, incarnation: int, changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError):
        LeaderCore(start(segment(**changes), node_id=node_id, incarnation=incarnation))


# --- acks (R2-R6) ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acks", "steps"),
    [
        (Acks.ALL, [((2,), False), ((1,), False), ((3,), True)]),
        (Acks.QUORUM, [((2, 3), False), ((1,), True)]),  # not before our own disk has it
        (Acks.QUORUM, [((1,), False), ((3,), True)]),
        (Acks.LEADER, [((2, 3), False), ((1,), True)]),
    ],
)
def test_completes_when_its_level_is_reached(
    acks: Acks, steps: list[tuple[tuple[int, ...], bool]]
) -> None:
    led = Led()
    assert led.produce(acks=acks) == [Append(1, 100, 110, 0)]
    for node_ids, completes in steps:
        done = only(CompleteProduce, led.durable(110, *node_ids))
        assert bool(done) == completes
    assert done[0].base_offset == 100
    assert led.core.pending_count == 0


def test_offsets_are_dense_and_acks_in_order() -> None:
    led = Led()
    for count in (3, 1, 5):
        led.produce(count=count)
    assert led.core.log_end_offset == 109
    led.durable(104, 1, 2)
    assert [done.request_id for done in only(CompleteProduce, led.durable(104, 3))] == [1, 2]
    led.durable(109, 3, 2)
    assert led.durable(109, 1) == [AdvanceHighWatermark(109), CompleteProduce(3, 104, 3)]


def test_high_watermark_comes_before_the_ack() -> None:
    led = Led()
    led.produce(acks=Acks.QUORUM)
    led.durable(110, 1)
    assert led.durable(110, 2) == [AdvanceHighWatermark(110), CompleteProduce(1, 100, 2)]


def test_acks_leader_is_invisible_until_replicated() -> None:
    led = Led()
    led.produce(acks=Acks.LEADER)
    assert led.durable(110, 1) == [CompleteProduce(1, 100, 1)]
    assert led.core.high_watermark == 100


def test_single_replica() -> None:
    led = Led(
        settings=settings(replication_factor=1, min_insync_replicas=1), replicas=(1,), isr=(1,)
    )
    for acks in Acks:
        led.produce(acks=acks)
    assert len(only(CompleteProduce, led.durable(130, 1))) == 3
    assert led.core.high_watermark == 130


@pytest.mark.parametrize(
    ("clock_ms", "expected"),
    [([50, 60, 60, 61], [70, 70, 70, 70]), ([80, 75, 90], [80, 80, 90])],
    ids=["behind the predecessors", "goes back"],
)
def test_append_time_never_goes_back(clock_ms: list[int], expected: list[int]) -> None:
    """R51: neither in the segment nor behind those before it, also within one step."""
    core = LeaderCore(start(segment(), max_append_timestamp_ms=70))
    produced = [
        ProduceReceived(number, Acks.ALL, 1, 100, clock_ms=each)
        for number, each in enumerate(clock_ms)
    ]
    appended = only(Append, core.step(produced, 0.0))
    assert [each.append_timestamp_ms for each in appended] == expected


# --- refusals (R1) --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "acks", "reason"),
    [
        ({"isr": (1,)}, Acks.ALL, "NOT_ENOUGH_REPLICAS"),
        ({"isr": (1,)}, Acks.QUORUM, "NOT_ENOUGH_REPLICAS"),
        ({"isr": (1,)}, Acks.LEADER, None),
        ({"settings": settings(replication_factor=5)}, Acks.ALL, None),
        ({"settings": settings(replication_factor=5)}, Acks.QUORUM, None),
        ({"settings": settings(replication_factor=7)}, Acks.QUORUM, "NOT_ENOUGH_REPLICAS"),
    ],
)
def test_refused_before_append(changes: dict[str, Any], acks: Acks, reason: str | None) -> None:
    led = Led(**changes)
    failed = only(FailProduce, led.produce(acks=acks))
    assert [fail.error.reason for fail in failed] == ([reason] if reason else [])
    assert all(not fail.error.indeterminate for fail in failed)
    assert led.core.log_end_offset == (100 if reason else 110)


def test_lease_gates_acks_leader_only() -> None:
    led = Led()
    led.produce(acks=Acks.LEADER)
    led.do(LeaseChanged(valid=False))
    (refused,) = only(FailProduce, led.produce(acks=Acks.LEADER))
    assert refused.error.reason == "NOT_LEADER"
    led.produce(acks=Acks.ALL)
    done = only(CompleteProduce, led.durable(120, 1, 2, 3))
    assert [each.request_id for each in done] == [3]  # 1 waits: the lease may be over for good
    assert [
        each.request_id for each in only(CompleteProduce, led.do(LeaseChanged(valid=True)))
    ] == [1]


@pytest.mark.parametrize(
    "limits", [LeaderLimits(pending_requests_max=2), LeaderLimits(pending_bytes_max=2500)]
)
def test_throttled_when_too_much_is_pending(limits: LeaderLimits) -> None:
    led = Led(limits=limits)
    led.produce()
    led.produce()
    (refused,) = only(FailProduce, led.produce())
    assert (refused.error.reason, refused.error.indeterminate) == ("THROTTLED", False)
    assert int(refused.error.metadata["retry_after_ms"]) > 0
    led.durable(120, 1, 2, 3)
    assert only(Append, led.produce()) != []


def test_one_big_batch_always_fits() -> None:
    led = Led(limits=LeaderLimits(pending_bytes_max=10))
    assert only(Append, led.produce(length_bytes=1000)) != []


def test_abandoned_request_keeps_its_append() -> None:
    led = Led()
    led.produce()
    led.produce()
    assert led.do(ProduceAbandoned(1)) == []
    assert led.core.pending_count == 1
    assert [done.request_id for done in only(CompleteProduce, led.durable(120, 1, 2, 3))] == [2]


# --- idempotent producers (R21, R22) --------------------------------------------------------------


def test_duplicate_of_a_pending_batch_waits_by_its_own_acks() -> None:
    led = Led()
    led.produce(producer_id=9, acks=Acks.ALL)
    for acks in (Acks.LEADER, Acks.QUORUM, Acks.ALL):
        assert led.produce(producer_id=9, acks=acks) == []
    assert led.core.log_end_offset == 110
    assert led.durable(110, 1) == [CompleteProduce(2, 100, 1, duplicate=True)]
    done = only(CompleteProduce, led.durable(110, 2))
    assert done == [CompleteProduce(3, 100, 2, duplicate=True)]
    done = only(CompleteProduce, led.durable(110, 3))
    assert done == [CompleteProduce(1, 100, 3), CompleteProduce(4, 100, 3, duplicate=True)]


def test_duplicate_of_a_completed_batch_is_answered_at_once() -> None:
    led = Led()
    led.produce(producer_id=9)
    led.produce(producer_id=9, base_sequence=10)
    led.durable(110, 1, 2, 3)
    assert led.produce(producer_id=9) == [CompleteProduce(3, 100, 3, duplicate=True)]
    assert led.produce(producer_id=9, base_sequence=10) == []


def test_duplicate_from_the_sealed_predecessor() -> None:
    table = ProducerTable()
    table.apply(9, 0, 0, 10, 90, 0)
    core = LeaderCore(start(segment(isr=(1,)), producers=table))
    effects = core.step([ProduceReceived(1, Acks.ALL, 10, 100, 9, 0, 0)], 0.0)
    assert effects == [CompleteProduce(1, 90, 3, duplicate=True)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"producer_id": 9, "base_sequence": 11}, "OUT_OF_ORDER_SEQUENCE"),
        ({"producer_id": 8, "base_sequence": 1}, "OUT_OF_ORDER_SEQUENCE"),
        ({"producer_id": 9, "producer_epoch": 0, "base_sequence": 10}, "PRODUCER_FENCED"),
    ],
)
def test_sequence_errors(fields: dict[str, Any], reason: str) -> None:
    led = Led()
    led.produce(producer_id=9, producer_epoch=1)
    (failed,) = only(FailProduce, led.produce(**{"producer_epoch": 1, **fields}))
    assert failed.error.reason == reason
    assert led.core.log_end_offset == 110


def test_append_applies_to_the_producer_state() -> None:
    led = Led()
    led.produce(producer_id=9, producer_epoch=2, base_sequence=0, clock_ms=77)
    expected = ProducerTable()
    expected.apply(9, 2, 0, 10, 100, 77)
    assert led.core.producers.digest() == expected.digest()


# --- followers (R7-R9) ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_id", "incarnation"), [(3, 12), (9, 13), (1, INCARNATION)], ids=["old", "stranger", "us"]
)
def test_reports_that_do_not_count(node_id: int, incarnation: int) -> None:
    led = Led()
    led.produce()
    led.durable(110, 1, 2)
    before = dict(led.core.durable_by_node)
    assert led.do(FollowerProgress(node_id, incarnation, 110, attach=True)) == []
    assert led.do(FollowerProgress(node_id, incarnation, 999)) == []
    assert dict(led.core.durable_by_node) == before


def test_new_incarnation_starts_from_nothing() -> None:
    led = Led()
    led.produce()
    led.durable(110, 3)
    led.do(NodeChanged(node(3, incarnation=23)))
    assert only(CompleteProduce, led.durable(110, 1, 2)) == []
    led.do(FollowerProgress(3, 13, 110))  # late, from the old process
    assert led.core.pending_count == 1
    assert only(CompleteProduce, led.attach(3, 110, incarnation=23)) != []


def test_report_that_overtakes_the_news_of_its_incarnation() -> None:
    led = Led()
    led.produce()
    led.durable(110, 1, 2)
    assert led.attach(3, 105, incarnation=23) == []
    assert led.do(FollowerProgress(3, 23, 110)) == []
    assert only(CompleteProduce, led.do(NodeChanged(node(3, incarnation=23)))) != []


def test_attach_replaces_later_reports_only_raise() -> None:
    led = Led()
    led.produce()
    led.durable(110, 2)
    led.durable(105, 2)
    assert led.core.durable_by_node[2] == 110
    led.attach(2, 105)
    assert led.core.durable_by_node[2] == 105


@pytest.mark.parametrize("attach", [True, False])
def test_follower_ahead_of_us_ends_our_leadership(attach: bool) -> None:
    led = Led()
    led.produce()
    effects = led.do(FollowerProgress(2, 12, 111, attach))
    assert [type(effect) for effect in effects] == [FailProduce, RequestRecovery, StepDown]
    assert only(FailProduce, effects)[0].error.reason == "LEADER_LOST"


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "recover", "why"),
    [
        (LocalFailed(OutOfSpaceError("full")), True, "local append failed: full"),
        (Damaged("a CRC is wrong"), True, "the log here is damaged: a CRC is wrong"),
        (Stopped("the segment is deleted"), False, "the segment is deleted"),
        (Fenced(6), False, "fenced by epoch 6"),
        (
            SegmentUpdated(segment(state=SegmentState.RECOVERING, version=2)),
            False,
            "the segment is RECOVERING in epoch 5",
        ),
        (
            SegmentUpdated(segment(leader=2, leader_incarnation=12, version=2)),
            False,
            "the segment is ACTIVE in epoch 5",
        ),
        (
            SegmentUpdated(segment(epoch=6, version=2)),
            False,
            "the segment is ACTIVE in epoch 6",
        ),
        (
            NodeChanged(node(1, incarnation=INCARNATION + 1)),
            False,
            "a newer incarnation of this node is registered",
        ),
    ],
)
def test_waiters_are_failed_before_the_end(item: LeaderInput, recover: bool, why: str) -> None:
    led = Led()
    led.produce(acks=Acks.QUORUM)
    led.produce(producer_id=9)
    led.produce(producer_id=9)
    effects = led.do(item)
    failed = only(FailProduce, effects)
    assert [fail.request_id for fail in failed] == [1, 2, 3]
    assert {fail.error.reason for fail in failed} == {"LEADER_LOST"}
    assert all(fail.error.indeterminate for fail in failed)
    assert effects[:3] == failed
    assert only(RequestRecovery, effects) == ([RequestRecovery(why)] if recover else [])
    assert effects[-1] == StepDown(why)
    assert led.do(LocalDurable(130), Tick()) == []
    (refused,) = only(FailProduce, led.produce())
    assert refused.error.reason == "NOT_LEADER"


def test_own_epoch_fences_nothing() -> None:
    assert Led().do(Fenced(5), NodeChanged(node(1, incarnation=INCARNATION))) == []


def test_shell_must_not_report_more_than_was_appended() -> None:
    led = Led()
    led.produce()
    with pytest.raises(InternalError, match="ProduceReceived"):
        led.do(LocalDurable(111))
