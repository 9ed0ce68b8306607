"""Log starts of a topic that is made of copies in object storage: what was deleted stays so."""

from dataclasses import replace

import pytest

from icecore.errors import InvalidRequestError
from icecore.model import OFFSETS_LEFT_OUT
from icecore.tier_records import TierTopicRecord
from icecore_coordinator.decisions.remote import tier_import
from icecore_coordinator.decisions.remote.imported import OFFSET_MAX
from icecore_coordinator.decisions.topic_deletion import to_mark
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change
from tests.unit.coordinator.decisions.remote.test_tier_import import TOPIC, add, begun, segment


def finish(state: ClusterState, starts: tuple[int, ...], revisions: tuple[int, ...] = ()) -> None:
    while (change := tier_import.missing_records(state, TOPIC.topic_id, revisions, starts)).puts:
        state.apply(change)
    state.apply(tier_import.show(state, TOPIC.topic_id))


def ends(state: ClusterState, partition: int = 0) -> tuple[int, int]:
    """The log start, and the end above which offsets are left out."""
    found = state.partitions[TOPIC.topic_id, partition]
    assert found.next_base_offset >= found.log_start_offset, "I19"
    return found.log_start_offset, found.next_base_offset - OFFSETS_LEFT_OUT


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, (10, 40)), (9, (10, 40)), (25, (25, 40)), (40, (40, 40)), (55, (55, 55))],
)
def test_a_log_starts_where_it_did(start: int, expected: tuple[int, int]) -> None:
    state = begun()
    add(state, segment(7, 30, 40), segment(3, 10, 30))
    finish(state, (start,))
    assert ends(state) == expected


@pytest.mark.parametrize("revisions", [(), (0, 7)])
def test_a_partition_without_records_goes_on_no_lower(revisions: tuple[int, ...]) -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    finish(state, (0, 120, 9), revisions)
    assert ends(state) == (10, 30) and ends(state, 1) == (120 + OFFSETS_LEFT_OUT, 120)
    assert (TOPIC.topic_id, 2) not in state.partitions, "it has two"
    found = state.partitions[TOPIC.topic_id, 1]
    assert (found.tier_revision, found.table_revision) == (revisions or (0, 0))[-1:] * 2


@pytest.mark.parametrize("starts", [(120,), (0, 7)])
def test_the_bucket_hears_of_a_topic_that_comes_back_without_records(
    starts: tuple[int, ...],
) -> None:
    """The cluster before may have said that it is deleted."""
    state = begun()
    finish(state, starts, (3, 3))
    assert [key for _, key in state.tiers.stale_tables] == [0]
    state = begun()
    add(state, segment(3, 10, 30, partition=1))
    finish(state, (0, 20), (3, 3))
    assert [key for _, key in state.tiers.stale_tables] == [1], "its copies are told anyway"


def test_the_step_may_be_repeated() -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    finish(state, (12,))
    assert not tier_import.missing_records(state, TOPIC.topic_id, (), (20, 0)).puts
    assert ends(state) == (12, 30)


@pytest.mark.parametrize("starts", [(-1,), (0, OFFSET_MAX), (1 << 70,)])
def test_what_is_no_log_start(starts: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="an offset that no partition can have"):
        tier_import.begin_import(ClusterState(), replace(TOPIC, log_starts=starts), nodes=1)


def test_a_topic_that_comes_back_is_not_marked_as_deleted() -> None:
    state = begun()
    before = TierTopicRecord(TOPIC.topic_id, is_swept=True, gone_version=9, version=1)
    state.apply(Change((before,)))
    assert not to_mark(state), "its import is under way"
    finish(state, ())
    assert not to_mark(state)
    assert state.tiers.topics[TOPIC.topic_id] == TierTopicRecord(TOPIC.topic_id, version=2)
