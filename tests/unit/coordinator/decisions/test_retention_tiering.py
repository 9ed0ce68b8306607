"""Log starts that object storage has to be told, since no copy there begins at them (R99)."""

import pytest

from icecore.topic_settings import Retention
from icecore_coordinator.decisions.remote.tiering import committed
from icecore_coordinator.decisions.retention import (
    TailNews,
    delete_below_start,
    move_log_start,
    retain,
)
from icecore_coordinator.decisions.topic_changes import alter_topic
from icecore_coordinator.state.cluster_state import stored_version
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import PartitionRecord
from tests.support.cluster_states import KEY, SETTINGS, TOPIC, Cluster, commit, started
from tests.support.tier_states import published, sealed, tiered_topic


def move(state: Cluster, offset: int) -> tuple[int, bool]:
    """Return how much the version grew, and whether an order is due by the move alone."""
    commit(state, committed(state, KEY, state.partitions[KEY].tier_revision))
    before = stored_version(state, state.topics[TOPIC])
    commit(state, move_log_start(state, KEY, offset, offset))
    grown = stored_version(state, state.topics[TOPIC]) - before
    return grown, KEY in state.tiers.stale_tables


@pytest.fixture
def state() -> Cluster:
    """Segments of ten offsets each: two are published, one is on nodes, and the tail."""
    made = tiered_topic()
    published(made)
    published(made)
    sealed(made)
    return made


def test_a_start_within_a_segment_is_due_at_once(state: Cluster) -> None:
    assert move(state, 3) == (1, True)
    assert move(state, 3) == (0, False), "it is there already"
    assert move(state, 14) == (1, True)
    assert move(state, 25) == (1, True)
    assert move(state, 37) == (1, True), "within the tail, too"
    record = state.partitions[KEY]
    assert record.start_version == 4 and decode(PartitionRecord, encode(record)) == record


def test_where_a_copy_begins_the_table_says_it(state: Cluster) -> None:
    assert move(state, 10) == (0, False)
    commit(state, delete_below_start(state, KEY, 0))
    assert [*state.tiers.stale_tables] == [KEY], "the order that takes out what lies below"


@pytest.mark.parametrize("offset", [20, 30])
def test_where_a_segment_of_nodes_begins_the_next_order_says_it(
    state: Cluster, offset: int
) -> None:
    assert move(state, offset) == (1, False)
    commit(state, delete_below_start(state, KEY, 0))
    assert [*state.tiers.stale_tables] == [KEY]


def test_retention_counts_likewise(state: Cluster) -> None:
    commit(state, alter_topic(state, state.live, "events", SETTINGS, None, Retention(1)))
    state.counted_ms += 10
    change = commit(state, retain(state, KEY, TailNews()))
    [record] = change.puts
    assert isinstance(record, PartitionRecord)
    assert (record.log_start_offset, record.start_version) == (30, 1)


def test_a_topic_that_was_never_tiered_tells_nobody() -> None:
    state = started()
    sealed(state)
    assert move(state, 5) == (0, False)
