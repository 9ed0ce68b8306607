"""Topics that somebody holds as they are: what waits meanwhile, what does not, and when it ends."""

import pytest

from icecore.errors import ConflictError, InvalidRequestError, UnknownTopicError
from icecore.tier_records import TierState
from icecore_coordinator.decisions.remote.tiering import committed, drop_tiered, release
from icecore_coordinator.decisions.retention import (
    HOLD_MS_MAX,
    OWNER_CHARS_MAX,
    TailNews,
    hold,
    let_go,
    move_log_start,
    retain,
    verdict,
)
from icecore_coordinator.decisions.topic_deletion import delete_topic
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.limits import HOLDS_MAX
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import StoredHold, TopicRecord
from tests.support.cluster_states import KEY, TOPIC, Cluster, commit, keep, roll, started
from tests.support.tier_states import published, tiered_topic

LEASE = b"l" * 16


def held(state: ClusterState, hold_ms: int, lease: bytes = LEASE, *, renew: bool = False) -> None:
    commit(state, hold(state, "events", StoredHold(lease, hold_ms, "job"), is_renewal=renew))


def test_retention_waits_for_the_end_of_the_longest_hold() -> None:
    state = started()
    keep(state, retention_ms=5)
    roll(state, 10)
    state.counted_ms += 5
    held(state, 1_000)
    held(state, 300, b"m" * 16)
    assert not retain(state, KEY, TailNews()).puts
    assert verdict(state, KEY, TailNews()).next_ms == state.counted_ms + 1_000
    state.counted_ms += 999
    assert not retain(state, KEY, TailNews()).puts
    state.counted_ms += 1
    assert retain(state, KEY, TailNews()).puts


def test_it_may_be_let_go_earlier() -> None:
    state = started()
    keep(state, retention_ms=5)
    roll(state, 10)
    state.counted_ms += 5
    held(state, 1_000)
    commit(state, let_go(state, "events", LEASE))
    assert retain(state, KEY, TailNews()).puts
    assert not let_go(state, "events", LEASE).puts


def test_what_people_order_is_done() -> None:
    state = started()
    roll(state, 10)
    held(state, 1_000)
    commit(state, move_log_start(state, KEY, 5, 10))
    assert state.partitions[KEY].log_start_offset == 5
    assert delete_topic(state, "events", b"", 1).puts


def test_objects_of_a_retired_copy_stay() -> None:
    state = tiered_topic()
    segment_id = published(state)
    held(state, 10_000)
    commit(state, drop_tiered(state, [state.segments[segment_id]], 1))
    assert state.tiers.segments[segment_id].state is TierState.DELETING
    key = state.tiers.segments[segment_id].partition_key
    commit(state, committed(state, key, state.partitions[key].tier_revision))
    state.counted_ms += 9_999
    assert not release(state, segment_id, 10).puts
    state.counted_ms += 1
    assert release(state, segment_id, 10).puts


def test_renewals_never_shorten_and_need_one_that_lasts() -> None:
    state = started()
    with pytest.raises(ConflictError, match="has ended"):
        held(state, 10, renew=True)
    held(state, 1_000)
    asked = StoredHold(LEASE, 1)
    assert not hold(state, "events", asked, is_renewal=True).puts, "that only asks"
    assert state.topics[TOPIC].held_until_ms == state.counted_ms + 1_000
    held(state, 5_000, renew=True)
    assert state.topics[TOPIC].held_until_ms == state.counted_ms + 5_000
    state.counted_ms += 5_000
    with pytest.raises(ConflictError, match="has ended"):
        held(state, 10, renew=True)
    held(state, 10)  # a new one with an old id is a new one


def test_holds_are_few_and_ended_ones_make_room() -> None:
    state = started()
    for number in range(HOLDS_MAX):
        held(state, 100, b"%016d" % number)
    with pytest.raises(InvalidRequestError, match="which is the most"):
        held(state, 100)
    held(state, 200, b"%016d" % 0)
    state.counted_ms += 100
    held(state, 100)
    assert {each.lease_id for each in state.topics[TOPIC].holds} == {b"%016d" % 0, LEASE}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (StoredHold(b"short", 10), "16 bytes"),
        (StoredHold(LEASE + b"x", 10), "16 bytes"),
        (StoredHold(LEASE, 0), "at a time"),
        (StoredHold(LEASE, HOLD_MS_MAX + 1), "at a time"),
        (StoredHold(LEASE, 10, "o" * (OWNER_CHARS_MAX + 1)), "characters"),
    ],
)
def test_malformed_ones_change_nothing(asked: StoredHold, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        hold(started(), "events", asked, is_renewal=False)


def test_a_topic_that_is_not_there() -> None:
    with pytest.raises(UnknownTopicError):
        hold(Cluster(), "nothing", StoredHold(LEASE, 10), is_renewal=False)
    with pytest.raises(UnknownTopicError):
        let_go(Cluster(), "nothing", LEASE)


def test_holds_survive_a_restart() -> None:
    state = started()
    held(state, 1_000)
    record = state.topics[TOPIC]
    assert decode(TopicRecord, encode(record)) == record
