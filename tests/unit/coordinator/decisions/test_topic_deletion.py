"""Deleted topics: what is hidden, what is kept and for how long, how they come back or go (R68)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

from icecore import topic_settings
from icecore.errors import (
    InvalidRequestError,
    InvalidTopicNameError,
    NotEnoughReplicasError,
    TopicExistsError,
    UnknownTopicError,
)
from icecore.model import SegmentState
from icecore_coordinator.decisions.segment_changes import Opening, open_tail, prepare, seal
from icecore_coordinator.decisions.topic_changes import (
    add_partitions,
    alter_topic,
    create_topic,
    missing_partitions,
)
from icecore_coordinator.decisions.topic_deletion import (
    continue_delete,
    delete_topic,
    kept_topics,
    spend_grace,
    undelete_topic,
)
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.state.cluster_state import ClusterState, Placement, live_topics
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import Change, TopicRecord
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.recovery.recovery import DELETED_AT_ONCE, Recovery
from icecore_coordinator.work.topic_deletion import STORE_EVERY_MS, TopicDeletions
from icecore_coordinator.work.worker_ports import WorkerPorts
from tests.support.cluster_states import (
    ALL,
    KEY,
    SETTINGS,
    TOPIC,
    Cluster,
    commit,
    prepared_successor,
    sealing,
    segment,
    started,
)
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock

OTHER = b"u" * 16
GRACE_MS = 10 * STORE_EVERY_MS
HOUR_MS = 3_600_000


@pytest.fixture
def state() -> Cluster:
    return started()


def delete(state: Cluster, name: str = "events", now_ms: int = 5, **how: Any) -> None:
    commit(state, delete_topic(state, name, how.pop("topic_id", b""), now_ms, **how))


def undelete(state: Cluster, name: str = "", topic_id: bytes = b"", new: str = "") -> None:
    commit(state, undelete_topic(state, name, topic_id, new)[0])


# --- hidden and back ------------------------------------------------------------------------------


def test_a_deleted_topic_is_hidden_and_keeps_everything(state: Cluster) -> None:
    delete(state)
    with pytest.raises(UnknownTopicError):
        state.topic("events")
    assert live_topics(state) == [] and [each.name for each in kept_topics(state)] == ["events"]
    assert state.assignment(state.segments[1]).topic == ""
    assert list(state.partitions) == [KEY] and list(state.segments) == [1] and not state.deleted
    assert missing_partitions(state) == [] and continue_delete(state, TOPIC, 9) == Change()
    undelete(state, "events")
    assert state.topic("events").topic_id == TOPIC
    assert state.assignment(state.segments[1]).topic == "events"


def test_the_name_is_free_at_once_and_both_topics_exist(state: Cluster) -> None:
    delete(state)
    commit(state, create_topic(state, state.live, "events", OTHER, 1, SETTINGS))
    assert state.topic("events").topic_id == OTHER
    with pytest.raises(TopicExistsError):
        undelete(state, "events")
    with pytest.raises(InvalidTopicNameError):
        undelete(state, "events", new="a/b")
    undelete(state, "events", new="older")
    assert state.topic("older").topic_id == TOPIC and state.topic("events").topic_id == OTHER
    assert state.assignment(state.segments[1]).topic == "older"


def test_of_two_deleted_topics_of_a_name_the_id_says_which(state: Cluster) -> None:
    delete(state)
    commit(state, create_topic(state, state.live, "events", OTHER, 1, SETTINGS))
    delete(state, now_ms=7)
    with pytest.raises(InvalidRequestError, match=f"{OTHER.hex()}, {TOPIC.hex()}"):
        undelete(state, "events")
    with pytest.raises(InvalidRequestError, match="is called 'events'"):
        undelete(state, "flights", topic_id=TOPIC)
    undelete(state, topic_id=TOPIC)
    assert state.topic("events").topic_id == TOPIC
    with pytest.raises(UnknownTopicError):
        undelete(state, topic_id=TOPIC)
    with pytest.raises(UnknownTopicError):
        undelete(state, topic_id=b"x" * 16)


def test_deleting_twice(state: Cluster) -> None:
    delete(state)
    with pytest.raises(UnknownTopicError):
        delete(state)
    with pytest.raises(UnknownTopicError, match="already"):
        delete(state, "", topic_id=TOPIC)
    delete(state, "", topic_id=TOPIC, is_now=True)
    with pytest.raises(UnknownTopicError):
        undelete(state, "events")
    with pytest.raises(UnknownTopicError, match="already"):
        delete(state, "", topic_id=TOPIC, is_now=True)


@pytest.mark.parametrize("is_now", [True, False])
def test_without_a_grace_a_deletion_is_final(state: Cluster, is_now: bool) -> None:
    if not is_now:
        commit(state, alter_topic(state, state.live, "events", SETTINGS, 0))
    delete(state, is_now=is_now)
    assert state.topics[TOPIC].is_deleting and kept_topics(state) == []
    with pytest.raises(UnknownTopicError):
        undelete(state, "events")


def test_a_grace_has_bounds(state: Cluster) -> None:
    too_long_ms = topic_settings.SETTINGS["delete_grace_ms"].high + 1
    with pytest.raises(InvalidRequestError, match="delete_grace_ms is 0 to"):
        create_topic(state, state.live, "new", OTHER, 1, SETTINGS, too_long_ms)
    with pytest.raises(InvalidRequestError, match="delete_grace_ms is 0 to"):
        alter_topic(state, state.live, "events", SETTINGS, too_long_ms)


def test_a_topic_stored_before_there_was_a_grace_has_one() -> None:
    text = encode(TopicRecord(TOPIC, "events", 1, SETTINGS, version=3))
    for name in ("delete_grace_ms", "is_deleted", "deleted_at_ms", "grace_left_ms"):
        head, _, tail = text.partition(f'"{name}":')
        text = head + tail.partition(",")[2]
    assert decode(TopicRecord, text) == TopicRecord(TOPIC, "events", 1, SETTINGS, version=3)


# --- the segments of a deleted topic --------------------------------------------------------------


def test_its_segments_end_without_a_successor(state: Cluster) -> None:
    successor = prepared_successor(state)
    delete(state)
    commit(state, seal(state, state.live, sealing(state), Opening(successor, ALL), 9))
    assert segment(state).state == SegmentState.SEALED
    assert state.partitions[KEY].tail_segment_id == 0
    assert state.partitions[KEY].next_base_offset == 10
    assert successor in state.deleted and 1 not in state.deleted
    undelete(state, "events")
    again = prepared_successor(state)
    commit(state, open_tail(state, state.live, Opening(again, ALL)))
    assert segment(state, again).base_offset == 10


def test_nothing_opens_in_it(state: Cluster) -> None:
    commit(state, seal(state, state.live, sealing(state), None, 9))
    successor = prepared_successor(state)
    delete(state)
    with pytest.raises(UnknownTopicError):
        open_tail(state, state.live, Opening(successor, ALL))
    with pytest.raises(UnknownTopicError):
        prepare(state, [(KEY, Placement((1,), 1))])


def test_an_empty_segment_goes_if_the_next_one_can_begin_without_it(state: Cluster) -> None:
    with pytest.raises(NotEnoughReplicasError):
        seal(state, state.live, sealing(state, 0), None, 9)
    delete(state)
    commit(state, seal(state, state.live, sealing(state, 0), None, 9))
    assert 1 in state.deleted and state.partitions[KEY].tail_segment_id == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_empty_segment_stays_if_nobody_has_what_precedes_it(
    state: Cluster, is_lost: bool
) -> None:
    successor = prepared_successor(state)
    copies = () if is_lost else (1, 2, 3)
    ended = sealing(state, replicas=copies, is_lossy=is_lost)
    commit(state, seal(state, state.live, ended, Opening(successor, ALL), 9))
    delete(state)
    base = segment(state, successor).base_offset
    empty = sealing(
        state, segment_id=successor, version=segment(state, successor).version, end_offset=base
    )
    if is_lost:
        with pytest.raises(NotEnoughReplicasError):
            seal(state, state.live, empty, None, 9)
    else:
        commit(state, seal(state, state.live, empty, None, 9))
        assert successor in state.deleted and 1 in state.segments


def test_they_are_sealed_a_few_at_a_time_after_what_is_used(state: Cluster) -> None:
    grow(state, 41)
    clock = FakeClock()
    unused = cast(Any, None)
    ledger = cast(Any, DirectLedger(state))
    ports = WorkerPorts(
        ledger=ledger,
        calls=unused,
        live=state.live,
        heard=unused,
        copies=CopyReports(),
        alerts=unused,
        clock=clock,
        timing=Timing(),
    )
    recovery = Recovery(ports, unused)
    assert recovery.needed() == []
    delete(state)
    assert len(recovery.needed()) == DELETED_AT_ONCE
    commit(state, create_topic(state, state.live, "events", OTHER, 1, SETTINGS))
    for change in missing_partitions(state):
        commit(state, change)
    place = ((OTHER, 0), Placement((1, 2, 3), 1))
    used = segment_of(commit(state, prepare(state, [place])))
    commit(state, open_tail(state, state.live, Opening(used, ALL)))
    state.live.note(1, state=cast(Any, 2))  # DOWN, and it leads
    assert recovery.needed()[0] == used


def grow(state: Cluster, partitions: int) -> None:
    commit(state, add_partitions(state, "events", partitions))
    for change in missing_partitions(state):
        commit(state, change)
    for number in range(1, partitions):
        place = ((TOPIC, number), Placement((1, 2, 3), 1))
        commit(
            state,
            open_tail(
                state, state.live, Opening(segment_of(commit(state, prepare(state, [place]))), ALL)
            ),
        )


def segment_of(change: Change) -> int:
    return cast(Any, change.puts[-1]).segment.segment_id  # type: ignore[no-any-return]


# --- the grace ------------------------------------------------------------------------------------


class DirectLedger:
    """Decides on a state in memory."""

    def __init__(self, state: Cluster) -> None:
        self.state = state
        self.commits = 0

    async def decide(self, decision: Callable[[ClusterState], Change]) -> Change:
        change = commit(self.state, decision(self.state))
        self.commits += bool(change.puts or change.deletes)
        return change

    async def decide_each(
        self, items: Sequence[Any], decision: Callable[[ClusterState, Any], Change]
    ) -> list[Change]:
        return [await self.decide(partial(_swapped, decision, each)) for each in items]


def _swapped(
    decision: Callable[[ClusterState, Any], Change], item: Any, state: ClusterState
) -> Change:
    return decision(state, item)


class Counted:
    """A deleted topic, and coordinators that count its grace."""

    def __init__(self, state: Cluster) -> None:
        self.state = state
        commit(state, alter_topic(state, state.live, "events", SETTINGS, GRACE_MS))
        self.clock = FakeClock()
        self.ledger = DirectLedger(state)
        self.start()

    def start(self) -> None:
        """Another process takes over."""
        self.deletions = TopicDeletions(cast(Any, self.ledger), CopyReports(), self.clock, Timing())

    async def run(self, duration_ms: int, step_ms: int = 1_000) -> None:
        for _ in range(duration_ms // step_ms):
            self.clock.now += step_ms
            await self.deletions.look()
            await self.deletions.finish(self.deletions.needed())

    @property
    def is_there(self) -> bool:
        return TOPIC in self.state.topics and 1 in self.state.segments


@pytest.fixture
def counted(state: Cluster) -> Counted:
    return Counted(state)


async def test_files_go_when_the_grace_is_over_and_not_before(counted: Counted) -> None:
    await counted.run(GRACE_MS)
    assert counted.is_there
    delete(counted.state)
    await counted.run(GRACE_MS - 1_000)
    assert counted.is_there
    await counted.run(30_000)
    assert not counted.state.topics and not counted.state.partitions
    assert counted.state.deleted[1].holders == (1, 2, 3)


async def test_what_was_counted_is_stored_now_and_then(counted: Counted) -> None:
    delete(counted.state)
    await counted.run(3 * STORE_EVERY_MS + 30_000)
    assert counted.ledger.commits == 3
    left = counted.state.topics[TOPIC].grace_left_ms
    assert GRACE_MS - 3 * STORE_EVERY_MS - 10_000 <= left <= GRACE_MS - 3 * STORE_EVERY_MS


async def test_restarts_make_it_longer_never_shorter(counted: Counted) -> None:
    delete(counted.state)
    for _ in range(2 * GRACE_MS // STORE_EVERY_MS):
        counted.start()
        await counted.run(STORE_EVERY_MS // 2)
    assert counted.is_there, "nobody counted a whole minute"
    for _ in range(2):
        counted.start()
        await counted.run(GRACE_MS // 2 + STORE_EVERY_MS)
    assert not counted.is_there


async def test_time_without_a_coordinator_does_not_count(counted: Counted) -> None:
    delete(counted.state)
    await counted.run(2 * STORE_EVERY_MS)
    counted.clock.now += 100 * GRACE_MS
    counted.start()
    await counted.run(GRACE_MS // 2)
    assert counted.is_there


async def test_a_wall_clock_that_jumps_deletes_nothing(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(counted.state, now_ms=counted.clock.now_ms())
    monkeypatch.setattr(counted.clock, "now_ms", lambda: 1_000 * 24 * HOUR_MS)
    await counted.run(GRACE_MS - 1_000)
    assert counted.is_there


async def test_a_second_deletion_has_a_grace_of_its_own(counted: Counted) -> None:
    delete(counted.state)
    await counted.run(GRACE_MS - 30_000)
    undelete(counted.state, "events")
    delete(counted.state)
    await counted.run(GRACE_MS - 1_000)
    assert counted.is_there


def test_time_that_was_counted_for_an_earlier_deletion_is_not_taken(state: Cluster) -> None:
    delete(state)
    earlier = state.topics[TOPIC].version
    undelete(state, "events")
    assert spend_grace(state, TOPIC, earlier, 100 * 24 * HOUR_MS) == Change()
    delete(state)
    assert spend_grace(state, TOPIC, earlier, 100 * 24 * HOUR_MS) == Change()


async def test_a_deletion_that_is_final_is_finished_by_whoever_looks(counted: Counted) -> None:
    delete(counted.state, is_now=True)
    assert counted.is_there
    await counted.run(1_000)
    assert not counted.is_there


def test_it_goes_in_bounded_steps(state: Cluster) -> None:
    commit(state, add_partitions(state, "events", 250))
    for change in missing_partitions(state):
        commit(state, change)
    delete(state, is_now=True)
    commit(state, create_topic(state, state.live, "events", OTHER, 1, SETTINGS))
    steps = 0
    while (change := continue_delete(state, TOPIC, 3)) != Change():
        assert len(change.keys()) <= 102
        commit(state, change)
        steps += 1
    assert steps >= 3
    assert list(state.topics) == [OTHER] and not state.partitions and not state.segments
    assert state.topic("events").topic_id == OTHER
    assert state.deleted[1].holders == (1, 2, 3)
