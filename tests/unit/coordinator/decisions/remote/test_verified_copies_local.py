"""Nodes' copies of segments in object storage: when they go, and who is told of it."""

import pytest

from icecore.errors import ConflictError
from icecore.model import NodeState
from icecore.tier_records import TierState
from icecore_coordinator.decisions.disk_changes import last_copies
from icecore_coordinator.decisions.lossy_changes import declare_lost
from icecore_coordinator.decisions.node_changes import confirm_deletion, lost_copies
from icecore_coordinator.decisions.remote.tiering import committed
from icecore_coordinator.decisions.remote.verified_copies import (
    drop_copies,
    drop_expired_copies,
    drop_lost_copies,
    expired_copies,
    spare_copies,
    verifiers,
)
from icecore_coordinator.decisions.retention import add_holder, delete_below_start, move_log_start
from icecore_coordinator.decisions.segment_changes import (
    add_sealed_replica,
    remove_sealed_replica,
    start_recovery,
)
from icecore_coordinator.state.records import Change, is_under_replicated, updated
from tests.support.cluster_states import DIGEST, KEY, Cluster, commit, segment
from tests.support.tier_states import published, sealed, seen, tabled, tier_of, tiered_topic


@pytest.fixture
def state() -> Cluster:
    return tiered_topic(local_retention_ms=10)


def remote(state: Cluster) -> int:
    """A segment that no node has a copy of any more."""
    segment_id = tabled(state)
    state.counted_ms += 10
    commit(state, drop_expired_copies(state, KEY, seen(state), 77))
    assert segment(state, segment_id).is_remote_only
    return segment_id


def test_copies_go_by_counted_time_and_only_published_ones(state: Cluster) -> None:
    first, second = tabled(state), sealed(state)
    state.counted_ms = 9
    assert drop_expired_copies(state, KEY, seen(state), 0) == Change()
    state.counted_ms = 10
    assert expired_copies(state, KEY) == [first]
    change = commit(state, drop_expired_copies(state, KEY, seen(state), 77))
    assert segment(state, first).is_remote_only and segment(state, second).replicas == (1, 2, 3)
    assert state.deleted[first].holders == (1, 2, 3) and state.deleted[first].deleted_at_ms == 77
    assert not change.deletes and tier_of(state, first).state is TierState.PUBLISHED
    assert drop_expired_copies(state, KEY, seen(state), 0) == Change()


def test_the_newest_bytes_stay() -> None:
    state = tiered_topic(local_retention_bytes=150)
    first, second, third = tabled(state), tabled(state), tabled(state)
    assert expired_copies(state, KEY) == [first]
    commit(state, drop_expired_copies(state, KEY, seen(state), 0))
    assert segment(state, second).replicas and segment(state, third).replicas


def test_without_a_limit_they_stay() -> None:
    state = tiered_topic()
    tabled(state)
    state.counted_ms = 1 << 50
    assert expired_copies(state, KEY) == []


def test_the_newest_sealed_segment_stays_while_no_tail_is_behind_it(state: Cluster) -> None:
    first = tabled(state)
    state.counted_ms = 10
    tail = state.partitions[KEY].tail_segment_id
    commit(state, start_recovery(state, tail, state.segments[tail].version))
    assert (
        expired_copies(state, KEY) == [] and drop_copies(state, first, seen(state), 0) == Change()
    )
    for node_id in (1, 2):
        commit(state, remove_sealed_replica(state, first, node_id))
    assert remove_sealed_replica(state, first, 3) == Change(), "its producers are known there alone"


def test_nobody_misses_copies_of_what_is_remote(state: Cluster) -> None:
    first = remote(state)
    assert first not in state.thin and not is_under_replicated(state.segments[first])
    assert not segment(state, first).is_lost and state.segments[first].holders == ()
    assert all(first not in held for held in state.segments_of_node.values())
    assert lost_copies(state, 1, {}, is_disk_unknown=True) == []
    state.live.note(1, state=NodeState.DOWN, is_connected=False)
    assert first not in last_copies(state, state.live, 1, lambda *_: True)
    assert declare_lost(state.segments[first], state.live, lambda _: False) == Change()


