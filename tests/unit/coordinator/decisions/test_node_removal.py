"""A node is forgotten once nothing names it; a full table makes room by those that hold nothing."""

from contextlib import suppress
from dataclasses import replace

import pytest

from icecore.errors import ConflictError, InvalidRequestError
from icecore.model import NodeState
from icecore_coordinator.decisions.node_changes import (
    INCARNATIONS,
    Registration,
    activate,
    issued_by,
    register,
)
from icecore_coordinator.decisions.node_removal import (
    check_disk_gone,
    drain_node,
    forget_unproved,
    give_up_copy,
    may_have_bytes,
    named_in,
    remove_node,
    room_for_node,
    undrain_node,
)
from icecore_coordinator.decisions.segment_changes import drop_prepared, remove_sealed_replica
from icecore_coordinator.state.cluster_state import drained_nodes, eligible_nodes, next_of
from icecore_coordinator.state.limits import NODES_MAX
from icecore_coordinator.state.records import Change, updated_segment
from tests.support.cluster_states import (
    Cluster,
    commit,
    prepared_successor,
    registered,
    roll,
    segment,
    started,
)
from tests.support.tier_states import begun, sealed, tiered_topic

NEWCOMER = Registration(b"c" * 16, 4, b"four", 0, "n4:1", "")


def everywhere(node_id: int, segment_id: int) -> bool:
    return True


@pytest.fixture
def state() -> Cluster:
    return started()


def down(state: Cluster, *nodes: int) -> None:
    for node_id in nodes:
        state.live.note(node_id, state=NodeState.DOWN, is_connected=False)


def add(state: Cluster, node_id: int = 4, incarnation: int = 7) -> None:
    """A node that is down and that nothing names."""
    commit(state, Change((registered(node_id, incarnation),)))


def give_up(state: Cluster, node_id: int) -> int:
    """Give up all copies of a node as the act does it. Return how many changes it took."""
    count = 0
    for _ in range(3):
        for segment_id in [*state.segments, *state.deleted]:
            if may_have_bytes(state, node_id, segment_id):
                with suppress(ConflictError):  # it is not sealed
                    change = give_up_copy(state, state.live, node_id, segment_id, everywhere, 0)
                    commit(state, change)
                    count += 1
    return count


# --- a node is forgotten --------------------------------------------------------------------------


def test_a_node_that_nothing_names_is_forgotten(state: Cluster) -> None:
    add(state)
    commit(state, remove_node(state, state.live, 4))
    assert 4 not in state.nodes and 4 not in state.tiers.urls
    with pytest.raises(InvalidRequestError, match="there is no node 4"):
        remove_node(state, state.live, 4)


def test_its_incarnations_are_never_given_out_again(state: Cluster) -> None:
    add(state, incarnation=7)
    commit(state, remove_node(state, state.live, 4))
    change, is_unknown = register(state, state.live, replace(NEWCOMER, incarnation=7))
    assert is_unknown, "nothing on its disk counts"
    assert issued_by(change) == 8
    commit(state, change)
    assert issued_by(register(state, state.live, NEWCOMER)[0]) == 9
    add(state, 5, incarnation=3)
    commit(state, remove_node(state, state.live, 5))
    assert next_of(state, INCARNATIONS).next_value == 9, "the counter never goes back"


@pytest.mark.parametrize(
    "status", [{"state": NodeState.UP}, {"is_connected": True}, {"state": NodeState.DRAINING}]
)
def test_a_node_that_is_up_stays(state: Cluster, status: dict[str, object]) -> None:
    add(state)
    state.live.note(4, **status)
    with pytest.raises(InvalidRequestError, match="stop it"):
        remove_node(state, state.live, 4)
    with pytest.raises(InvalidRequestError, match="stop it"):
        check_disk_gone(state, state.live, 4, everywhere)
    with pytest.raises(ConflictError):
        give_up_copy(state, state.live, 4, 1, everywhere, 0)


def test_a_replica_of_an_open_segment_stays(state: Cluster) -> None:
    down(state, 3)
    for check in (
        lambda: remove_node(state, state.live, 3),
        lambda: check_disk_gone(state, state.live, 3, everywhere),
    ):
        with pytest.raises(InvalidRequestError, match=r"1 segments .* not sealed.*topic roll"):
            check()


def closed(state: Cluster) -> None:
    """Segment 1 is SEALED on all nodes; its successor is not on node 3, which is down."""
    roll(state)
    tail = state.segments[2]
    others = {"replicas": (1, 2), "isr": (1, 2)}
    commit(state, Change((updated_segment(tail, others, holders=(1, 2)),)))
    down(state, 3)


