"""A sealed segment that was only in memory is lost when each of its nodes has said so (R98)."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import InvalidRequestError
from icecore.model import SegmentState
from icecore.topic_settings import (
    MEMORY_ENGINE,
    RESTART_EMPTY,
    ROCKSDB_ENGINE,
    SEGMENT_ENGINE,
    UNAVAILABLE_ON_LOSS,
)
from icecore_coordinator.decisions.lossy_changes import declare_vanished
from icecore_coordinator.decisions.node_changes import HeldReplica, holds_nothing
from icecore_coordinator.decisions.segment_changes import remove_sealed_replica
from icecore_coordinator.state.records import Change, updated_segment
from tests.support.cluster_states import ALL, Cluster, commit, roll, segment, started


def everybody(node_id: int) -> bool:
    return node_id in ALL


def sealed(**settings: Any) -> Cluster:
    """Segment 1 is SEALED, was in memory, and may be lost."""
    state = started()
    chosen = {"engine": MEMORY_ENGINE, "on_total_loss": RESTART_EMPTY, **settings}
    of_topic = replace(state.segments[1].segment.settings, **chosen)
    commit(state, Change((updated_segment(state.segments[1], {"settings": of_topic}),)))
    assert roll(state) == 1
    return state


def changed(state: Cluster, fields: dict[str, object], **of_record: object) -> None:
    commit(state, Change((updated_segment(state.segments[1], fields, **of_record),)))


def test_it_is_lost_when_all_have_said_that_nothing_is_left() -> None:
    state = sealed()
    commit(state, declare_vanished(state, 1, everybody))
    assert segment(state).is_lost and state.segments[1].holders == (1, 2, 3)
    assert 1 not in state.thin and not state.tiers.untiered.get(segment(state).topic_id)
    assert declare_vanished(state, 1, everybody) == Change(), "once more"


@pytest.mark.parametrize("silent", ALL)
def test_one_that_has_not_spoken_is_enough_to_wait(silent: int) -> None:
    state = sealed()
    with pytest.raises(InvalidRequestError, match=rf"nodes \[{silent}\] may have a copy"):
        declare_vanished(state, 1, lambda node_id: node_id != silent)


def test_the_word_of_a_node_that_is_not_listed_any_more_counts_too() -> None:
    """It was taken off the list as UNKNOWN; its copy may be on a disk that is away."""
    state = sealed()
    for node_id in (1, 2):
        commit(state, remove_sealed_replica(state, 1, node_id))
    assert segment(state).replicas == (3,)
    with pytest.raises(InvalidRequestError, match=r"nodes \[1, 2\] may have a copy"):
        declare_vanished(state, 1, lambda node_id: node_id == 3)
    commit(state, declare_vanished(state, 1, everybody))
    assert segment(state).is_lost


def test_a_node_that_is_to_drop_its_copy_may_still_have_it() -> None:
    state = sealed()
    changed(state, {"replicas": (1, 2), "surplus": (3,)}, holders=(1, 2))
    with pytest.raises(InvalidRequestError, match=r"nodes \[3\] may have a copy"):
        declare_vanished(state, 1, lambda node_id: node_id != 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": SEGMENT_ENGINE},
        {"engine": ROCKSDB_ENGINE},
        {"on_total_loss": UNAVAILABLE_ON_LOSS},
    ],
    ids=lambda each: "-".join(each.values()),
)
def test_what_was_on_disks_or_was_opened_otherwise_waits_for_a_person(
    settings: dict[str, str],
) -> None:
    state = sealed(**settings)
    with pytest.raises(InvalidRequestError, match="waits for a person"):
        declare_vanished(state, 1, everybody)


def test_a_published_copy_has_all_of_it() -> None:
    state = sealed()
    changed(state, {"is_tiered": True})
    assert declare_vanished(state, 1, everybody) == Change()
    assert segment(state).replicas == (1, 2, 3)


def test_what_is_not_sealed_is_recovered_instead() -> None:
    state = sealed()
    tail = state.partitions[state.segments[1].partition_key].tail_segment_id
    assert segment(state, tail).state is SegmentState.ACTIVE
    for segment_id in (tail, 99):
        with pytest.raises(InvalidRequestError, match="not SEALED"):
            declare_vanished(state, segment_id, everybody)


@pytest.mark.parametrize(
    ("held", "is_nothing"),
    [
        (None, True),
        (HeldReplica(1, 0, is_sealed=False, is_intact=True), True),
        (HeldReplica(1, 1, is_sealed=False, is_intact=True), False),
        (HeldReplica(1, 10, is_sealed=True, is_intact=True), False),
        (HeldReplica(1, -1, is_sealed=False, is_intact=False), False),
    ],
    ids=["none", "an empty one", "a part", "all of it", "one that can't be judged"],
)
def test_what_an_inventory_shows(held: HeldReplica | None, is_nothing: bool) -> None:
    inventory = {} if held is None else {held.segment_id: held}
    assert holds_nothing(inventory, segment(sealed())) is is_nothing
