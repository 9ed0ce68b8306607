"""Copies beyond the replication factor: which one goes, when, and what its node gets meanwhile."""

from typing import Any

import pytest

from icecore.errors import ConflictError
from icecore.model import SegmentState
from icecore_coordinator.decisions.node_changes import (
    HeldReplica,
    confirm_deletion,
    deletions_confirmed,
    note_holder,
    unknown_copies,
)
from icecore_coordinator.decisions.sealed_copies import drop_surplus, keep_surplus
from icecore_coordinator.decisions.segment_changes import (
    add_sealed_replica,
    remove_sealed_replica,
)
from icecore_coordinator.state.records import Change, SegmentRecord, updated, updated_segment
from icecore_replication.digest import FullDigest
from tests.support.cluster_states import (
    DIGEST,
    KEY,
    Cluster,
    commit,
    registered,
    roll,
    segment,
    started,
)

FOURTH = 4
OLD_DIGEST = b"f" * 32
"""In a form that counts as none (R66)."""


def everybody(_: object) -> bool:
    return True


@pytest.fixture
def state() -> Cluster:
    """Segment 1 is sealed and has four copies, one more than it should."""
    state = started()
    roll(state)
    commit(state, Change((registered(FOURTH, 14),)))
    commit(state, add_sealed_replica(state, 1, FOURTH, 14, DIGEST))
    change(state, full_digest=FullDigest().digest())
    return state


def change(state: Cluster, **fields: Any) -> None:
    commit(state, Change((updated_segment(state.segments[1], fields),)))


def racks(state: Cluster, **names: str) -> None:
    for name, rack in names.items():
        node = state.nodes[int(name[1:])]  # type: ignore[index]
        commit(state, Change((updated(node, rack=rack),)))


def test_the_one_of_the_fullest_node_goes_and_no_other(state: Cluster) -> None:
    roll(state)  # nodes 1 to 3 have more than the fourth
    commit(state, drop_surplus(state, 1, everybody, everybody))
    assert (segment(state).replicas, segment(state).surplus) == ((1, 2, 4), (3,))
    assert state.segments[1].holders == (1, 2, 3, 4), "its bytes are there until it says otherwise"
    assert drop_surplus(state, 1, everybody, everybody) == Change()
    assert list(state.dropping) == [1] and not state.thick


def test_racks_that_only_one_copy_is_in_keep_it(state: Cluster) -> None:
    racks(state, n1="a", n2="b", n3="c", n4="a")
    commit(state, drop_surplus(state, 1, everybody, everybody))
    assert segment(state).surplus in ((1,), (4,))


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_copies_that_are_not_sound_do_not_count(state: Cluster, lost: int) -> None:
    assert drop_surplus(state, 1, lambda each: each != lost, everybody) == Change()


@pytest.mark.parametrize(
    "fields",
    [
        {"full_digest": b""},
        {"full_digest": OLD_DIGEST},
        {"replicas": (1, 2, 3), "lossy": True},
        {"surplus": (9,)},
    ],
    ids=["not agreed", "not agreed as it is now", "enough", "one at a time"],
)
def test_nothing_goes(state: Cluster, fields: dict[str, Any]) -> None:
    change(state, **fields)
    assert drop_surplus(state, 1, everybody, everybody) == Change()


def test_nothing_goes_that_is_not_sealed_or_about_to_go(state: Cluster) -> None:
    tail = state.partitions[KEY].tail_segment_id
    assert segment(state, tail).state is SegmentState.ACTIVE
    assert drop_surplus(state, tail, everybody, everybody) == Change()
    assert drop_surplus(state, 99, everybody, everybody) == Change()
    partition = state.partitions[KEY]
    commit(state, Change((updated(partition, log_start_offset=segment(state).end_offset),)))
    assert drop_surplus(state, 1, everybody, everybody) == Change()


def with_stray(state: Cluster) -> None:
    """The fourth copy does not count."""
    commit(state, remove_sealed_replica(state, 1, FOURTH))


def test_what_never_counted_goes_first(state: Cluster) -> None:
    with_stray(state)
    assert list(state.thick) == [1]
    assert drop_surplus(state, 1, everybody, lambda each: each != FOURTH) == Change()
    commit(state, drop_surplus(state, 1, everybody, everybody))
    assert (segment(state).replicas, segment(state).surplus) == ((1, 2, 3), (FOURTH,))
    commit(state, confirm_deletion(state, 1, [FOURTH]))
    assert state.segments[1].holders == (1, 2, 3)
    assert not state.thick and not state.dropping


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_never_counted_stays_while_it_may_be_needed(state: Cluster, lost: int) -> None:
    with_stray(state)
    assert drop_surplus(state, 1, lambda each: each != lost, everybody) == Change()
    change(state, replicas=(1, 2))
    assert not state.thick and drop_surplus(state, 1, everybody, everybody) == Change()


