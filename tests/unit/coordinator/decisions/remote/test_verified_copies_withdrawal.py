"""A published copy whose objects are missing is taken back while nodes have the records (R100)."""

import pytest

from icecore.errors import ConflictError
from icecore.tier_records import TierState
from icecore_coordinator.decisions.remote.tiering import (
    close,
    committed,
    drop_tiered,
    forget_store,
    is_due,
    publish,
    sweepings,
    swept,
)
from icecore_coordinator.decisions.remote.verified_copies import (
    CLOSED_MAX,
    awaits_copy,
    doubtful_copies,
    drop_copies,
    forgotten_copies,
    held_attempt,
    withdraw,
)
from icecore_coordinator.decisions.topic_deletion import delete_topic
from icecore_coordinator.state.records import Change, StoredHold, updated
from tests.support.cluster_states import KEY, TOPIC, Cluster, commit, segment
from tests.support.tier_states import (
    COPY,
    begun,
    published,
    remote,
    sealed,
    seen,
    tabled,
    tier,
    tier_of,
    tiered_topic,
)

GRACE_MS = 500
KEEP_MS = 10_000
STORE = b"s" * 16


def anybody(_: int) -> bool:
    return True


def taken_back(state: Cluster, segment_id: int) -> int:
    """Its attempt is withdrawn: the number of that."""
    attempt = tier_of(state, segment_id).attempt
    commit(state, withdraw(state, segment_id, attempt, anybody))
    return attempt


def held(state: Cluster, segment_id: int) -> int:
    return held_attempt(state, tier_of(state, segment_id), GRACE_MS)


def in_table(state: Cluster) -> None:
    commit(state, committed(state, KEY, state.partitions[KEY].tier_revision))


def test_it_is_uploaded_again_as_another_attempt() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    revision = state.partitions[KEY].tier_revision
    first = taken_back(state, segment_id)
    found = tier_of(state, segment_id)
    assert (found.state, found.attempt, found.withdrawn) == (TierState.UPLOADING, 0, first)
    assert [each.attempt for each in found.closed_attempts] == [first]
    assert not segment(state, segment_id).is_tiered and segment(state, segment_id).replicas
    assert state.partitions[KEY].tier_revision == revision + 1
    assert is_due(state, state.segments[segment_id]) and segment_id in state.tiers.untiered[TOPIC]
    upload = begun(state, segment_id, owner=2)
    assert upload.attempt > first
    commit(state, publish(state, upload, COPY, 0))
    again = tier_of(state, segment_id)
    assert (again.state, again.attempt) == (TierState.PUBLISHED, upload.attempt)
    assert segment(state, segment_id).is_tiered and not state.tiers.withdrawn


def test_what_comes_late_or_twice_changes_nothing() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    upload = begun(state, sealed(state))
    first = taken_back(state, segment_id)
    assert withdraw(state, segment_id, first, anybody) == Change(), "twice"
    second = begun(state, segment_id)
    assert withdraw(state, segment_id, first, anybody) == Change(), "while it is uploaded"
    assert withdraw(state, segment_id, second.attempt, anybody) == Change(), "not published yet"
    commit(state, publish(state, second, COPY, 0))
    assert withdraw(state, segment_id, first, anybody) == Change(), "another one is published"
    assert withdraw(state, upload.segment_id, upload.attempt, anybody) == Change()
    assert withdraw(state, 99, 1, anybody) == Change()


def test_the_upload_that_was_taken_back_cannot_publish_again() -> None:
    state = tiered_topic()
    segment_id = sealed(state)
    upload = begun(state, segment_id)
    commit(state, publish(state, upload, COPY, 0))
    taken_back(state, segment_id)
    with pytest.raises(ConflictError, match="is closed"):
        publish(state, upload, COPY, 0)


def test_without_a_copy_on_a_node_it_stays_for_a_person() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    attempt = tier_of(state, segment_id).attempt
    with pytest.raises(ConflictError, match="no node has a copy"):
        withdraw(state, segment_id, attempt, lambda _: False)
    asked: list[int] = []
    with pytest.raises(ConflictError, match="no node has a copy"):
        withdraw(state, segment_id, attempt, asked.append)  # type: ignore[arg-type]
    assert asked == [1, 2, 3]
    commit(state, withdraw(state, segment_id, attempt, lambda node_id: node_id == 3))
    gone = remote(state)
    with pytest.raises(ConflictError, match="no node has a copy"):
        withdraw(state, gone, tier_of(state, gone).attempt, anybody)


@pytest.mark.parametrize("why", ["off", "deleted", "below the start"])
def test_what_would_not_be_uploaded_again_stays(why: str) -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    if why == "off":
        tier(state, is_on=False)
    elif why == "deleted":
        commit(state, delete_topic(state, "events", b"", 0))
    else:
        commit(state, Change((updated(state.partitions[KEY], log_start_offset=10),)))
    with pytest.raises(ConflictError, match="not to be in object storage"):
        withdraw(state, segment_id, tier_of(state, segment_id).attempt, anybody)


