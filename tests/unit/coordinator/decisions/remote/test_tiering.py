"""Copies in object storage: who may begin, what publishes, what closes, and how they cross."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import ConflictError, IcecoreError, InvalidRequestError, ObjectStoreError
from icecore.model import Incarnation
from icecore.tier_records import TierRecord, TierState, TierTopicRecord
from icecore.topic_settings import Retention, Tiering
from icecore_coordinator.decisions.lossy_changes import declare_lost
from icecore_coordinator.decisions.remote.tiering import (
    Sweeping,
    begin,
    close,
    committed,
    emptied,
    forget_store,
    gone_topics,
    is_due,
    publish,
    release,
    sweepings,
    swept,
)
from icecore_coordinator.decisions.retention import delete_below_start, move_log_start
from icecore_coordinator.decisions.segment_changes import remove_sealed_replica
from icecore_coordinator.decisions.topic_changes import alter_topic, create_topic
from icecore_coordinator.decisions.topic_deletion import (
    continue_delete,
    delete_topic,
    undelete_topic,
)
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    ClusterRecord,
    updated,
)
from tests.support.cluster_states import (
    KEY,
    SETTINGS,
    TOPIC,
    Cluster,
    commit,
    records,
    roll,
    segment,
)
from tests.support.tier_states import (
    COPY,
    begun,
    published,
    remote,
    sealed,
    tabled,
    tier,
    tier_of,
    tiered_topic,
)

KEEP_MS = 1_000


@pytest.fixture
def state() -> Cluster:
    return tiered_topic()


def drop_first(state: Cluster) -> None:
    """The log begins behind the first segment, whose record goes."""
    commit(state, move_log_start(state, KEY, state.partitions[KEY].log_start_offset + 10, 0))
    commit(state, delete_below_start(state, KEY, 0))


def end_topic(state: Cluster) -> None:
    """Deleted for good."""
    commit(state, delete_topic(state, "events", b"", 0, is_now=True))
    while (change := continue_delete(state, TOPIC, 0)) != Change():
        commit(state, change)


def restarted(state: Cluster) -> ClusterState:
    """Return the state that another coordinator reads."""
    found = ClusterState(counted_ms=state.counted_ms)
    found.load((type(each), encode(each), each.version) for each in records(state))
    return found


# --- who is due -----------------------------------------------------------------------------------


def test_a_sealed_segment_with_an_agreed_digest_is_due(state: Cluster) -> None:
    waiting = roll(state)
    assert not is_due(state, state.segments[waiting]), "nobody agreed on its digest"
    first = sealed(state)
    assert is_due(state, state.segments[first])
    assert not is_due(state, state.segments[state.partitions[KEY].tail_segment_id])


def test_it_is_due_so_long_after_its_seal_in_counted_time() -> None:
    state = tiered_topic(tier_after_ms=5)
    state.counted_ms = 100
    first = sealed(state)
    state.counted_ms = 104
    assert not is_due(state, state.segments[first])
    state.counted_ms = 105
    assert is_due(state, state.segments[first])


def test_what_is_off_deleted_or_below_the_start_is_not(state: Cluster) -> None:
    first = sealed(state)
    tier(state, is_on=False)
    assert not is_due(state, state.segments[first])
    tier(state)
    commit(state, delete_topic(state, "events", b"", 0))
    assert not is_due(state, state.segments[first])
    commit(state, undelete_topic(state, "events", b"")[0])
    assert is_due(state, state.segments[first])
    commit(state, move_log_start(state, KEY, 10, 0))
    assert not is_due(state, state.segments[first])
    with pytest.raises(ConflictError):
        begin(state, first, 1)


def test_only_a_replica_with_an_object_store_is_asked(state: Cluster) -> None:
    first = sealed(state)
    commit(state, remove_sealed_replica(state, first, 3))
    commit(state, Change((updated(state.nodes[2], tier_url=""),)))
    for node_id in (2, 3, 9):
        with pytest.raises(ConflictError, match="no copy"):
            begin(state, first, node_id)
    assert begun(state, first).owner == 1


# --- attempts -------------------------------------------------------------------------------------


def test_an_attempt_has_a_number_that_nobody_ever_had(state: Cluster) -> None:
    first, second = sealed(state), sealed(state)
    numbers = [begun(state, first).attempt, begun(state, second, 2).attempt]
    with pytest.raises(ConflictError):
        begin(state, first, 2)
    for _ in range(3):
        commit(state, close(state, first, tier_of(state, first).attempt))
        again = restarted(state)
        numbers.append(begun(state, first, 2).attempt)
        [tried] = [e for e in begin(again, first, 3).puts if isinstance(e, TierRecord)]
        assert tried.attempt == numbers[-1], "by metadata alone"
    assert len(set(numbers)) == 5
    assert [each.attempt for each in tier_of(state, first).closed_attempts] == [
        numbers[0],
        *numbers[2:-1],
    ]


def test_publishing_is_one_step(state: Cluster) -> None:
    first = sealed(state)
    upload = begun(state, first)
    assert not segment(state, first).is_tiered
    commit(state, publish(state, upload, COPY, 0))
    found = tier_of(state, first)
    assert (found.state, found.attempt, found.copy) == (TierState.PUBLISHED, upload.attempt, COPY)
    assert segment(state, first).is_tiered and segment(state, first).replicas == (1, 2, 3)
    assert state.partitions[KEY].tier_revision == 1
    assert not is_due(state, state.segments[first])
    with pytest.raises(ConflictError, match="closed"):
        publish(state, upload, COPY, 0)
    assert close(state, first, upload.attempt) == Change(), "what is published stays"


def test_a_late_answer_changes_nothing(state: Cluster) -> None:
    first = sealed(state)
    late = begun(state, first)
    commit(state, close(state, first, late.attempt))
    with pytest.raises(ConflictError, match="closed"):
        publish(state, late, COPY, 0)
    now = begun(state, first, 2)
    with pytest.raises(ConflictError, match="closed"):
        publish(state, late, COPY, 0)
    assert close(state, first, late.attempt) == Change(), "closed twice"
    commit(state, publish(state, now, COPY, 0))
    assert tier_of(state, first).attempt == now.attempt


@pytest.mark.parametrize("wrong", [{"owner": 2}, {"owner_incarnation": 10}, {"attempt": 99}])
def test_another_ones_answer_does_not_count(state: Cluster, wrong: dict[str, Any]) -> None:
    upload = begun(state, sealed(state))
    with pytest.raises(ConflictError):
        publish(state, replace(upload, **wrong), COPY, 0)


def test_a_node_that_restarted_can_not_publish(state: Cluster) -> None:
    upload = begun(state, sealed(state))
    commit(state, Change((updated(state.nodes[1], incarnation=Incarnation(99)),)))
    with pytest.raises(ConflictError):
        publish(state, upload, COPY, 0)
    with pytest.raises(ConflictError):
        publish(state, replace(upload, owner_incarnation=Incarnation(99)), COPY, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"manifest_sha256": b"m" * 31},
        {"content_digest": b""},
        {"content_digest": b"c" * 65},
        {"tier_format": "segment"},
        {"records": 11},
        {"length_bytes": 0},
    ],
)
def test_what_is_no_copy_is_refused(state: Cluster, wrong: dict[str, Any]) -> None:
    upload = begun(state, sealed(state))
    with pytest.raises(InvalidRequestError):
        publish(state, upload, replace(COPY, **wrong), 0)


def test_off_begins_nothing_and_ends_nothing(state: Cluster) -> None:
    first, second = published(state), sealed(state)
    upload = begun(state, second)
    tier(state, is_on=False)
    commit(state, publish(state, upload, COPY, 0))
    assert segment(state, first).is_tiered and segment(state, second).is_tiered
    assert not is_due(state, state.segments[sealed(state)])


def test_another_coordinator_finds_the_same(state: Cluster) -> None:
    first, second = published(state), sealed(state)
    begun(state, second)
    again = restarted(state)
    assert again.tiers == state.tiers
    assert list(again.tiers.under_way) == [second] and list(again.tiers.published[KEY]) == [first]
    commit(state, close(state, second, tier_of(state, second).attempt))
    record = tier_of(state, second)
    assert decode(TierRecord, encode(record)) == record and record.closed_attempts
    assert decode(TierTopicRecord, encode(state.tiers.topics[TOPIC])) == state.tiers.topics[TOPIC]


# --- segments that go -----------------------------------------------------------------------------


def test_a_published_copy_is_retired_with_its_segment(state: Cluster) -> None:
    first = published(state)
    commit(state, committed(state, KEY, 1))
    drop_first(state)
    found = tier_of(state, first)
    assert first not in state.segments and found.state is TierState.DELETING
    assert (found.revision, state.partitions[KEY].tier_revision) == (2, 2)
    state.counted_ms = KEEP_MS
    assert release(state, first, KEEP_MS) == Change(), "the table names it"
    commit(state, committed(state, KEY, 2))
    state.counted_ms += KEEP_MS
    assert release(state, first, KEEP_MS + 1) == Change(), "somebody may read it"
    assert not sweepings(state, first, KEEP_MS)
    commit(state, release(state, first, KEEP_MS))
    assert [each.attempt for each in sweepings(state, first, KEEP_MS)] == [found.attempt]


def test_readers_have_their_grace_from_the_table_on(state: Cluster) -> None:
    """Whoever opens the table a moment before its commit was told of the objects then."""
    first, second = tabled(state), tabled(state)
    drop_first(state)
    state.counted_ms = 10 * KEEP_MS  # the table lags
    commit(state, committed(state, KEY, 3))
    assert release(state, first, KEEP_MS) == Change(), "somebody may read it"
    state.counted_ms += KEEP_MS - 1
    commit(state, move_log_start(state, KEY, 20, 0))
    commit(state, delete_below_start(state, KEY, 0))
    commit(state, committed(state, KEY, 4))  # is about another one
    assert release(state, first, KEEP_MS) == release(state, second, KEEP_MS) == Change()
    state.counted_ms += 1
    commit(state, release(state, first, KEEP_MS))
    assert release(state, second, KEEP_MS) == Change()
    state.counted_ms += KEEP_MS
    commit(state, release(state, second, KEEP_MS))
    assert not state.tiers.retiring


def test_a_table_that_let_go_of_much_is_noted_in_several_changes(state: Cluster) -> None:
    for _ in range(230):
        published(state)
    commit(state, move_log_start(state, KEY, 2300, 0))
    while commit(state, delete_below_start(state, KEY, 0)).puts:
        pass
    assert len(state.tiers.retiring) == 230
    state.counted_ms, revision = 10 * KEEP_MS, state.partitions[KEY].tier_revision
    count = 0
    while (change := commit(state, committed(state, KEY, revision))).puts:
        assert len(change.puts) <= RECORDS_PER_CHANGE
        is_stale = state.partitions[KEY].table_revision < revision
        assert is_stale == (KEY in state.tiers.stale_tables), "else a coordinator's end hides it"
        count += 1
    assert count > 2 and not is_stale
    state.counted_ms += KEEP_MS - 1
    retiring = list(state.tiers.retiring)
    assert {release(state, each, KEEP_MS) for each in retiring} == {Change()}
    state.counted_ms += 1
    for each in retiring:
        commit(state, release(state, each, KEEP_MS))
    assert not state.tiers.retiring


def test_retiring_closes_an_upload(state: Cluster) -> None:
    first = sealed(state)
    upload = begun(state, first)
    drop_first(state)
    with pytest.raises(ConflictError):
        publish(state, upload, COPY, 0)
    [sweeping] = sweepings(state, first, KEEP_MS)
    assert sweeping == Sweeping(first, upload.attempt, is_last=False)
    assert state.partitions[KEY].tier_revision == 0, "no table ever named it"


def test_many_are_retired_in_several_changes(state: Cluster) -> None:
    for _ in range(40):
        published(state)
    commit(state, move_log_start(state, KEY, 400, 0))
    change = commit(state, delete_below_start(state, KEY, 0))
    assert len(change.keys()) <= 101 and state.tiers.retiring
    commit(state, delete_below_start(state, KEY, 0))
    assert len(state.tiers.retiring) == 40


def test_a_topic_that_goes_takes_copies_and_table_along(state: Cluster) -> None:
    first, second = published(state), sealed(state)
    upload = begun(state, second)
    end_topic(state)
    commit(state, create_topic(state, state.live, "events", b"n" * 16, 1, SETTINGS))
    with pytest.raises(ConflictError):
        publish(state, upload, COPY, 0)
    assert {tier_of(state, each).state for each in (first, second)} == {TierState.DELETING}
    assert not gone_topics(state), "readers may be at it"
    state.counted_ms = KEEP_MS
    commit(state, release(state, first, KEEP_MS))
    assert gone_topics(state) == [TOPIC]
    commit(state, emptied(state, TOPIC, is_last=False))
    assert not gone_topics(state) and emptied(state, TOPIC, is_last=False) == Change()
    state.counted_ms += KEEP_MS
    for each in (first, second):
        for sweeping in sweepings(state, each, KEEP_MS):
            commit(state, swept(state, sweeping))
    assert not state.tiers.segments and gone_topics(state) == [TOPIC]
    commit(state, emptied(state, TOPIC, is_last=True))
    assert not state.tiers.topics


def test_a_topic_whose_copies_are_gone_already_still_has_a_table(state: Cluster) -> None:
    first = published(state)
    drop_first(state)
    commit(state, committed(state, KEY, 2))
    commit(state, release(state, first, 0))
    [sweeping] = sweepings(state, first, 0)
    assert sweeping.is_last
    commit(state, swept(state, sweeping))
    assert not state.tiers.segments and not gone_topics(state)
    end_topic(state)
    assert gone_topics(state) == [TOPIC]


# --- sweeping -------------------------------------------------------------------------------------


def test_a_closed_attempt_is_swept_at_once_and_when_nobody_can_be_at_it(state: Cluster) -> None:
    first = sealed(state)
    upload = begun(state, first)
    assert sweepings(state, first, KEEP_MS) == []
    commit(state, close(state, first, upload.attempt))
    [early] = sweepings(state, first, KEEP_MS)
    commit(state, swept(state, early))
    assert sweepings(state, first, KEEP_MS) == []
    state.counted_ms = KEEP_MS
    assert swept(state, early) == Change(), "an early sweep that is told twice is not the last one"
    [last] = sweepings(state, first, KEEP_MS)
    assert last.is_last
    commit(state, swept(state, last))
    assert first not in state.tiers.segments and swept(state, last) == Change()


def test_a_sweep_leaves_the_attempt_that_counts(state: Cluster) -> None:
    first = sealed(state)
    commit(state, close(state, first, begun(state, first).attempt))
    [sweeping] = sweepings(state, first, 0)
    now = begun(state, first)
    commit(state, publish(state, now, COPY, 0))
    assert [each.attempt for each in sweepings(state, first, 0)] == [sweeping.attempt]
    commit(state, swept(state, sweeping))
    assert (tier_of(state, first).attempt, tier_of(state, first).closed_attempts) == (
        now.attempt,
        (),
    )
    assert swept(state, Sweeping(first, now.attempt, is_last=True)) == Change()


def test_a_table_that_answers_late_says_nothing_new(state: Cluster) -> None:
    published(state)
    published(state)
    assert list(state.tiers.stale_tables) == [KEY]
    commit(state, committed(state, KEY, 2))
    assert not state.tiers.stale_tables
    assert committed(state, KEY, 1) == Change() and committed(state, KEY, 3) == Change()
    assert committed(state, (TOPIC, 7), 1) == Change()


# --- the object store of the cluster --------------------------------------------------------------


def stored_in(state: Cluster, store_id: bytes) -> None:
    """One more segment is published there."""
    upload = begun(state, sealed(state))
    commit(state, publish(state, upload, COPY, 0, store_id))


def test_the_first_copy_that_counts_says_which_store_it_is(state: Cluster) -> None:
    begun(state, sealed(state))
    assert state.tiers.store_id == b"", "an upload may still fail"
    stored_in(state, b"")
    assert state.tiers.store_id == b"", "a marker of earlier versions has no id"
    for absurd in (b"a", b"a" * 17, b"a" * 1_000_000):
        with pytest.raises(ObjectStoreError, match=f"an id of {len(absurd)} bytes"):
            publish(state, begun(state, sealed(state)), COPY, 0, absurd)
    stored_in(state, b"a" * 16)
    assert state.tiers.store_id == b"a" * 16
    for other in (b"b" * 16, b""):
        with pytest.raises(ObjectStoreError, match=r"the cluster uses 6161.*same tier_url and"):
            publish(state, begun(state, sealed(state)), COPY, 0, other)
    stored_in(state, b"a" * 16)


def test_a_store_is_given_up_by_its_id(state: Cluster) -> None:
    for wrong in (b"", b"a" * 16):
        with pytest.raises(InvalidRequestError, match="no object store yet"):
            forget_store(state, wrong)
    stored_in(state, b"a" * 16)
    for wrong in (b"", b"b" * 16, b"x" * 1_000):
        with pytest.raises(InvalidRequestError, match=r"uses object store 6161.* as store_id"):
            forget_store(state, wrong)
    commit(state, forget_store(state, b"a" * 16))
    assert (state.tiers.store_id, state.tiers.forgotten_store_id, state.tiers.url) == (
        b"",
        b"a" * 16,
        "",
    )
    assert forget_store(state, b"a" * 16) == Change(), "the same again"
    stored_in(state, b"b" * 16)
    assert state.tiers.store_id == b"b" * 16
    with pytest.raises(InvalidRequestError):
        forget_store(state, b"a" * 16)
    assert decode(ClusterRecord, encode(state.cluster)) == state.cluster


# --- lost meanwhile -------------------------------------------------------------------------------


def test_a_copy_that_was_proved_saves_a_segment_that_was_given_up(state: Cluster) -> None:
    first = sealed(state)
    upload = begun(state, first)
    commit(state, declare_lost(state.segments[first], state.live, lambda _: False))
    assert segment(state, first).is_lost
    commit(state, publish(state, upload, COPY, 0))
    assert segment(state, first).is_remote_only and not segment(state, first).is_lost
    assert state.deleted[first].holders == (1, 2, 3)


def test_a_segment_keeps_its_copy_when_other_settings_change(state: Cluster) -> None:
    first = remote(state)
    kept = Retention(retention_ms=5)
    commit(state, alter_topic(state, state.live, "events", SETTINGS, None, kept, Tiering()))
    assert segment(state, first).is_remote_only
    with pytest.raises(IcecoreError):
        begin(state, first, 1)