def test_a_replica_of_a_sealed_segment_stays_while_its_disk_may_come_back(state: Cluster) -> None:
    closed(state)
    with pytest.raises(
        InvalidRequestError, match=r"1 sealed segments.*icecore node remove 3 --disk-gone"
    ):
        remove_node(state, state.live, 3)


def test_a_holder_stays_as_long_as_it_may_have_bytes(state: Cluster) -> None:
    closed(state)
    commit(state, remove_sealed_replica(state, 1, 3))
    assert not state.segments_of_node[3]
    with pytest.raises(InvalidRequestError, match="0 sealed segments, and 1 segments may have"):
        remove_node(state, state.live, 3)


def test_so_does_one_that_is_to_delete_something(state: Cluster) -> None:
    dropped = prepared_successor(state)
    commit(state, drop_prepared(state, [dropped], 0))
    add(state)
    record = state.deleted[dropped]
    commit(state, Change((replace(record, holders=(4,), version=record.version + 1),)))
    with pytest.raises(InvalidRequestError, match="1 segments may have bytes"):
        remove_node(state, state.live, 4)
    commit(state, give_up_copy(state, state.live, 4, dropped, everywhere, 0))
    assert state.deleted[dropped].holders == ()
    commit(state, remove_node(state, state.live, 4))


def test_so_does_one_that_uploads() -> None:
    state = tiered_topic()
    add(state)
    attempt = begun(state, sealed(state))
    tier = state.tiers.segments[attempt.segment_id]
    commit(state, Change((replace(tier, owner=4, version=tier.version + 1),)))
    with pytest.raises(InvalidRequestError, match="1 copies into object storage"):
        remove_node(state, state.live, 4)


def test_holders_are_counted_however_records_change(state: Cluster) -> None:
    """The count decides alone whether a node holds nothing, so it is compared with the records."""
    closed(state)
    dropped = prepared_successor(state)
    commit(state, drop_prepared(state, [dropped], 0))
    commit(state, remove_sealed_replica(state, 1, 3))
    roll(state)
    give_up(state, 3)
    for node_id in (1, 2, 3):
        records = [*state.segments.values(), *state.deleted.values()]
        assert state.held[node_id] == sum(node_id in each.holders for each in records)
    assert state.held[3] == sum(3 in each.holders for each in state.segments.values()) > 0
    for gone in (state.deleted[dropped], state.segments[1]):
        state.apply(Change(deletes=(gone,)))
    assert state.held[1] == sum(1 in each.holders for each in state.segments.values())


# --- its disk is gone -----------------------------------------------------------------------------


def test_what_others_have_is_given_up(state: Cluster) -> None:
    closed(state)
    dropped = prepared_successor(state)
    commit(state, drop_prepared(state, [dropped], 0))
    check_disk_gone(state, state.live, 3, everywhere)
    assert give_up(state, 3) == 3, "the copy, then its holder; and a deletion record"
    assert segment(state).replicas == (1, 2) and state.segments[1].holders == (1, 2)
    assert 1 in state.thin, "it is repaired from now on"
    assert named_in(state, 3).is_nothing
    commit(state, remove_node(state, state.live, 3))


def test_an_order_to_drop_a_copy_goes_with_its_node(state: Cluster) -> None:
    closed(state)
    fields = {"replicas": (1, 2), "surplus": (3,)}
    commit(state, Change((updated_segment(state.segments[1], fields),)))
    assert give_up(state, 3) == 1
    assert segment(state).surplus == () and state.segments[1].holders == (1, 2)


@pytest.mark.parametrize("why", ["down", "damaged", "removed"])
def test_a_copy_that_no_node_which_is_up_has_is_never_given_up(state: Cluster, why: str) -> None:
    closed(state)
    if why == "down":
        down(state, 1, 2)
    if why == "removed":
        commit(state, remove_sealed_replica(state, 1, 1))
        commit(state, remove_sealed_replica(state, 1, 2))

    def has_copy(node_id: int, _: int) -> bool:
        return why != "damaged" or node_id == 3

    with pytest.raises(InvalidRequestError, match=r"such as \[1\].*declare-lost"):
        check_disk_gone(state, state.live, 3, has_copy)
    with pytest.raises(ConflictError, match="last copy"):
        give_up_copy(state, state.live, 3, 1, has_copy, 0)


