"""Pages of segments: found by offset and by where the last page ended, however many there are; no
page is longer than a page may be."""

from typing import Any, cast

import pytest

from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.services import admin_messages
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.state.cluster_state import ClusterState, newest_in, segments_from
from tests.support.cluster_states import KEY, prepared_successor, roll, started


def listed(state: ClusterState, **asked: Any) -> tuple[list[int], bool]:
    nothing = cast(Any, None)
    describer = Describer(
        state=state,
        live=cast(Any, state).live,
        heard=nothing,
        pages=nothing,
        sessions=nothing,
        recoveries=lambda: 0,
    )
    found = describer.segments(pb.ListSegmentsRequest(**asked))
    return [each.segment_id for each in found.segments], found.more


def test_pages_go_on_where_the_last_one_ended() -> None:
    state = started()
    sealed = [roll(state) for _ in range(9)]
    prepared_successor(state)
    tail = state.partitions[KEY].tail_segment_id
    assert listed(state) == ([*sealed, tail], False)
    assert listed(state, max_segments=4) == (sealed[:4], True)
    assert listed(state, max_segments=4, after_segment_id=sealed[3]) == (sealed[4:8], True)
    last = listed(state, max_segments=4, after_segment_id=sealed[7], topic="events")
    assert last == ([sealed[8], tail], False)
    assert listed(state, after_segment_id=tail) == ([], False)
    assert listed(state, after_segment_id=12345) == ([*sealed, tail], False)
    assert listed(state, partitions=[1]) == ([], False)


def test_an_offset_is_found_by_halving() -> None:
    state = started()
    sealed = [roll(state) for _ in range(9)]
    tail = state.partitions[KEY].tail_segment_id
    assert listed(state, from_offset=45, max_segments=1) == ([sealed[4]], True)
    assert listed(state, from_offset=50, max_segments=1) == ([sealed[5]], True)
    assert listed(state, from_offset=89) == ([sealed[8], tail], False)
    assert listed(state, from_offset=90) == ([tail], False)
    assert listed(state, from_offset=45, after_segment_id=sealed[6]) == ([*sealed[7:], tail], False)
    found = segments_from(state, KEY, 45)
    assert [each.segment.segment_id for each in found] == [*sealed[4:], tail]
    assert [each.segment.segment_id for each in newest_in(state, KEY)][:2] == [tail, sealed[8]]


def test_who_asks_for_all_segments_at_once_gets_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_messages, "SEGMENTS_PER_PAGE_MAX", 2)
    state = started()
    sealed = [roll(state) for _ in range(3)]
    assert listed(state, topic="events", max_segments=2**32 - 1) == (sealed[:2], True)
