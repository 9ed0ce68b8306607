"""The retention of a topic: expired segments, the start of logs, and deletions then (R73-R75)."""

import pytest

from icecore.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownTopicError
from icecore.model import SegmentState
from icecore.topic_settings import Retention
from icecore_coordinator.decisions.retention import (
    NEVER,
    TailNews,
    add_holder,
    delete_below_start,
    going_bytes,
    move_log_start,
    retain,
    sacrifice,
    sacrifices,
    spare_tails,
    verdict,
)
from icecore_coordinator.decisions.segment_changes import start_recovery
from icecore_coordinator.decisions.topic_changes import alter_topic, check_retention
from icecore_coordinator.decisions.topic_deletion import delete_topic
from icecore_coordinator.state.cluster_state import is_below_start
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import Change, TopicRecord
from tests.support.cluster_states import (
    KEY,
    SETTINGS,
    TOPIC,
    Cluster,
    commit,
    keep,
    roll,
    segment,
    started,
)

NOTHING = TailNews()
GIB = 1 << 30


@pytest.fixture
def state() -> Cluster:
    return started()


def start_of(state: Cluster) -> int:
    return state.partitions[KEY].log_start_offset


def delete_all(state: Cluster) -> list[int]:
    change = commit(state, delete_below_start(state, KEY, 7))
    return [each.segment.segment_id for each in change.deletes]  # type: ignore[union-attr]


# --- by age ---------------------------------------------------------------------------------------


def test_a_segment_expires_so_long_after_its_seal_in_counted_time(state: Cluster) -> None:
    keep(state, retention_ms=1_000)
    state.counted_ms = 500
    roll(state, appended_ms=-(10**12))  # whatever the clock of its leader said
    state.counted_ms = 900
    roll(state)
    state.counted_ms = 1_499
    assert verdict(state, KEY, NOTHING) == verdict(state, KEY, TailNews(5, 25))
    assert verdict(state, KEY, NOTHING).start_offset == 0
    assert verdict(state, KEY, NOTHING).next_ms == 1_500
    state.counted_ms = 1_500
    found = verdict(state, KEY, NOTHING)
    assert (found.start_offset, found.next_ms, found.is_roll_due) == (10, 1_900, False)
    commit(state, retain(state, KEY, NOTHING))
    assert start_of(state) == 10 and retain(state, KEY, NOTHING) == Change()


def test_what_lies_behind_one_that_is_not_expired_stays(state: Cluster) -> None:
    keep(state, retention_ms=1_000)
    state.counted_ms = 5_000
    roll(state)
    state.counted_ms = 0  # another coordinator, which lost a minute of the count
    roll(state)
    state.counted_ms = 4_000
    assert verdict(state, KEY, NOTHING).start_offset == 0


def test_an_old_tail_is_sealed_when_it_has_records(state: Cluster) -> None:
    keep(state, retention_ms=1_000)
    state.counted_ms = 999
    assert verdict(state, KEY, TailNews(9, 9)).next_ms == 1_000
    state.counted_ms = 1_000
    empty, full = verdict(state, KEY, NOTHING), verdict(state, KEY, TailNews(9, 9))
    assert (empty.is_roll_due, full.is_roll_due) == (False, True)
    assert empty.next_ms > full.next_ms > 1_000, "both are looked at again"
    assert full.start_offset == 0, "a tail never goes"


# --- by size --------------------------------------------------------------------------------------