def test_what_never_counted_stays_where_records_were_given_up(state: Cluster) -> None:
    """A person may find them there."""
    with_stray(state)
    change(state, lossy=True)
    assert not state.thick and drop_surplus(state, 1, everybody, everybody) == Change()


def test_bytes_that_nobody_knows_of_are_noted(state: Cluster) -> None:
    tail = state.partitions[KEY].tail_segment_id
    commit(state, Change((registered(5, 15),)))
    held = {each: HeldReplica(each, 3, is_sealed=False, is_intact=False) for each in (1, tail, 99)}
    assert unknown_copies(state, 5, held) == [1], "others may come to count yet"
    assert unknown_copies(state, 1, held) == []
    commit(state, note_holder(state, 1, 5))
    assert state.segments[1].holders == (1, 2, 3, FOURTH, 5)
    assert segment(state).replicas == (1, 2, 3, FOURTH)
    assert unknown_copies(state, 5, held) == [] and note_holder(state, 1, 5) == Change()
    assert note_holder(state, tail, 5) == note_holder(state, 99, 5) == Change()
    commit(state, drop_surplus(state, 1, everybody, everybody))
    assert segment(state).surplus == (5,)


def test_who_drops_it_gets_none_until_it_is_gone(state: Cluster) -> None:
    commit(state, drop_surplus(state, 1, everybody, everybody))
    (dropping,) = segment(state).surplus
    incarnation = state.incarnation(dropping)
    with pytest.raises(ConflictError, match="is dropping"):
        add_sealed_replica(state, 1, dropping, incarnation, DIGEST)
    commit(state, confirm_deletion(state, 1, [dropping]))
    assert not segment(state).surplus and dropping not in state.segments[1].holders
    assert not state.dropping
    commit(state, add_sealed_replica(state, 1, dropping, incarnation, DIGEST))
    assert dropping in segment(state).replicas and list(state.thick) == [1]


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_an_order_is_taken_back_when_a_copy_counts_no_more(state: Cluster, lost: int) -> None:
    racks(state, n1="a", n2="b", n3="a", n4="d")
    roll(state)
    commit(state, drop_surplus(state, 1, everybody, everybody))
    assert segment(state).surplus == (3,)
    assert keep_surplus(state, 1, everybody) == Change()
    version = segment(state).version
    commit(state, keep_surplus(state, 1, lambda each: each != lost))
    assert (segment(state).surplus, segment(state).version) == ((), version + 1)
    assert 3 not in segment(state).replicas, "it counts once it is verified"
    assert 3 in state.segments[1].holders and not state.dropping
    commit(state, add_sealed_replica(state, 1, 3, state.incarnation(3), DIGEST))
    assert keep_surplus(state, 1, everybody) == Change(), "there is no order"
    assert keep_surplus(state, 99, everybody) == Change()


def test_an_inventory_without_it_shows_that_it_is_gone(state: Cluster) -> None:
    commit(state, drop_surplus(state, 1, everybody, everybody))
    (dropping,) = segment(state).surplus
    held = {1: HeldReplica(1, 10, is_sealed=True, is_intact=True)}
    assert deletions_confirmed(state, dropping, held) == []
    assert deletions_confirmed(state, dropping, {}) == [1]
    (other, *_) = segment(state).replicas
    assert deletions_confirmed(state, other, {}) == []
    assert confirm_deletion(state, 1, [other]) == Change()


def test_a_segment_that_is_deleted_meanwhile_goes_everywhere(state: Cluster) -> None:
    commit(state, drop_surplus(state, 1, everybody, everybody))
    record = state.segments[1]
    commit(state, Change(deletes=(record,)))
    assert not state.dropping and not state.thick
    assert confirm_deletion(state, 1, [3]) == Change()


def test_a_node_that_is_to_be_empty_drops_its_copy_first(state: Cluster) -> None:
    for node_id in (1, 2, 3, FOURTH):
        record = state.nodes[node_id]
        drained = commit(state, Change((updated(record, is_drained=True),)))
        [found] = drop_surplus(state, 1, everybody, everybody).puts
        assert isinstance(found, SegmentRecord)
        assert found.segment.surplus == (node_id,)
        assert node_id not in found.segment.replicas
        commit(state, Change((updated(drained.puts[0], is_drained=False),)))
