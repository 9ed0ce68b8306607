"""Saved positions: compare-and-set of each, bounds, and what goes with a name or a topic."""

from collections.abc import Sequence

import pytest

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    PositionConflictError,
    UnknownTopicError,
)
from icecore_coordinator.decisions import position_changes
from icecore_coordinator.decisions.position_changes import (
    OFFSET_MAX,
    Outcome,
    Save,
    delete_positions,
    save_positions,
)
from icecore_coordinator.decisions.topic_changes import create_topic
from icecore_coordinator.decisions.topic_deletion import (
    continue_delete,
    delete_topic,
    undelete_topic,
)
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import PositionRecord
from tests.support.cluster_states import SETTINGS, TOPIC, Cluster, commit, started

OTHER = b"u" * 16
MINE, THEIRS = 7, 8


@pytest.fixture
def state() -> Cluster:
    return started()


def save(
    state: Cluster,
    *saves: tuple[int, int, int],
    name: str = "job",
    instance: int = MINE,
    topic_id: bytes = TOPIC,
) -> Sequence[Outcome]:
    asked = [Save(*each) for each in saves]
    change, outcomes = save_positions(state, name, instance, topic_id, asked, 5)
    commit(state, change)
    return outcomes


def stored(state: Cluster, name: str = "job") -> dict[int, tuple[int, int]]:
    """Offset and version by partition."""
    records = state.positions.page(name, "", 1000)
    return {each.partition: (each.offset, each.version) for r in records for each in r.positions}


def test_each_save_is_the_next_version(state: Cluster) -> None:
    assert save(state, (0, 10, 0)) == [1]
    assert save(state, (0, 20, 1)) == [2]
    assert save(state, (0, 5, 2)) == [3], "a reader may go back"
    assert stored(state) == {0: (5, 3)}


@pytest.mark.parametrize("version", [0, 2, 1 << 60])
def test_who_was_overtaken_changes_nothing(state: Cluster, version: int) -> None:
    save(state, (0, 10, 0))
    [error] = save(state, (0, 99, version), instance=THEIRS)
    assert isinstance(error, PositionConflictError)
    assert error.metadata == {
        "topic": "events",
        "partition": "0",
        "offset": "10",
        "version": "1",
        "instance": str(MINE),
    }
    assert stored(state) == {0: (10, 1)}


def test_a_version_of_before_a_deletion_counts_no_more(state: Cluster) -> None:
    save(state, (0, 10, 0))
    save(state, (0, 20, 1))
    commit(state, delete_positions(state, "job", b""))
    assert stored(state) == {} and state.positions.count == 0
    [error] = save(state, (0, 30, 2))
    assert isinstance(error, PositionConflictError)
    assert save(state, (0, 1, 0), instance=THEIRS) == [3]
    [error] = save(state, (0, 30, 1))
    assert isinstance(error, PositionConflictError), "the versions went on above"


def test_one_bad_save_spares_its_neighbours(state: Cluster) -> None:
    commit(state, create_topic(state, state.live, "wide", OTHER, 3, SETTINGS))
    outcomes = save(state, (0, 1, 0), (1, 2, 9), (2, OFFSET_MAX + 1, 0), (3, 1, 0), topic_id=OTHER)
    kinds = [each if isinstance(each, int) else type(each) for each in outcomes]
    assert kinds == [1, PositionConflictError, InvalidRequestError, InvalidRequestError]
    assert stored(state) == {0: (1, 1)}


def test_names_do_not_meet(state: Cluster) -> None:
    save(state, (0, 10, 0))
    assert save(state, (0, 20, 0), name="other") == [1]
    assert stored(state) == {0: (10, 1)} and stored(state, "other") == {0: (20, 1)}


@pytest.mark.parametrize("name", ["", "a/b", "x" * 250, "ö", "a\n"])
def test_what_is_no_name_is_refused(state: Cluster, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="position name"):
        save(state, (0, 10, 0), name=name)


