"""Decisions on the cluster's state: each compare-and-set that must fail, and what success means."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.errors import (
    ConflictError,
    FencedError,
    IcecoreError,
    InvalidRequestError,
    NotEnoughReplicasError,
    NotLeaderError,
)
from icecore.model import SEGMENT_ID_MAX, NodeState, Segment, SegmentState
from icecore.rpc.addresses import peer_address
from icecore.topic_settings import FlushMode, SegmentSettings
from icecore_coordinator.decisions.lossy_changes import (
    allow_unclean,
    begin_unclean,
    declare_lost,
    named,
)
from icecore_coordinator.decisions.node_changes import HeldReplica, lost_copies
from icecore_coordinator.decisions.segment_changes import (
    IDS_PASSED_OVER,
    Opening,
    add_sealed_replica,
    alter_isr,
    check_leader,
    open_tail,
    pass_over_ids,
    remove_sealed_replica,
    seal,
    start_recovery,
)
from icecore_coordinator.state.cluster_state import next_of
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import (
    RECORD_TYPES,
    Change,
    ClusterRecord,
    CounterRecord,
    DeletionRecord,
    NodeRecord,
    PartitionRecord,
    ProducerRecord,
    Record,
    SegmentRecord,
    TopicRecord,
    is_under_replicated,
)
from icecore_replication.isr import IsrProposal
from tests.support.cluster_states import (
    ALL,
    DIGEST,
    KEY,
    Cluster,
    commit,
    prepared_successor,
    records,
    sealing,
    segment,
    started,
)


@pytest.fixture
def state() -> Cluster:
    return started()


# --- open -----------------------------------------------------------------------------------------


def test_first_segment(state: Cluster) -> None:
    opened = segment(state)
    assert opened.state == SegmentState.ACTIVE
    assert (opened.base_offset, opened.leader, opened.leader_incarnation) == (0, 1, 11)
    assert opened.replicas == opened.isr == (1, 2, 3)
    partition = state.partitions[KEY]
    assert (partition.tail_segment_id, partition.last_epoch) == (1, opened.epoch)


def test_stale_incarnations_do_not_open(state: Cluster) -> None:
    successor = prepared_successor(state)
    one_stale = Opening(successor, {1: 11, 2: 12, 3: 99})
    change = seal(state, state.live, sealing(state), one_stale, 0)
    [opened] = [
        each.segment
        for each in change.puts
        if isinstance(each, SegmentRecord) and each.segment.segment_id == successor
    ]
    assert opened.replicas == (1, 2)
    with pytest.raises(NotEnoughReplicasError):
        seal(state, state.live, sealing(state), Opening(successor, {1: 11, 2: 99, 3: 99}), 0)


def test_open_needs_a_prepared_segment_and_no_tail(state: Cluster) -> None:
    with pytest.raises(ConflictError):
        open_tail(state, state.live, Opening(1, ALL))
    with pytest.raises(ConflictError):
        open_tail(state, state.live, Opening(prepared_successor(state), ALL))
    with pytest.raises(ConflictError):
        open_tail(state, state.live, Opening(77, ALL))


def test_leader_that_did_not_confirm_does_not_lead(state: Cluster) -> None:
    successor = prepared_successor(state)
    commit(state, seal(state, state.live, sealing(state), Opening(successor, {2: 12, 3: 13}), 0))
    assert segment(state, successor).leader == 2


def test_staying_leader_keeps_its_isr_and_at_least_min_insync_replicas(state: Cluster) -> None:
    shrink = IsrProposal(1, 11, segment(state).epoch, segment(state).version, (1, 2), (11, 12))
    commit(state, alter_isr(state, state.live, 1, shrink))
    successor = prepared_successor(state)
    commit(state, seal(state, state.live, sealing(state), Opening(successor, ALL), 0))
    assert segment(state, successor).replicas == (1, 2, 3)
    assert segment(state, successor).isr == (1, 2)


def test_min_insync_replicas_members_start_in_sync_even_when_the_isr_was_smaller(
    state: Cluster,
) -> None:
    shrink = IsrProposal(1, 11, segment(state).epoch, segment(state).version, (1,), (11,))
    commit(state, alter_isr(state, state.live, 1, shrink))
    successor = prepared_successor(state)
    commit(state, seal(state, state.live, sealing(state), Opening(successor, ALL), 0))
    assert len(segment(state, successor).isr) == 2


# --- alter isr ------------------------------------------------------------------------------------


def proposal(state: Cluster, **changes: object) -> IsrProposal:
    now = segment(state)
    made = IsrProposal(1, 11, now.epoch, now.version, (1, 2), (11, 12))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_isr_shrinks_and_the_version_grows(state: Cluster) -> None:
    before = segment(state)
    commit(state, alter_isr(state, state.live, 1, proposal(state)))
    assert segment(state).isr == (1, 2)
    assert segment(state).version == before.version + 1
    assert is_under_replicated(state.segments[1])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 1}, ConflictError),
        ({"epoch": 99}, FencedError),
        ({"incarnation": 10}, FencedError),
        ({"node_id": 2, "incarnation": 12}, FencedError),
        ({"isr": (2, 3), "isr_incarnations": (12, 13)}, InvalidRequestError),
        ({"isr": (1, 9), "isr_incarnations": (11, 9)}, InvalidRequestError),
    ],
)
def test_isr_conflicts(
    state: Cluster, changes: dict[str, object], error: type[IcecoreError]
) -> None:
    with pytest.raises(error):
        alter_isr(state, state.live, 1, proposal(state, **changes))


def test_isr_takes_in_only_registered_live_incarnations(state: Cluster) -> None:
    commit(state, alter_isr(state, state.live, 1, proposal(state)))
    with pytest.raises(FencedError):
        alter_isr(
            state, state.live, 1, proposal(state, isr=(1, 2, 3), isr_incarnations=(11, 12, 99))
        )
    state.live.note(3, state=NodeState.DOWN)
    with pytest.raises(FencedError):
        alter_isr(
            state, state.live, 1, proposal(state, isr=(1, 2, 3), isr_incarnations=(11, 12, 13))
        )
    state.live.note(3, state=NodeState.UP)
    commit(
        state,
        alter_isr(
            state, state.live, 1, proposal(state, isr=(1, 2, 3), isr_incarnations=(11, 12, 13))
        ),
    )


def test_isr_is_frozen_by_a_recovery(state: Cluster) -> None:
    asked = proposal(state)
    commit(state, start_recovery(state, 1, segment(state).version))
    with pytest.raises(FencedError):
        alter_isr(state, state.live, 1, asked)


# --- seal -----------------------------------------------------------------------------------------


def test_seal_is_one_change_of_segment_successor_and_tail(state: Cluster) -> None:
    abandoned = prepared_successor(state)
    successor = prepared_successor(state)
    commit(state, seal(state, state.live, sealing(state), Opening(successor, ALL), now_ms=5))
    sealed, opened = segment(state), segment(state, successor)
    assert (sealed.state, sealed.end_offset, sealed.seal_digest) == (
        SegmentState.SEALED,
        10,
        DIGEST,
    )
    assert sealed.isr == () and sealed.replicas == (1, 2, 3)
    assert (opened.state, opened.base_offset) == (SegmentState.ACTIVE, 10)
    assert opened.epoch > sealed.epoch + 1, "above the promise a recovery would have made"
    assert state.partitions[KEY].tail_segment_id == successor
    assert abandoned not in state.segments and state.deleted[abandoned].deleted_at_ms == 5
    assert list(state.unsealed) == [successor]


def test_what_is_prepared_or_short_of_replicas_is_known_without_a_search(state: Cluster) -> None:
    abandoned, successor = prepared_successor(state), prepared_successor(state)
    assert list(state.prepared) == [abandoned, successor] and not state.short
    opening = Opening(successor, {each: ALL[each] for each in (1, 2)})
    commit(state, seal(state, state.live, sealing(state), opening, now_ms=5))
    assert not state.prepared
    assert list(state.short) == list(state.unsealed) == [successor]
    version, last = segment(state, successor).version, prepared_successor(state)
    end = sealing(state, 20, segment_id=successor, version=version, replicas=(1, 2))
    commit(state, seal(state, state.live, end, Opening(last, ALL), now_ms=6))
    assert not state.short and not state.prepared


def test_seal_conflicts(state: Cluster) -> None:
    successor = Opening(prepared_successor(state), ALL)
    with pytest.raises(ConflictError):
        seal(state, state.live, sealing(state, version=1), successor, 0)
    with pytest.raises(ConflictError):
        seal(state, state.live, sealing(state, segment_id=99), successor, 0)
    with pytest.raises(InvalidRequestError):
        seal(state, state.live, sealing(state, end_offset=-1), successor, 0)
    with pytest.raises(NotEnoughReplicasError):
        seal(state, state.live, sealing(state, replicas=(1,)), successor, 0)
    with pytest.raises(ConflictError):
        seal(state, state.live, sealing(state), Opening(1, ALL), 0)
    commit(state, seal(state, state.live, sealing(state), successor, 0))
    with pytest.raises(ConflictError):
        seal(state, state.live, sealing(state), successor, 0)


def test_seal_by_a_leader_loses_against_a_recovery(state: Cluster) -> None:
    asked = sealing(state)
    successor = Opening(prepared_successor(state), ALL)
    commit(state, start_recovery(state, 1, segment(state).version))
    with pytest.raises(ConflictError):
        seal(state, state.live, asked, successor, 0)
    with pytest.raises(ConflictError):
        check_leader(state, 1, segment(state).epoch, 1, 11)


def test_seal_without_a_successor_leaves_no_tail(state: Cluster) -> None:
    commit(state, seal(state, state.live, sealing(state), None, 0))
    partition = state.partitions[KEY]
    assert (partition.tail_segment_id, partition.next_base_offset) == (0, 10)
    later = prepared_successor(state)
    commit(state, open_tail(state, state.live, Opening(later, ALL)))
    assert segment(state, later).base_offset == 10


def test_empty_segment_is_dropped_only_for_a_successor(state: Cluster) -> None:
    with pytest.raises(NotEnoughReplicasError):
        seal(state, state.live, sealing(state, end_offset=0, replicas=()), None, 0)
    successor = prepared_successor(state)
    empty = sealing(state, end_offset=0, replicas=())
    commit(state, seal(state, state.live, empty, Opening(successor, ALL), 7))
    assert 1 not in state.segments
    assert state.deleted[1] == DeletionRecord(1, (1, 2, 3), 7, version=1)
    assert segment(state, successor).base_offset == 0
    assert 1 not in state.segments_of_node[1]


# --- recovery -------------------------------------------------------------------------------------


def test_recovery_starts_once_and_keeps_the_isr(state: Cluster) -> None:
    before = segment(state)
    commit(state, start_recovery(state, 1, before.version))
    after = segment(state)
    assert (after.state, after.epoch, after.isr) == (
        SegmentState.RECOVERING,
        before.epoch,
        before.isr,
    )
    with pytest.raises(ConflictError):
        start_recovery(state, 1, before.version)
    with pytest.raises(ConflictError):
        start_recovery(state, 1, after.version)


def test_leader_is_live_only_in_its_registered_incarnation(state: Cluster) -> None:
    assert state.leader_is_live(segment(state), state.live)
    state.live.note(1, state=NodeState.DOWN)
    assert not state.leader_is_live(segment(state), state.live)
    state.live.note(1, state=NodeState.UP)
    node = state.nodes[1]
    commit(state, Change((replace(node, incarnation=20, version=node.version + 1),)))
    assert not state.leader_is_live(segment(state), state.live)


def test_check_leader(state: Cluster) -> None:
    epoch = segment(state).epoch
    assert check_leader(state, 1, epoch, 1, 11).segment == segment(state)
    for node_id, incarnation in ((2, 12), (1, 10)):
        with pytest.raises(NotLeaderError):
            check_leader(state, 1, epoch, node_id, incarnation)
    with pytest.raises(FencedError):
        check_leader(state, 1, epoch + 1, 1, 11)


# --- sealed replicas ------------------------------------------------------------------------------


@pytest.fixture
def sealed(state: Cluster) -> Cluster:
    successor = prepared_successor(state)
    commit(
        state, seal(state, state.live, sealing(state, replicas=(1, 2)), Opening(successor, ALL), 0)
    )
    return state


def test_repaired_copy_counts_when_it_is_proved(sealed: Cluster) -> None:
    assert is_under_replicated(sealed.segments[1])
    with pytest.raises(ConflictError):
        add_sealed_replica(sealed, 1, 3, 13, b"x" * 32)
    with pytest.raises(ConflictError):
        add_sealed_replica(sealed, 1, 3, 99, DIGEST)
    with pytest.raises(ConflictError):
        add_sealed_replica(sealed, 2, 3, 13, DIGEST)
    commit(sealed, add_sealed_replica(sealed, 1, 3, 13, DIGEST))
    assert segment(sealed).replicas == (1, 2, 3)
    assert add_sealed_replica(sealed, 1, 3, 13, DIGEST) == Change()


def test_last_copy_stays_listed(sealed: Cluster) -> None:
    commit(sealed, remove_sealed_replica(sealed, 1, 1))
    assert segment(sealed).replicas == (2,)
    assert remove_sealed_replica(sealed, 1, 2) == Change()
    with pytest.raises(ConflictError):
        remove_sealed_replica(sealed, 2, 2)


@pytest.mark.parametrize(
    ("held", "is_unknown", "lost"),
    [
        ({1: HeldReplica(1, 10, True, True)}, False, []),
        ({1: HeldReplica(1, 12, False, True)}, False, []),  # seals when it hears of the end
        ({1: HeldReplica(1, 9, False, True)}, False, [1]),
        ({1: HeldReplica(1, 10, True, False)}, False, [1]),
        ({1: HeldReplica(1, 10, True, True)}, True, [1]),
        ({}, False, [1]),
    ],
)
def test_inventory(
    sealed: Cluster, held: dict[int, HeldReplica], is_unknown: bool, lost: list[int]
) -> None:
    assert lost_copies(sealed, 2, held, is_disk_unknown=is_unknown) == lost


# --- acts of an admin -----------------------------------------------------------------------------


def test_only_a_segment_without_copies_can_be_declared_lost(sealed: Cluster) -> None:
    record = named(sealed, "events", 0, 1)
    for wrong in (("events", 1, 1), ("events", 0, 99)):
        with pytest.raises(InvalidRequestError):
            named(sealed, *wrong)
    with pytest.raises(InvalidRequestError):
        declare_lost(record, sealed.live, lambda node_id: node_id == 2)
    with pytest.raises(InvalidRequestError):
        declare_lost(named(sealed, "events", 0, 2), sealed.live, lambda _: False)
    commit(sealed, declare_lost(record, sealed.live, lambda _: False))
    assert segment(sealed).is_lost
    assert not is_under_replicated(sealed.segments[1])
    assert not sealed.thin
    assert declare_lost(sealed.segments[1], sealed.live, lambda _: False) == Change()


def test_ids_that_somebody_has_used_beforehand_are_passed_over_once(state: Cluster) -> None:
    at = next_of(state, "segment_id").next_value
    commit(state, pass_over_ids(state, at, 77))
    moved = next_of(state, "segment_id").next_value
    assert moved == at + IDS_PASSED_OVER + 77
    for late in (at, at + 5):
        assert pass_over_ids(state, late, 3 * IDS_PASSED_OVER) == Change(), "others said it first"
    assert pass_over_ids(state, moved, 1 << 60) != Change()
    assert pass_over_ids(state, SEGMENT_ID_MAX // 2, 0) == Change(), "some are left for segments"


def test_unclean_end_needs_a_permission_and_is_recorded(state: Cluster) -> None:
    with pytest.raises(InvalidRequestError):
        allow_unclean(state.segments[1])
    commit(state, start_recovery(state, 1, segment(state).version))
    commit(state, allow_unclean(state.segments[1]))
    assert allow_unclean(state.segments[1]) == Change()
    commit(state, begin_unclean(state, 1))
    assert state.segments[1].is_unclean_begun
    assert segment(state).lossy, "nodes hear of it before they are ordered so"
    assert begin_unclean(state, 1) == Change()
    nothing_left = sealing(state, replicas=())
    with pytest.raises(NotEnoughReplicasError):
        seal(state, state.live, nothing_left, None, 0)
    commit(state, seal(state, state.live, replace(nothing_left, is_lossy=True), None, 0))
    assert segment(state).is_lost


# --- stored forms ---------------------------------------------------------------------------------

node_ids = st.lists(st.integers(1, 9), max_size=4, unique=True).map(tuple)
offsets = st.integers(-1, 2**62)
settings = st.builds(
    SegmentSettings,
    replication_factor=st.integers(1, 5),
    min_insync_replicas=st.integers(1, 5),
    flush_mode=st.sampled_from(list(FlushMode)),
)
segments = st.builds(
    Segment,
    segment_id=st.integers(1, 2**63),
    topic_id=st.binary(min_size=16, max_size=16),
    topic=st.text(max_size=5),
    partition=st.integers(0, 9_999),
    state=st.sampled_from(list(SegmentState)),
    epoch=st.integers(0, 2**62),
    settings=settings,
    end_offset=offsets,
    length_bytes=st.integers(0, 2**50),
    seal_digest=st.binary(max_size=32),
    replicas=node_ids,
    isr=node_ids,
    version=st.integers(1, 99),
)
stored_records = st.one_of(
    st.builds(ClusterRecord, st.binary(min_size=16, max_size=16)),
    st.builds(CounterRecord, st.text(min_size=1, max_size=5), st.integers(1, 2**63)),
    st.builds(
        NodeRecord,
        st.integers(1, 9),
        st.binary(),
        st.text(),
        st.text(),
        native_address=st.text(),
    ),
    st.builds(TopicRecord, st.binary(), st.text(), st.integers(1, 9), settings, st.booleans()),
    st.builds(PartitionRecord, st.binary(), st.integers(0, 9), offsets),
    st.builds(DeletionRecord, st.integers(1, 9), node_ids, st.integers(0, 2**50)),
    st.builds(ProducerRecord, st.text(), *[st.integers(0, 2**64 - 1)] * 3),
    st.builds(SegmentRecord, segments, node_ids, st.binary()),
)


@given(stored_records)
def test_records_come_back_as_they_were_stored(record: Record) -> None:
    assert decode(type(record), encode(record)) == record


def test_a_node_of_before_the_native_transport_speaks_grpc_only() -> None:
    old = (
        '{"node_id":1,"disk_id":"64","address":"n1:1","rack":"","issued_incarnation":2,'
        '"incarnation":2,"disk_since_segment_id":0,"is_disk_accepted":false,"version":3}'
    )
    node = decode(NodeRecord, old)
    assert (node.native_address, peer_address(node)) == ("", "n1:1")


def test_state_is_the_same_after_a_restart(sealed: Cluster) -> None:
    again = Cluster()
    for cls in RECORD_TYPES:
        found = [each for each in records(sealed) if isinstance(each, cls)]
        found.sort(key=lambda each: each.key)
        again.load((cls, encode(each), each.version) for each in found)
    assert again == sealed
