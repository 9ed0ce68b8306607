"""The state with which a segment starts: as much as all nodes can, and the same however often it is
given (R60, R72, R97)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.model import PROTOCOL_VERSION, NodeState
from icecore_coordinator.nodes.node_calls import OpenItem
from icecore_coordinator.state.records import Change, updated, updated_segment
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.segments.segment_opening import SegmentOpening
from icecore_replication.producers import BATCHES_KEPT, BATCHES_KEPT_FIRST, ProducerTable
from tests.support.cluster_states import (
    ALL,
    Cluster,
    commit,
    prepared_successor,
    registered,
    started,
)

MARK_MS = 5_000
NEWEST_MS = 77


def speak(state: Cluster, version: int, *nodes: int) -> None:
    for node_id in nodes:
        commit(state, Change((updated(state.nodes[node_id], protocol_version=version),)))


@pytest.fixture
def state() -> Cluster:
    state = started()
    speak(state, PROTOCOL_VERSION, *ALL)
    state.counted_ms = MARK_MS
    return state


def start_of(state: Cluster, segment_id: int, snapshot: bytes = b"") -> bytes:
    """The starting state that nodes are given."""
    ledger, live = SimpleNamespace(state=state), state.live
    opening = SegmentOpening(cast(Any, ledger), cast(Any, None), live, cast(Any, None), Timing())
    item = OpenItem(state.segments[segment_id].segment, 10, snapshot, NEWEST_MS)
    return opening._starting(item).producer_snapshot


def mark_in(start: bytes) -> tuple[int, int]:
    """Version of the state, and the number behind it: with version 3 the mark."""
    return int.from_bytes(start[4:6], "little"), int.from_bytes(start[12:20], "little")


def test_the_mark_is_from_when_the_segment_was_prepared(state: Cluster) -> None:
    segment_id = prepared_successor(state)
    first = start_of(state, segment_id)
    state.counted_ms += 1_000_000
    assert start_of(state, segment_id) == first, "who has it already compares"
    assert mark_in(first) == (3, MARK_MS)
    assert mark_in(start_of(state, prepared_successor(state))) == (3, MARK_MS + 1_000_000)


def test_a_cluster_that_has_just_begun_has_marks(state: Cluster) -> None:
    state.counted_ms = 0
    assert mark_in(start_of(state, prepared_successor(state))) == (3, 1)


@pytest.mark.parametrize(
    ("spoken", "version", "kept"),
    [(2, 1, BATCHES_KEPT_FIRST), (3, 2, BATCHES_KEPT), (PROTOCOL_VERSION, 3, BATCHES_KEPT)],
)
@pytest.mark.parametrize("is_replica", [True, False])
def test_one_live_node_of_before_decides_for_all(
    state: Cluster, spoken: int, version: int, kept: int, is_replica: bool
) -> None:
    if not is_replica:
        commit(state, Change((registered(4, 14),)))
        state.live.note(4, state=NodeState.UP, is_connected=True)
    speak(state, spoken, 3 if is_replica else 4)
    segment_id = prepared_successor(state)
    table = ProducerTable(start_of(state, segment_id))
    table.apply(9, 0, 0, 1, 10, 1)
    sealed = table.snapshot()
    assert (mark_in(sealed)[0], table.batches_kept) == (version, kept)
    state.live.note(4, state=NodeState.DOWN, is_connected=False)
    speak(state, PROTOCOL_VERSION, 3)
    after = start_of(state, prepared_successor(state), sealed)
    assert mark_in(after) == (3, MARK_MS)
    assert ProducerTable(after).last_sequence(9) == (0, 1)


def test_a_segment_that_a_coordinator_of_before_prepared_has_no_mark(state: Cluster) -> None:
    segment_id = prepared_successor(state)
    commit(state, Change((updated_segment(state.segments[segment_id], {}, since_ms=0),)))
    assert mark_in(start_of(state, segment_id))[0] == 2


def test_a_damaged_state_is_left_to_the_nodes(state: Cluster) -> None:
    segment_id = prepared_successor(state)
    damaged = start_of(state, segment_id)[:-1]
    assert start_of(state, segment_id, damaged) == damaged