def test_positions_and_names_are_bounded(state: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    save(state, (0, 10, 0))
    monkeypatch.setattr(position_changes, "POSITION_NAMES_MAX", 1)
    [error] = save(state, (0, 10, 0), name="other")
    assert isinstance(error, InvalidRequestError) and "at most 1 names" in str(error)
    monkeypatch.setattr(position_changes, "POSITIONS_MAX", 1)
    [error] = save(state, (0, 10, 0), name="other")
    assert isinstance(error, InvalidRequestError) and "at most 1 saved positions" in str(error)
    assert save(state, (0, 11, 1)) == [2], "what is there may move"
    assert stored(state) == {0: (11, 2)} and state.positions.count == 1


def test_a_new_position_without_room_spares_what_is_there(
    state: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(state, create_topic(state, state.live, "wide", OTHER, 5, SETTINGS))
    save(state, (0, 10, 0), (3, 10, 0), topic_id=OTHER)
    monkeypatch.setattr(position_changes, "POSITIONS_MAX", 3)
    asked = (0, 11, 1), (1, 5, 0), (2, 5, 0), (3, 11, 1), (4, 5, 9)
    outcomes = save(state, *asked, topic_id=OTHER)
    kinds = [each if isinstance(each, int) else type(each) for each in outcomes]
    assert kinds == [2, 1, InvalidRequestError, 2, PositionConflictError]
    assert "wide/2" in str(outcomes[2]), "the one that found no room is named"
    assert stored(state) == {0: (11, 2), 1: (5, 1), 3: (11, 2)}


# --- topics that go -------------------------------------------------------------------------------


def test_a_deleted_topic_keeps_its_positions_until_it_goes_for_good(state: Cluster) -> None:
    save(state, (0, 10, 0))
    commit(state, delete_topic(state, "events", b"", 5))
    with pytest.raises(UnknownTopicError):
        save(state, (0, 20, 1))
    commit(state, undelete_topic(state, "events", b"")[0])
    assert save(state, (0, 20, 1)) == [2]
    commit(state, delete_topic(state, "events", b"", 5, is_now=True))
    while commit(state, continue_delete(state, TOPIC, 9)).keys():
        assert state.topics or not state.positions.records
    assert not state.topics and not state.positions.records and state.positions.count == 0


def test_many_positions_go_in_bounded_steps(state: Cluster) -> None:
    for number in range(250):
        save(state, (0, 10, 0), name=f"job{number}")
    commit(state, delete_topic(state, "events", b"", 5, is_now=True))
    steps = 0
    while keys := commit(state, continue_delete(state, TOPIC, 9)).keys():
        steps += 1
        assert len(keys) <= 128
    assert steps > 2 and not state.topics and not state.positions.of_name


def test_a_topic_made_again_has_none(state: Cluster) -> None:
    save(state, (0, 10, 0))
    commit(state, delete_topic(state, "events", b"", 5))
    commit(state, create_topic(state, state.live, "events", OTHER, 1, SETTINGS))
    assert save(state, (0, 3, 0), topic_id=OTHER) == [1]
    [old, new] = state.positions.page("job", "", 9)
    assert (old.topic_id, old.positions[0].offset) == (TOPIC, 10)
    assert (new.topic_id, new.positions[0].offset) == (OTHER, 3)


# --- records and pages ----------------------------------------------------------------------------


def test_a_record_is_read_back_as_it_was(state: Cluster) -> None:
    save(state, (0, OFFSET_MAX, 0), instance=(1 << 64) - 1)
    [record] = state.positions.records.values()
    assert decode(PositionRecord, encode(record)) == record


def test_pages_go_on_behind_the_last_key(state: Cluster) -> None:
    for number in range(5):
        save(state, (0, number, 0), name=f"job{number}")
    seen: list[str] = []
    after = ""
    while page := state.positions.page("", after, 2):
        seen += [each.name for each in page]
        after = page[-1].key
    assert seen == [f"job{number}" for number in range(5)]
    commit(state, delete_positions(state, "job3", TOPIC))
    save(state, (0, 9, 0), name="a")
    assert [each.name for each in state.positions.page("", "", 9)] == [
        *("a", "job0", "job1", "job2", "job4"),
    ]
    assert not delete_positions(state, "job4", OTHER).deletes, "of another topic"


def test_errors_of_a_change_are_ours(state: Cluster) -> None:
    with pytest.raises(IcecoreError):
        save(state, (0, 10, 0), topic_id=b"x" * 16)
    assert not state.positions.records
