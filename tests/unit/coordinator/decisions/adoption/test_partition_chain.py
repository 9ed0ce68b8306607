"""One log of what old metadata know and of what nodes tell (R109)."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import ConflictError
from icecore.model import OFFSETS_LEFT_OUT, Segment, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.decisions.adoption.chain_records import VERSION_LEAP
from icecore_coordinator.decisions.adoption.partition_chain import (
    EPOCH_LEAP,
    Adopted,
    PartitionChain,
    partition_chain,
)
from icecore_coordinator.decisions.adoption.told import Evidence, ToldReplica
from icecore_coordinator.state.records import PartitionRecord, SegmentRecord

TOPIC = b"t" * 16
SETTINGS = SegmentSettings(replication_factor=3, min_insync_replicas=2)
NEXT_ID = 1_000


def segment(segment_id: int, **fields: Any) -> Segment:
    """A segment of the one partition: ACTIVE from offset 0, under node 1, unless fields differ."""
    values: dict[str, Any] = {
        "state": SegmentState.ACTIVE,
        "base_offset": 0,
        "leader": 1,
        "leader_incarnation": 7,
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "version": 5,
        **fields,
    }
    return Segment(
        segment_id=segment_id,
        topic_id=TOPIC,
        topic="events",
        partition=0,
        epoch=2 * segment_id,
        settings=SETTINGS,
        **values,
    )


def sealed(segment_id: int, base: int, end: int, **fields: Any) -> Segment:
    values: dict[str, Any] = {"state": SegmentState.SEALED, "isr": (), "leader": 0, **fields}
    digest = values.pop("seal_digest", digest_of(segment_id, end))
    return segment(segment_id, base_offset=base, end_offset=end, seal_digest=digest, **values)


def digest_of(segment_id: int, end: int) -> bytes:
    return f"{segment_id} to {end}".encode()


def copy(node_id: int, segment_id: int, base: int, end: int, **fields: Any) -> ToldReplica:
    """A copy that is whole, not sealed, and of whose segment the node heard nothing."""
    values: dict[str, Any] = {
        "is_sealed": False,
        "is_intact": True,
        "digest": digest_of(segment_id, end),
        "length_bytes": 10 * (end - base),
        "promised_epoch": 2 * segment_id,
        **fields,
    }
    return ToldReplica(
        node_id=node_id,
        segment_id=segment_id,
        topic_id=TOPIC,
        partition=0,
        generation=0,
        base_offset=base,
        epoch=2 * segment_id,
        durable_end_offset=end,
        **values,
    )


def adopted(**fields: Any) -> Adopted:
    values: dict[str, Any] = {
        "topic": "events",
        "settings": SETTINGS,
        "is_known": True,
        "nodes": frozenset({1, 2, 3, 4}),
        "is_complete": True,
        "next_id": NEXT_ID,
        "counted_ms": 9,
        **fields,
    }
    return Adopted(**values)


def chain(
    known: list[Segment],
    told: list[ToldReplica],
    shared: Adopted | None = None,
    **fields: Any,
) -> PartitionChain:
    found: dict[int, Evidence] = {}
    for each in told:
        found.setdefault(each.segment_id, Evidence(each.segment_id)).copies.append(each)
    records = [SegmentRecord(each, holders=each.replicas, since_ms=3) for each in known]
    partition = PartitionRecord(TOPIC, 0, version=4, **fields)
    return partition_chain(shared or adopted(), partition, records, found.values())


def ends(made: PartitionChain) -> list[tuple[int, int, int]]:
    return [
        (each.segment.segment_id, each.segment.base_offset, each.segment.end_offset)
        for each in made.segments
    ]


def test_a_tail_is_recovered_by_its_leader_and_replicas() -> None:
    told = [copy(node, 1, 0, 40, record=segment(1, version=9)) for node in (1, 2, 3)]
    made = chain([segment(1)], told, tail_segment_id=1, last_epoch=2)
    [tail] = made.segments
    found = tail.segment
    assert (found.state, found.leader, found.leader_incarnation) == (SegmentState.RECOVERING, 1, 7)
    assert (found.replicas, found.isr) == ((1, 2, 3), (1,))
    assert found.version == 9 + VERSION_LEAP
    assert not tail.is_unclean_begun
    assert (made.partition.tail_segment_id, made.partition.next_base_offset) == (1, 0)
    assert made.partition.last_epoch == 2 + EPOCH_LEAP


def test_segments_that_metadata_do_not_know_follow_the_ones_they_know() -> None:
    told = [
        *(copy(node, 1, 0, 40, is_sealed=True) for node in (1, 2)),
        copy(3, 1, 0, 40),  # it has not heard of the seal, and has the same
        *(copy(node, 2, 40, 60, is_sealed=True) for node in (1, 3)),
        *(copy(node, 5, 60, 61, record=segment(5, base_offset=60)) for node in (1, 2)),
    ]
    shared = adopted()
    made = chain([segment(1)], told, shared, tail_segment_id=1)
    assert ends(made) == [(1, 0, 40), (2, 40, 60), (5, 60, -1)]
    assert [each.segment.replicas for each in made.segments] == [(1, 2, 3), (1, 3), (1, 2, 3)]
    assert [each.segment.state for each in made.segments][:2] == [SegmentState.SEALED] * 2
    assert made.segments[0].segment.seal_digest == digest_of(1, 40)
    assert made.segments[0].segment.length_bytes == 400
    assert shared.found == 3
    assert not shared.findings


def test_a_record_that_one_node_heard_is_a_seal_as_well() -> None:
    heard = sealed(1, 0, 40, replicas=(1, 2))
    told = [copy(1, 1, 0, 40, record=heard), copy(2, 1, 0, 44)]
    made = chain([segment(1)], told)
    assert ends(made) == [(1, 0, 40)]
    assert made.segments[0].segment.replicas == (1,)
    assert made.partition.next_base_offset == 40
    assert made.segments[0].holders == (1, 2, 3)


def test_an_unsealed_segment_ended_where_the_next_one_begins() -> None:
    told = [copy(1, 1, 0, 40), copy(2, 1, 0, 43), copy(2, 2, 40, 41, record=segment(2))]
    made = chain([segment(1)], told)
    assert ends(made) == [(1, 0, 40), (2, 40, -1)]
    assert made.segments[0].segment.replicas == (1,)


def test_offsets_that_no_node_has_are_a_gap_for_a_person() -> None:
    told = [copy(1, 2, 40, 60, is_sealed=True)]
    shared = adopted()
    made = chain([sealed(1, 0, 30)], [*told, copy(1, 1, 0, 30, is_sealed=True)], shared)
    assert ends(made) == [(1, 0, 30), (NEXT_ID, 30, 40), (2, 40, 60)]
    assert made.segments[1].segment.is_lost
    assert [each.is_gap for each in shared.findings] == [True]


def test_what_is_below_the_log_start_is_no_gap() -> None:
    told = [copy(1, 2, 40, 60, record=sealed(2, 40, 60, log_start_offset=35), is_sealed=True)]
    shared = adopted()
    made = chain([], told, shared)
    assert [each.is_gap for each in shared.findings] == [True]  # offsets 35 to 40
    assert made.partition.log_start_offset == 40
    told = [copy(1, 2, 40, 60, record=sealed(2, 40, 60, log_start_offset=40), is_sealed=True)]
    shared = adopted()
    made = chain([], told, shared)
    assert not shared.findings
    assert made.partition.log_start_offset == 40


def test_without_a_record_the_longest_log_has_to_count() -> None:
    told = [copy(1, 5, 0, 9), copy(2, 5, 0, 12), copy(3, 5, 0, 12)]
    [tail] = chain([], told).segments
    assert (tail.segment.leader, tail.segment.isr) == (0, (2, 3))
    assert tail.segment.replicas == (1, 2, 3)
    assert tail.segment.settings.min_insync_replicas == 1, "nobody knows with which it was opened"
    assert not tail.is_unclean_begun


@pytest.mark.parametrize(
    ("told", "shared"),
    [
        ([copy(1, 5, 0, 9), copy(2, 5, 0, 12)], {}),  # of three
        ([copy(node, 5, 0, 9) for node in (1, 2, 3)], {"is_known": False}),  # a fourth has none
        ([copy(node, 5, 0, 9) for node in (1, 2, 3)], {"is_complete": False}),
    ],
)
def test_where_a_copy_may_be_missing_the_partition_goes_on_far_above(
    told: list[ToldReplica], shared: dict[str, Any]
) -> None:
    common = adopted(**shared)
    [tail] = chain([], told, common).segments
    assert tail.is_unclean_begun
    longest = max(each.durable_end_offset for each in told)
    assert tail.segment.isr == tuple(
        each.node_id for each in told if each.durable_end_offset == longest
    )
    assert "2^32 offsets above" in common.findings[-1].why


def test_a_damaged_copy_may_be_the_longest() -> None:
    told = [copy(1, 5, 0, 9), copy(2, 5, 0, 12), replace(copy(3, 5, 0, 2), is_intact=False)]
    common = adopted()
    [tail] = chain([], told, common).segments
    assert (tail.segment.isr, tail.is_unclean_begun) == ((), False)
    assert "recover-unclean events 0 5" in common.findings[-1].why


def test_without_a_node_an_ended_log_leaves_offsets_out() -> None:
    told = [copy(1, 1, 0, 40, is_sealed=True)]
    made = chain([], told, adopted(is_complete=False))
    assert ends(made) == [(1, 0, 40), (NEXT_ID, 40, 40 + OFFSETS_LEFT_OUT)]
    assert not made.segments[1].segment.is_lost
    assert made.partition.next_base_offset == 40 + OFFSETS_LEFT_OUT


def test_a_segment_that_was_only_prepared_or_empty_is_part_of_no_log() -> None:
    known = [sealed(1, 0, 40), segment(2, base_offset=40), segment(3, state=SegmentState.PREPARED)]
    told = [
        copy(1, 1, 0, 40, is_sealed=True),
        copy(1, 3, -1, -1),
        copy(1, 4, 40, 40),  # confirmed for a seal that never came
        copy(1, 6, 40, 44, record=segment(6, base_offset=40)),
    ]
    made = chain(known, told)
    assert ends(made) == [(1, 0, 40), (6, 40, -1)]
    assert [each.segment.segment_id for each in made.void] == [2, 3]


def test_records_that_fit_in_no_log_stay_where_they_are() -> None:
    told = [copy(1, 1, 0, 40, is_sealed=True), copy(2, 9, 10, 12)]
    shared = adopted()
    made = chain([], told, shared)
    assert ends(made) == [(1, 0, 40)]
    assert "in no log" in shared.findings[0].why


def test_an_old_seal_stays_though_no_node_has_it() -> None:
    shared = adopted()
    made = chain([sealed(1, 0, 40)], [], shared)
    assert ends(made) == [(1, 0, 40)]
    assert made.segments[0].segment.replicas == (1, 2, 3)
    assert [(each.segment_id, each.is_gap) for each in shared.findings] == [(1, False)]


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ([], [copy(1, 1, 0, 40, is_sealed=True), copy(2, 1, 0, 41, is_sealed=True)]),
        ([], [copy(1, 1, 0, 40), copy(2, 1, 3, 41)]),
        ([sealed(1, 0, 40)], [copy(2, 1, 0, 41, is_sealed=True)]),
        ([], [copy(1, 1, 0, 40, is_sealed=True), copy(1, 2, 39, 50, is_sealed=True)]),
        ([], [copy(1, 5, 0, 40), copy(2, 6, 0, 41)]),
    ],
)
def test_contradictions_stop_all_of_it(known: list[Segment], told: list[ToldReplica]) -> None:
    with pytest.raises(ConflictError, match="Nothing was changed"):
        chain(known, told)
