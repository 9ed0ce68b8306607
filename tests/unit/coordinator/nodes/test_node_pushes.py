"""A stream sends messages of bounded size, the first one included."""

import pytest

from icecore.model import NodeState
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes import node_pushes
from icecore_coordinator.nodes.node_pushes import NODE_CHANGES_VERSION, Outbox, Pushes
from icecore_coordinator.state.records import Change, DeletionRecord, PartitionRecord, updated
from tests.support.cluster_states import KEY, Cluster, commit, registered, roll, started


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pushes, "ITEMS_PER_PUSH", 3)


def test_all_that_a_node_holds_comes_in_pages_the_first_of_which_is_full() -> None:
    state = started()
    held = [roll(state) for _ in range(7)]
    gone = [DeletionRecord(900 + number, (1,), 0, version=1) for number in range(4)]
    commit(state, Change(tuple(gone)))
    pushes = Pushes(state, state.live, lambda: 1)
    outbox = pushes.open(1, held)
    messages = [pushes.next_message(outbox)]
    while outbox.has_more:
        messages.append(pushes.next_message(outbox))
    assert [each.full for each in messages] == [True, False, False]
    assert len(messages[0].nodes) == 3
    told = [record.segment_id for each in messages for record in each.assignments]
    assert sorted(told) == [*held, state.partitions[KEY].tail_segment_id]
    assert [len(each.assignments) for each in messages] == [3, 3, 2]
    deletes = [segment_id for each in messages for segment_id in each.delete_segment_ids]
    assert deletes == [each.segment_id for each in gone]
    assert [len(each.partitions) for each in messages] == [1, 0, 0]


def test_a_partition_is_told_to_those_that_hold_some_of_it() -> None:
    state = started()
    roll(state)
    pushes = Pushes(state, state.live, lambda: 1)
    outboxes = {node_id: pushes.open(node_id, ()) for node_id in (1, 2, 9)}
    for outbox in outboxes.values():
        pushes.next_message(outbox)
        outbox.wake.clear()
    partition = state.partitions[KEY]
    assert isinstance(partition, PartitionRecord)
    change = Change((updated(partition, log_start_offset=5),))
    commit(state, change)
    pushes.on_change(change)
    assert [each for each, outbox in outboxes.items() if outbox.wake.is_set()] == [1, 2]
    assert pushes.next_message(outboxes[1]).partitions[0].log_start_offset == 5


def told_nodes(message: pb.HeartbeatResponse) -> tuple[list[int], list[int], list[int]]:
    listed, changed = message.nodes, message.changed_nodes
    return (
        [each.node_id for each in listed],
        [each.node_id for each in changed],
        [*message.gone_node_ids],
    )


def connected(version: int) -> tuple[Cluster, Pushes, Outbox]:
    """Node 1 of a cluster, which has heard of all."""
    state = started()
    for node in list(state.nodes.values()):
        commit(state, Change((updated(node, protocol_version=version),)))
    pushes = Pushes(state, state.live, lambda: 1)
    outbox = pushes.open(1, ())
    first = pushes.next_message(outbox)
    assert told_nodes(first) == ([1, 2, 3], [], []) and first.nodes_version == 1
    return state, pushes, outbox


def test_only_nodes_that_changed_are_told() -> None:
    state, pushes, outbox = connected(NODE_CHANGES_VERSION)
    pushes.nodes_changed()
    same = pushes.next_message(outbox)
    assert told_nodes(same) == ([], [], []) and same.nodes_version == 1
    state.live.note(2, state=NodeState.DOWN)
    pushes.nodes_changed()
    change = Change((registered(4, 1),))
    commit(state, change)
    pushes.on_change(change)
    found = pushes.next_message(outbox)
    assert told_nodes(found) == ([], [2, 4], []) and found.nodes_version == 2
    gone = Change(deletes=(state.nodes[4],))
    commit(state, gone)
    pushes.nodes_changed()
    found = pushes.next_message(outbox)
    assert told_nodes(found) == ([], [], [4]) and found.nodes_version == 3
    assert told_nodes(pushes.next_message(pushes.open(1, ()))) == ([1, 2, 3], [], [])


def test_many_changes_come_in_pages() -> None:
    state, pushes, outbox = connected(NODE_CHANGES_VERSION)
    for node_id in range(4, 11):
        commit(state, Change((registered(node_id, 1),)))
    pushes.nodes_changed()
    pages = [told_nodes(pushes.next_message(outbox))[1]]
    while outbox.has_more:
        pages.append(told_nodes(pushes.next_message(outbox))[1])
    assert pages == [[4, 5, 6], [7, 8, 9], [10]]


def test_an_older_node_hears_of_all_nodes_each_time() -> None:
    """It takes the nodes of a message for all that there are."""
    state, pushes, outbox = connected(NODE_CHANGES_VERSION - 1)
    state.live.note(2, state=NodeState.DOWN)
    pushes.nodes_changed()
    assert told_nodes(pushes.next_message(outbox)) == ([1, 2, 3], [], [])