def test_it_is_not_done_for_ever() -> None:
    state = tiered_topic()
    segment_id = published(state)
    for _ in range(CLOSED_MAX):
        taken_back(state, segment_id)
        commit(state, publish(state, begun(state, segment_id), COPY, 0))
    with pytest.raises(ConflictError, match="did not stay"):
        taken_back(state, segment_id)
    in_table(state)
    state.counted_ms += KEEP_MS
    for each in sweepings(state, segment_id, KEEP_MS):
        commit(state, swept(state, each))
    taken_back(state, segment_id)


def test_the_table_waits_for_the_next_copy() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    assert not awaits_copy(state, KEY)
    taken_back(state, segment_id)
    assert awaits_copy(state, KEY) and KEY in state.tiers.stale_tables
    commit(state, publish(state, begun(state, segment_id), COPY, 0))
    assert not awaits_copy(state, KEY)


@pytest.mark.parametrize("what", ["tier=off", "retention"])
def test_the_table_waits_for_nothing_that_will_not_come(what: str) -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    taken_back(state, segment_id)
    if what == "tier=off":
        tier(state, is_on=False)
    else:
        commit(state, Change((updated(state.partitions[KEY], log_start_offset=10),)))
    assert not awaits_copy(state, KEY)


def test_what_is_left_of_it_stays_until_the_table_has_the_next_one_and_readers_are_done() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    first = taken_back(state, segment_id)
    state.counted_ms += 10 * GRACE_MS
    assert held(state, segment_id) == first, "it may be the last one"
    assert sweepings(state, segment_id, KEEP_MS, first) == []
    commit(state, publish(state, begun(state, segment_id), COPY, 0))
    state.counted_ms += 10 * GRACE_MS
    assert held(state, segment_id) == first, "the table may name it"
    in_table(state)
    assert held(state, segment_id) == 0
    [due] = sweepings(state, segment_id, KEEP_MS, 0)
    assert due.attempt == first


def test_what_is_left_of_a_segment_that_goes_stays_until_the_table_lacks_it() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    first = taken_back(state, segment_id)
    commit(state, drop_tiered(state, [state.segments[segment_id]], 0))
    assert tier_of(state, segment_id).state is TierState.DELETING
    assert not awaits_copy(state, KEY) and not state.tiers.withdrawn
    state.counted_ms += 10 * GRACE_MS
    assert held(state, segment_id) == first
    in_table(state)
    assert held(state, segment_id) == 0
    state.counted_ms += KEEP_MS
    for each in sweepings(state, segment_id, KEEP_MS):
        commit(state, swept(state, each))
    assert segment_id not in state.tiers.segments


def test_a_held_topic_keeps_what_is_left_for_its_readers() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    first = taken_back(state, segment_id)
    commit(state, publish(state, begun(state, segment_id), COPY, 0))
    in_table(state)
    until_ms = state.counted_ms + 10 * GRACE_MS
    hold = StoredHold(b"h" * 16, until_ms)
    commit(state, Change((updated(state.topics[TOPIC], holds=(hold,)),)))
    state.counted_ms = until_ms - 1
    assert held(state, segment_id) == first
    state.counted_ms = until_ms
    assert held(state, segment_id) == 0


def test_a_reader_has_its_grace() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    first = taken_back(state, segment_id)
    commit(state, publish(state, begun(state, segment_id), COPY, 0))
    in_table(state)
    assert held(state, segment_id) == first
    state.counted_ms += GRACE_MS
    assert held(state, segment_id) == 0


def test_attempts_that_failed_since_are_swept_at_once() -> None:
    state = tiered_topic()
    segment_id = tabled(state)
    first = taken_back(state, segment_id)
    failed = begun(state, segment_id)
    closed = tier_of(state, segment_id)
    assert closed.attempt == failed.attempt > first
    commit(state, close(state, segment_id, failed.attempt))
    assert [each.attempt for each in sweepings(state, segment_id, KEEP_MS, first)] == [
        failed.attempt
    ]


def test_copies_in_a_store_that_was_given_up() -> None:
    state = tiered_topic()
    assert state.cluster is not None
    commit(state, Change((updated(state.cluster, store_id=STORE),)))
    first, gone = tabled_in(state), remote_in(state)
    assert list(forgotten_copies(state, lambda *_: True)) == []
    commit(state, forget_store(state, STORE))
    assert list(forgotten_copies(state, lambda *_: True)) == [
        (first, tier_of(state, first).attempt)
    ]
    assert gone not in dict(forgotten_copies(state, lambda *_: True))
    assert list(forgotten_copies(state, lambda node_id, _: node_id > 3)) == []
    tier(state, is_on=False)
    assert list(forgotten_copies(state, lambda *_: True)) == []
    tier(state)
    taken_back(state, first)
    assert list(forgotten_copies(state, lambda *_: True)) == []


def tabled_in(state: Cluster) -> int:
    segment_id = sealed(state)
    commit(state, publish(state, begun(state, segment_id), COPY, 0, STORE))
    in_table(state)
    return segment_id


def remote_in(state: Cluster) -> int:
    segment_id = tabled_in(state)
    commit(state, drop_copies(state, segment_id, seen(state), 0))
    return segment_id


def test_those_that_the_table_lacks_are_looked_for_first() -> None:
    state = tiered_topic()
    named = tabled(state)
    fresh = published(state)
    assert doubtful_copies(state, KEY) == [fresh, named]
    assert doubtful_copies(state, (b"x" * 16, 0)) == []
