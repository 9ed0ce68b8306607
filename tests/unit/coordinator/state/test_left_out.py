"""Behind an end that nothing proves no offset is given out again (R96)."""

import pytest

from icecore.model import OFFSETS_LEFT_OUT
from icecore_coordinator.decisions.segment_changes import Opening, seal
from icecore_coordinator.state import cluster_state
from icecore_coordinator.state.cluster_state import ids_in, last_with_records, next_of
from icecore_coordinator.state.left_out import behind_left_out
from icecore_coordinator.state.records import drop
from tests.support.cluster_states import (
    ALL,
    KEY,
    Cluster,
    commit,
    prepared_successor,
    sealing,
    segment,
    started,
)


def chain(state: Cluster) -> list[tuple[int, int, int, bool]]:
    """Id, base and end of each segment, and whether its records are lost, in order."""
    found = [segment(state, each) for each in ids_in(state, KEY)]
    return [(each.segment_id, each.base_offset, each.end_offset, each.is_lost) for each in found]


@pytest.mark.parametrize("has_successor", [False, True])
@pytest.mark.parametrize("seen", [0, 10, 25])
def test_behind_it_no_offset_is_given_out_again(has_successor: bool, seen: int) -> None:
    state = started()
    successor = prepared_successor(state) if has_successor else 0
    ended = sealing(state, 10, is_lossy=True, seen_end_offset=seen)
    opening = Opening(successor, ALL) if has_successor else None
    commit(state, seal(state, state.live, ended, opening, 9))
    base = max(10, seen) + OFFSETS_LEFT_OUT
    assert state.partitions[KEY].next_base_offset == base == ended.next_base_offset
    first = 3 if has_successor else 2
    lost = [(first, 10, seen, True)] if seen > 10 else []
    hole = (first + len(lost), max(10, seen), base, False)
    tail = [(successor, base, -1, False)] if has_successor else []
    assert chain(state) == [(1, 0, 10, False), *lost, hole, *tail]
    assert segment(state).lossy, "as its record says for ever"
    assert next_of(state, "segment_id").next_value == hole[0] + 1
    assert not state.thin, "nobody makes copies of them"


def test_nor_when_nothing_is_left() -> None:
    state = started()
    successor = prepared_successor(state)
    ended = sealing(state, 25, is_lossy=True, seen_end_offset=25, replicas=())
    commit(state, seal(state, state.live, ended, Opening(successor, ALL), 9))
    base = 25 + OFFSETS_LEFT_OUT
    assert chain(state) == [(1, 0, 25, True), (3, 25, base, False), (2, base, -1, False)]


def test_nor_behind_an_empty_segment() -> None:
    state = started()
    successor = prepared_successor(state)
    ended = sealing(state, 0, is_lossy=True, replicas=())
    commit(state, seal(state, state.live, ended, Opening(successor, ALL), 9))
    base = OFFSETS_LEFT_OUT
    assert chain(state) == [(3, 0, base, False), (2, base, -1, False)]


def test_a_proved_end_leaves_nothing_out() -> None:
    state = started()
    ended = sealing(state, 10, seen_end_offset=10)
    commit(state, seal(state, state.live, ended, None, 9))
    assert chain(state) == [(1, 0, 10, False)]
    assert state.partitions[KEY].next_base_offset == 10


def test_copies_stay_that_alone_know_the_producers_before_a_hole() -> None:
    state = started()
    commit(state, seal(state, state.live, sealing(state, 10, is_lossy=True), None, 9))
    last, is_skipped = last_with_records(state, KEY, state.partitions[KEY].next_base_offset)
    assert last is state.segments[1] and is_skipped
    nothing, is_skipped = last_with_records(state, KEY, 5)
    assert nothing is None and not is_skipped


def test_published_ones_among_them_stay_too(monkeypatch: pytest.MonkeyPatch) -> None:
    state = started()
    commit(state, seal(state, state.live, sealing(state, 10, is_lossy=True), None, 9))
    monkeypatch.setattr(cluster_state, "is_published", lambda *_: True)
    assert not cluster_state.may_lose_copies(state, state.segments[1])
    state = started()
    successor = prepared_successor(state)
    ended = sealing(state, 10, is_lossy=True)
    commit(state, seal(state, state.live, ended, Opening(successor, ALL), 9))
    assert cluster_state.may_lose_copies(state, state.segments[1]), "a tail is there"


def test_a_skipped_segment_is_deleted_without_an_order_to_anybody() -> None:
    state = started()
    commit(state, seal(state, state.live, sealing(state, 10, is_lossy=True), None, 9))
    commit(state, drop([state.segments[2]], 7))
    assert 2 not in state.segments and not state.deleted


def test_no_log_starts_in_the_middle_of_what_was_left_out() -> None:
    state = started()
    ended = sealing(state, 10, is_lossy=True, seen_end_offset=25)
    commit(state, seal(state, state.live, ended, None, 9))
    end = 25 + OFFSETS_LEFT_OUT
    wanted = {9: 9, 10: 10, 24: 24, 25: end, 26: end, end - 1: end, end: end, end + 1: end + 1}
    segments = state.segments_in(KEY)
    assert {each: behind_left_out(segments, each) for each in wanted} == wanted
