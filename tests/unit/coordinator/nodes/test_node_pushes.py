"""A stream sends messages of bounded size, the first one included."""

import pytest

from icecore_coordinator.nodes import node_pushes
from icecore_coordinator.nodes.node_pushes import Pushes
from icecore_coordinator.state.records import Change, DeletedRecord, PartitionRecord, updated
from tests.support.cluster_states import KEY, commit, roll, started


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pushes, "ITEMS_PER_PUSH", 3)


def test_all_that_a_node_holds_comes_in_pages_the_first_of_which_is_full() -> None:
    state = started()
    held = [roll(state) for _ in range(7)]
    gone = [DeletedRecord(900 + number, (1,), 0, version=1) for number in range(4)]
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
