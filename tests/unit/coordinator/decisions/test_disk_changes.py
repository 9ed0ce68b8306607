"""Another disk is let in while enough intact copies are elsewhere; else a person has to say so."""

from dataclasses import replace

import pytest

from icecore.errors import InvalidRequestError, UnavailableError, WrongClusterError
from icecore.model import NodeState
from icecore_coordinator.decisions.disk_changes import (
    accept_disk,
    check_disk,
    last_copies,
    with_new_disk,
)
from icecore_coordinator.decisions.node_changes import (
    Registration,
    activate,
    check_registration,
    register,
)
from icecore_coordinator.decisions.segment_changes import Opening, remove_sealed_replica, seal
from icecore_coordinator.state.records import Change
from tests.support.cluster_states import (
    ALL,
    Cluster,
    commit,
    prepared_successor,
    sealing,
    segment,
    started,
)

NODE = Registration(b"c" * 16, 2, b"new disk", 0, "n2:1", "")


def everywhere(node_id: int, segment_id: int) -> bool:
    return True


def down(state: Cluster, *nodes: int) -> None:
    for node_id in nodes:
        state.live.note(node_id, state=NodeState.DOWN)
        state.live.note(node_id, is_connected=False)


def come_with_new_disk(state: Cluster, node_id: int) -> None:
    """As the handlers do it: register, check, activate."""
    asked = replace(NODE, node_id=node_id, address=f"n{node_id}:1")
    change, is_unknown = register(state, state.live, asked)
    assert is_unknown
    check_disk(state, state.live, node_id, everywhere)
    commit(state, change)
    activation = activate(state, asked, state.nodes[node_id].issued_incarnation)
    commit(state, with_new_disk(state, activation))


@pytest.fixture
def sealed() -> Cluster:
    """Segment 1 is SEALED on all nodes, segment 2 ACTIVE on all; nodes are down."""
    state = started()
    successor = prepared_successor(state)
    commit(state, seal(state, state.live, sealing(state), Opening(successor, ALL), 0))
    down(state, 1, 2, 3)
    return state


def test_one_disk_of_three_may_go(sealed: Cluster) -> None:
    assert last_copies(sealed, sealed.live, 2, everywhere) == []
    come_with_new_disk(sealed, 2)


def test_a_second_disk_may_not(sealed: Cluster) -> None:
    come_with_new_disk(sealed, 2)
    commit(sealed, remove_sealed_replica(sealed, 1, 2))
    with pytest.raises(WrongClusterError, match="accept-disk --node-id 1"):
        come_with_new_disk(sealed, 1)
    assert last_copies(sealed, sealed.live, 1, everywhere) == [
        2
    ]  # the sealed one is on node 3, too
    commit(sealed, remove_sealed_replica(sealed, 1, 3))
    assert last_copies(sealed, sealed.live, 1, everywhere) == [1, 2]


def test_copies_that_are_damaged_count_for_nothing(sealed: Cluster) -> None:
    assert last_copies(sealed, sealed.live, 2, lambda node_id, _: node_id == 2) == [1, 2]


def test_a_leader_that_lives_can_end_its_segment(sealed: Cluster) -> None:
    leader = segment(sealed, 2).leader
    first, second = sorted({1, 2, 3} - {leader})
    come_with_new_disk(sealed, first)
    sealed.live.note(leader, state=NodeState.UP)
    come_with_new_disk(sealed, second)
    with pytest.raises(WrongClusterError):
        come_with_new_disk(sealed, leader)


def test_a_set_of_one_that_acked_alone_is_the_last_copy(sealed: Cluster) -> None:
    record = sealed.segments[2]
    settings = replace(record.segment.settings, min_insync_replicas=1)
    alone = record.segment.changed(isr=(2,), settings=settings, version=record.version + 1)
    commit(sealed, Change((replace(record, segment=alone),)))
    assert last_copies(sealed, sealed.live, 2, everywhere) == [2]
    assert last_copies(sealed, sealed.live, 1, everywhere) == []


def test_a_refusal_changes_nothing_and_the_old_disk_comes_back(sealed: Cluster) -> None:
    before = sealed.nodes[2]
    with pytest.raises(WrongClusterError):
        check_disk(sealed, sealed.live, 2, lambda node_id, _: node_id == 2)
    assert sealed.nodes[2] == before
    same = replace(NODE, disk_id=before.disk_id, incarnation=before.incarnation)
    assert register(sealed, sealed.live, same)[1] is False


def test_a_persons_word_holds_once(sealed: Cluster) -> None:
    come_with_new_disk(sealed, 2)
    with pytest.raises(WrongClusterError):
        come_with_new_disk(sealed, 1)
    commit(sealed, accept_disk(sealed, sealed.live, 1))
    assert accept_disk(sealed, sealed.live, 1) == Change()
    come_with_new_disk(sealed, 1)
    assert not sealed.nodes[1].is_disk_accepted
    with pytest.raises(WrongClusterError):
        come_with_new_disk(sealed, 3)


def test_the_old_disk_takes_the_word_back(sealed: Cluster) -> None:
    commit(sealed, accept_disk(sealed, sealed.live, 2))
    known = sealed.nodes[2]
    same = replace(NODE, disk_id=known.disk_id, incarnation=known.incarnation)
    commit(sealed, register(sealed, sealed.live, same)[0])
    commit(sealed, activate(sealed, same, sealed.nodes[2].issued_incarnation))
    assert not sealed.nodes[2].is_disk_accepted
    assert sealed.nodes[2].disk_since_segment_id == 0


def test_nobody_accepts_for_nodes_that_are_up_or_unknown(sealed: Cluster) -> None:
    sealed.live.note(2, is_connected=True)
    with pytest.raises(UnavailableError):
        accept_disk(sealed, sealed.live, 2)
    with pytest.raises(InvalidRequestError):
        accept_disk(sealed, sealed.live, 9)


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "127.0.0.1:9\nevent=forged"},
        {"address": "127.0.0.1"},
        {"address": "127.0.0.1:0"},
        {"address": "127.0.0.1:65536"},
        {"address": "127.0.0.1:9 x"},
        {"address": ":9"},
        {"address": "h" * 300 + ":9"},
        {"address": ""},
        {"native_address": "127.0.0.1"},
        {"native_address": "native://127.0.0.1:9 x"},
        {"rack": "a\nb"},
        {"rack": "r" * 256},
        {"disk_id": b"d" * 65},
        {"node_id": 100_000_000},
    ],
)
def test_what_no_node_says_of_itself(changes: dict[str, object]) -> None:
    check_registration(NODE)
    with pytest.raises(InvalidRequestError):
        check_registration(replace(NODE, **changes))  # type: ignore[arg-type]