def test_it_never_gets_copies_again(state: Cluster) -> None:
    first = remote(state)
    with pytest.raises(ConflictError, match="object storage alone"):
        add_sealed_replica(state, first, 2, state.incarnation(2), DIGEST)
    for node_id in (1, 2, 3):
        commit(state, confirm_deletion(state, first, [node_id]))
    assert first not in state.deleted_held
    commit(state, add_holder(state, first, 2))
    assert state.deleted[first].holders == (2,), "who copied it meanwhile gets the order"


def test_losing_the_last_copy_of_what_is_published_loses_nothing(state: Cluster) -> None:
    first = tabled(state)
    for node_id in (1, 2):
        commit(state, remove_sealed_replica(state, first, node_id, 5))
    assert first not in last_copies(state, state.live, 3, lambda *_: True)
    commit(state, remove_sealed_replica(state, first, 3, 5))
    assert segment(state, first).is_remote_only and not segment(state, first).lossy
    assert state.deleted[first].holders == (1, 2, 3)


def test_copies_on_nodes_that_are_gone_are_given_up_together(state: Cluster) -> None:
    first, second = tabled(state), sealed(state)
    assert drop_lost_copies(state, first, lambda node_id: node_id != 2, seen(state), 0) == Change()
    assert drop_lost_copies(state, second, lambda _: True, seen(state), 0) == Change(), (
        "it is not published"
    )
    commit(state, drop_lost_copies(state, first, lambda _: True, seen(state), 0))
    assert segment(state, first).is_remote_only


def test_a_person_who_declares_it_lost_loses_nothing(state: Cluster) -> None:
    first = tabled(state)
    commit(state, declare_lost(state.segments[first], state.live, lambda _: False, 8))
    assert segment(state, first).is_remote_only and not segment(state, first).lossy
    assert state.deleted[first].deleted_at_ms == 8


def test_it_goes_with_its_records_and_keeps_its_deletion_record(state: Cluster) -> None:
    first = remote(state)
    before = state.deleted[first]
    commit(state, move_log_start(state, KEY, 10, 0))
    commit(state, delete_below_start(state, KEY, 99))
    assert first not in state.segments and state.deleted[first] == before
    assert tier_of(state, first).state is TierState.DELETING


def test_a_full_disk_gets_room_from_what_is_published(state: Cluster) -> None:
    first, second = tabled(state), tabled(state)
    sealed(state)
    assert [each.segment_id for each in spare_copies(state, 2)] == [first, second]
    commit(state, drop_copies(state, first, seen(state), 0))
    assert [each.segment_id for each in spare_copies(state, 2)] == [second]
    assert (
        drop_copies(state, first, seen(state), 0)
        == Change()
        == drop_copies(state, 999, seen(state), 0)
    )


def test_copies_go_only_when_the_published_one_was_seen(state: Cluster) -> None:
    first = tabled(state)
    state.counted_ms = 10
    attempt = tier_of(state, first).attempt
    for verified in ({}, {first: attempt + 1}, {first + 1: attempt}):
        assert drop_expired_copies(state, KEY, verified, 0) == Change()
        assert drop_copies(state, first, verified, 0) == Change()
        assert drop_lost_copies(state, first, lambda _: True, verified, 0) == Change()
    assert drop_expired_copies(state, KEY, {first: attempt}, 0).puts


def test_copies_stay_until_the_table_names_the_published_one(state: Cluster) -> None:
    first = published(state)
    state.counted_ms = 10
    assert expired_copies(state, KEY) == [] and spare_copies(state, 1) == []
    assert drop_copies(state, first, seen(state), 0) == Change()
    published(state)
    commit(state, committed(state, KEY, 1))
    assert expired_copies(state, KEY) == [first], "though the table lacks the second one"


def test_copies_that_are_lost_do_not_wait_for_the_table(state: Cluster) -> None:
    first = published(state)
    commit(state, drop_lost_copies(state, first, lambda _: True, seen(state), 0))
    assert segment(state, first).is_remote_only


def test_another_node_than_the_uploader_looks(state: Cluster) -> None:
    first = published(state)
    assert tier_of(state, first).owner == 1 and verifiers(state, tier_of(state, first)) == [2, 3]
    for node_id in (2, 3):
        commit(state, Change((updated(state.nodes[node_id], tier_url=""),)))
    assert verifiers(state, tier_of(state, first)) == [1], "no other node has an object store"