def test_a_published_copy_is_enough() -> None:
    state = tiered_topic()
    segment_id = sealed(state)
    fields = {"is_tiered": True, "replicas": (3,)}
    commit(state, Change((updated_segment(state.segments[segment_id], fields),)))
    down(state, 1, 2, 3)
    tail = state.segments[state.partitions[next(iter(state.partitions))].tail_segment_id]
    commit(state, Change((updated_segment(tail, {"replicas": (1, 2)}),)))
    check_disk_gone(state, state.live, 3, everywhere)


# --- room -----------------------------------------------------------------------------------------


def full(state: Cluster) -> None:
    """As many nodes as there may be; all but the first three are up."""
    for node_id in range(4, NODES_MAX + 1):
        state.apply(Change((replace(registered(4, 7), node_id=node_id),)))
        state.live.note(node_id, state=NodeState.UP, is_connected=True)


def test_a_cluster_of_nodes_that_are_up_or_hold_something_takes_no_more(state: Cluster) -> None:
    full(state)
    down(state, 3)  # it holds a replica
    with pytest.raises(InvalidRequestError, match=r"at most 1000 nodes.*icecore node remove"):
        room_for_node(state, state.live, 2000)
    assert room_for_node(state, state.live, 7) == Change(), "known nodes come as ever"


def test_the_one_that_is_down_for_longest_makes_room(state: Cluster) -> None:
    full(state)
    for node_id, since_ms in ((3, 1.0), (20, 30.0), (10, 20.0), (30, 25.0)):
        state.live.note(node_id, state=NodeState.DOWN, is_connected=False, down_since_ms=since_ms)
    asked = replace(NEWCOMER, node_id=2000)
    change = register(state, state.live, asked)[0]
    commit(state, change)
    commit(
        state,
        room_for_node(state, state.live, 2000) + activate(state, asked, issued_by(change)),
    )
    assert 10 not in state.nodes and {3, 20, 30, 2000} <= set(state.nodes)
    assert len(state.nodes) == NODES_MAX


def test_records_of_mere_registrations_go_with_a_start(state: Cluster) -> None:
    """An earlier version stored them; a hundred records fit in a change."""
    for node_id in range(100, 250):
        known = replace(registered(4, 0), node_id=node_id, issued_incarnation=5)  # type: ignore[arg-type]
        state.apply(Change((known,)))
    changes = [commit(state, forget_unproved(state)) for _ in range(3)]
    assert [len(each.deletes) for each in changes] == [99, 51, 0]
    assert list(state.nodes) == [1, 2, 3]
    assert issued_by(register(state, state.live, replace(NEWCOMER, node_id=100))[0]) == 6


def test_nodes_that_were_never_up_make_room_first(state: Cluster) -> None:
    """Since this coordinator started, that is."""
    full(state)
    state.live.note(10, state=NodeState.DOWN, is_connected=False, down_since_ms=5.0)
    down(state, 500)
    change = room_for_node(state, state.live, 2000)
    assert [each.key for each in change.deletes] == ["node/00000500"]


# --- nodes that are to be empty -------------------------------------------------------------------


def test_a_drained_node_gets_nothing_new(state: Cluster) -> None:
    add(state)
    state.live.note(4, state=NodeState.UP, is_connected=True)
    commit(state, drain_node(state, state.live, 2, allow_fewer_copies=False))
    assert [each.node_id for each in eligible_nodes(state, state.live)] == [1, 3, 4]
    assert drained_nodes(state) == [2]
    assert not drain_node(state, state.live, 2, allow_fewer_copies=False).puts
    commit(state, undrain_node(state, 2))
    assert [each.node_id for each in eligible_nodes(state, state.live)] == [1, 2, 3, 4]
    assert not undrain_node(state, 2).puts


def test_no_node_is_drained_whose_copies_fit_nowhere(state: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match=r"2 other nodes .* topics with 3 copies"):
        drain_node(state, state.live, 2, allow_fewer_copies=False)
    commit(state, drain_node(state, state.live, 2, allow_fewer_copies=True))
    down(state, 3)
    commit(state, drain_node(state, state.live, 3, allow_fewer_copies=True))
    with pytest.raises(InvalidRequestError, match="0 other nodes"):
        drain_node(state, state.live, 1, allow_fewer_copies=True)


@pytest.mark.parametrize("node_id", [0, 4, 1 << 40])
def test_nobody_is_drained_who_is_not_there(state: Cluster, node_id: int) -> None:
    with pytest.raises(InvalidRequestError, match="there is no node"):
        drain_node(state, state.live, node_id, allow_fewer_copies=True)
    with pytest.raises(InvalidRequestError, match="there is no node"):
        undrain_node(state, node_id)
