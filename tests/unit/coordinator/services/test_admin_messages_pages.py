"""Pages of segments: found by offset and by where the last page ended, however many there are; no
page is longer than a page may be."""

from dataclasses import replace
from typing import Any, cast

import pytest

from icecore.tier_records import TierRecord
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.decisions.remote.tier_merging import begin_merge, publish_merge
from icecore_coordinator.decisions.remote.tiering import Attempt
from icecore_coordinator.services import admin_messages
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.state.cluster_state import ClusterState, newest_in, segments_from
from icecore_coordinator.state.record_json import encode
from tests.support.cluster_states import (
    ALL,
    KEY,
    Cluster,
    commit,
    prepared_successor,
    records,
    roll,
    started,
)
from tests.support.tier_states import COPY, remote, tiered_topic


def listed(state: ClusterState, **asked: Any) -> tuple[list[int], bool]:
    nothing = cast(Any, None)
    describer = Describer(
        state=state,
        live=cast(Any, state).live,
        heard=nothing,
        alerts=nothing,
        sessions=nothing,
        clock=nothing,
        recoveries=lambda: 0,
        refused_streams=lambda: 0,
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


def test_a_page_goes_on_at_an_offset_when_its_last_segment_was_merged() -> None:
    state = tiered_topic()
    ids = [remote(state) for _ in range(6)]
    tail = state.partitions[KEY].tail_segment_id
    place = {"after_topic": "events", "after_partition": 0, "after_end_offset": 20}
    assert listed(state, after_segment_id=ids[1], **place) == ([*ids[2:], tail], False)
    change = commit(state, begin_merge(state, ids[1:4], 1))
    [begun] = [each for each in change.puts if isinstance(each, TierRecord)]
    upload = Attempt(begun.segment_id, begun.attempt, 1, ALL[1])
    copy = replace(COPY, records=30)
    commit(state, publish_merge(state, upload, copy, [COPY.content_digest] * 3, 0))
    merged = begun.segment_id
    assert listed(state) == ([ids[0], merged, *ids[4:], tail], False)
    assert listed(state, after_segment_id=ids[1], **place) == ([merged, *ids[4:], tail], False)
    assert listed(state, after_segment_id=ids[3], **place | {"after_end_offset": 40}) == (
        [*ids[4:], tail],
        False,
    )
    assert [each.segment.segment_id for each in newest_in(state, KEY)] == [
        tail,
        *ids[:3:-1],
        merged,
        ids[0],
    ]
    again = Cluster()
    again.load((type(each), encode(each), each.version) for each in records(state))
    assert listed(again) == listed(state)