def test_the_newest_bytes_stay(state: Cluster) -> None:
    keep(state, retention_bytes=GIB)
    for _ in range(4):
        roll(state, length_bytes=GIB // 2)
    assert verdict(state, KEY, NOTHING).start_offset == 20
    found = verdict(state, KEY, TailNews(GIB // 2 - 1))
    assert (found.start_offset, found.next_tail_bytes) == (20, GIB // 2)
    found = verdict(state, KEY, TailNews(GIB // 2))
    assert (found.start_offset, found.next_tail_bytes) == (30, GIB)
    assert verdict(state, KEY, TailNews(5 * GIB)).start_offset == 40
    commit(state, retain(state, KEY, TailNews(GIB // 2)))
    assert start_of(state) == 30
    assert verdict(state, KEY, NOTHING).start_offset == 30, "it never goes back"


@pytest.mark.parametrize("limits", [{}, {"on_full": "delete_oldest"}])
def test_without_limits_nothing_expires(state: Cluster, limits: dict[str, str]) -> None:
    if limits:
        keep(state, **limits)
    roll(state, length_bytes=10**15)
    state.counted_ms = 10**15
    found = verdict(state, KEY, TailNews(10**9, 99))
    assert (found.start_offset, found.is_roll_due, found.next_ms) == (0, False, NEVER)


# --- what goes ------------------------------------------------------------------------------------


def test_whole_sealed_segments_below_the_start_go_and_nothing_else(state: Cluster) -> None:
    first, second = roll(state), roll(state)
    assert delete_all(state) == [], "the log start moves first"
    commit(state, move_log_start(state, KEY, 19, 0))
    assert is_below_start(state, state.segments[first])
    assert not is_below_start(state, state.segments[second])
    assert delete_all(state) == [first]
    assert state.deleted[first].holders == (1, 2, 3) and state.deleted[first].length_bytes == 100
    commit(state, move_log_start(state, KEY, 25, high_watermark=25))
    assert delete_all(state) == [second]
    tail = state.partitions[KEY].tail_segment_id
    assert list(state.segments) == [tail] and segment(state, tail).state is SegmentState.ACTIVE
    assert not delete_all(state)


def test_the_newest_sealed_segment_stays_while_no_tail_is_open(state: Cluster) -> None:
    first, second = roll(state), roll(state)
    tail = segment(state, state.partitions[KEY].tail_segment_id)
    commit(state, start_recovery(state, tail.segment_id, tail.version))
    commit(state, move_log_start(state, KEY, 20, 0))
    assert delete_all(state) == [first] and second in state.segments


def test_a_deleted_topic_is_kept_whole(state: Cluster) -> None:
    keep(state, retention_ms=1)
    roll(state)
    commit(state, move_log_start(state, KEY, 10, 0))
    commit(state, delete_topic(state, "events", b"", 5))
    state.counted_ms = 10**9
    assert not delete_all(state) and verdict(state, KEY, NOTHING).start_offset == 10
    with pytest.raises(UnknownTopicError):
        move_log_start(state, KEY, 10, 0)


def test_many_go_in_several_changes(state: Cluster) -> None:
    for _ in range(70):
        roll(state)
    commit(state, move_log_start(state, KEY, 700, 0))
    assert len(delete_all(state)) == 50 and len(delete_all(state)) == 20


def test_a_log_start_is_refused_beyond_the_high_watermark(state: Cluster) -> None:
    roll(state)
    with pytest.raises(OffsetOutOfRangeError) as error:
        move_log_start(state, KEY, 16, high_watermark=15)
    assert error.value.metadata["high_watermark"] == "15"
    assert error.value.metadata["log_start_offset"] == "0"
    commit(state, move_log_start(state, KEY, 15, high_watermark=15))
    assert move_log_start(state, KEY, 3, 0) == Change(), "it is there already"
    with pytest.raises(UnknownTopicError):
        move_log_start(state, (TOPIC, 9), 0, 0)


def test_a_copy_made_meanwhile_gets_the_order_too(state: Cluster) -> None:
    first = roll(state)
    assert add_holder(state, first, 4) == Change()
    commit(state, move_log_start(state, KEY, 10, 0))
    delete_all(state)
    commit(state, add_holder(state, first, 4))
    assert state.deleted[first].holders == (1, 2, 3, 4)
    assert add_holder(state, first, 4) == Change()


# --- when a disk is nearly full -------------------------------------------------------------------


def test_only_topics_that_allow_it_give_room(state: Cluster) -> None:
    first, second = roll(state, appended_ms=5), roll(state, length_bytes=60, appended_ms=6)
    assert sacrifices(state, 1) == [] and spare_tails(state, 1) == []
    keep(state, on_full="delete_oldest")
    [mine] = sacrifices(state, 1)
    assert [(each.offset, each.length_bytes, each.appended_ms) for each in mine] == [
        (10, 100, 5),
        (20, 60, 6),
    ]
    assert sacrifices(state, 4) == [[]] and spare_tails(state, 4) == []
    assert [each.base_offset for each in spare_tails(state, 1)] == [20]
    commit(state, sacrifice(state, mine[0]))
    assert (start_of(state), going_bytes(state, 1), going_bytes(state, 4)) == (10, 100, 0)
    assert delete_all(state) == [first]
    assert going_bytes(state, 1) == 100, "ordered, and not carried out yet"
    keep(state, on_full="refuse")
    assert sacrifice(state, mine[1]) == Change() and second in state.segments


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"retention_ms": 0}, "retention_ms is -1"),
        ({"retention_ms": -2}, "retention_ms is -1"),
        ({"retention_ms": 1 << 62}, "retention_ms is -1"),
        (
            {"retention_bytes": SETTINGS.segment_bytes - 1},
            "is below segment_bytes",
        ),
        ({"retention_bytes": 0}, "retention_bytes is -1"),
        ({"on_full": "panic"}, "must be one of refuse, delete_oldest"),
    ],
)
def test_limits_that_can_not_be(state: Cluster, limits: dict[str, int], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        check_retention(Retention(**limits), SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=why):
        keep(state, **limits)
    assert state.topics[TOPIC].version == 1


def test_limits_are_stored_and_survive(state: Cluster) -> None:
    keep(state, retention_ms=5, retention_bytes=SETTINGS.segment_bytes, on_full="delete_oldest")
    record = state.topics[TOPIC]
    assert decode(TopicRecord, encode(record)) == record
    assert alter_topic(state, state.live, "events", SETTINGS) == Change(), "what is not said stays"
