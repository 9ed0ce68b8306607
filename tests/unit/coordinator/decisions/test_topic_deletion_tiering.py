"""Deletions of topics that object storage has copies of: it is told each of them (R99)."""

from icecore.tier_records import TierTopicRecord
from icecore.topic_settings import Tiering
from icecore_coordinator.decisions.remote.tiering import committed, emptied
from icecore_coordinator.decisions.topic_deletion import (
    continue_delete,
    delete_topic,
    marked,
    spend_grace,
    to_mark,
    undelete_topic,
)
from icecore_coordinator.state.cluster_state import stored_version
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import Change, PartitionRecord
from tests.support.cluster_states import KEY, TOPIC, Cluster, commit, started
from tests.support.tier_states import begun, published, sealed, tabled, tiered_topic

HOUR_MS = 3_600_000


def version(state: Cluster) -> int:
    return stored_version(state, state.topics[TOPIC])


def told(state: Cluster) -> None:
    """The table is brought up to date, and the settings come with it."""
    commit(state, committed(state, KEY, state.partitions[KEY].tier_revision))


def gone_version(state: Cluster) -> int:
    return state.tiers.topics[TOPIC].gone_version


def test_a_deletion_and_its_end_are_due_like_an_alteration() -> None:
    state = tiered_topic()
    tabled(state)
    first = version(state)
    commit(state, delete_topic(state, "events", b"", 5))
    assert [*state.tiers.stale_tables] == [KEY] and version(state) == first + 1
    told(state)
    commit(state, undelete_topic(state, "events", b"", "older")[0])
    assert [*state.tiers.stale_tables] == [KEY] and version(state) == first + 2
    assert not to_mark(state)


def test_a_topic_without_copies_is_told_if_something_may_lie_there() -> None:
    state = tiered_topic()
    commit(state, delete_topic(state, "events", b"", 5))
    assert not state.tiers.stale_tables, "nothing ever lay there"
    commit(state, undelete_topic(state, "events", b"")[0])
    begun(state, sealed(state))
    commit(state, delete_topic(state, "events", b"", 5))
    assert [*state.tiers.stale_tables] == [KEY]


def test_a_topic_that_goes_for_good_is_marked_by_a_call_of_its_own() -> None:
    state = tiered_topic()
    tabled(state)
    before = version(state)
    commit(state, delete_topic(state, "events", b"", 5, is_now=True))
    assert not state.tiers.stale_tables, "its partitions go before an order came"
    assert [each.gone_version for each in to_mark(state)] == [before + 1]
    record = state.tiers.topics[TOPIC]
    assert decode(TierTopicRecord, encode(record)) == record
    while (change := continue_delete(state, TOPIC, 0)) != Change():
        commit(state, change)
    [asked] = to_mark(state)
    commit(state, marked(state, asked))
    assert not to_mark(state) and gone_version(state) == 0
    assert marked(state, asked) == Change(), "an answer that comes again"


def test_what_a_deletion_counts_is_above_all_that_was_told_before() -> None:
    state = tiered_topic()
    tabled(state)
    moved = state.partitions[KEY]
    commit(
        state,
        Change(
            (
                PartitionRecord(
                    **{
                        **{name: getattr(moved, name) for name in PartitionRecord.__slots__},
                        "start_version": 41,
                        "version": moved.version + 1,
                    }
                ),
            )
        ),
    )
    before = version(state)
    assert before > 41
    commit(state, delete_topic(state, "events", b"", 5, is_now=True))
    assert gone_version(state) == before + 1


def test_a_grace_that_ends_is_told_too_if_the_store_was_away_all_the_time() -> None:
    state = tiered_topic()
    published(state)
    commit(state, delete_topic(state, "events", b"", 5))
    deleted = state.topics[TOPIC]
    commit(state, spend_grace(state, TOPIC, deleted.version, 1))
    assert gone_version(state) == 0
    commit(state, spend_grace(state, TOPIC, deleted.version + 1, 10**9 * HOUR_MS))
    assert state.topics[TOPIC].is_deleting and gone_version(state) == version(state)
    state = tiered_topic()
    published(state)
    commit(state, delete_topic(state, "events", b"", 5))
    commit(state, delete_topic(state, "", TOPIC, 9, is_now=True))
    assert gone_version(state) == version(state)
    assert state.topics[TOPIC].deleted_at_ms == 5


def test_a_prefix_that_is_empty_needs_no_mark() -> None:
    state = tiered_topic()
    tabled(state)
    commit(state, delete_topic(state, "events", b"", 5, is_now=True))
    while (change := continue_delete(state, TOPIC, 0)) != Change():
        commit(state, change)
    commit(state, emptied(state, TOPIC, is_last=False))
    assert state.tiers.topics[TOPIC].is_swept and not to_mark(state)
    assert emptied(state, TOPIC, is_last=False) == Change()


def test_a_topic_that_was_never_tiered_has_no_mark() -> None:
    state = started()
    assert state.topics[TOPIC].tiering == Tiering()
    commit(state, delete_topic(state, "events", b"", 5, is_now=True))
    assert not to_mark(state) and not state.tiers.topics
