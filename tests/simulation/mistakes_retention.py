"""Seeded mistakes in what goes of topics; see ``mistakes``."""

from typing import Any
from unittest import mock

from icecore.client.consume.reader import Reader
from icecore.model import SegmentState
from icecore_coordinator.decisions import reclaim_steps, retention
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PartitionKey, PartitionRecord, drop, updated
from icecore_coordinator.work import retention as work
from icecore_coordinator.work.counted_time import CountedTime
from tests.simulation.mistakes import Mistake, patch


def intent_before_start() -> Mistake:
    """R74: what is expired becomes a deletion record, and the log start moves afterwards."""
    delete = retention.delete_below_start

    def wrong(state: ClusterState, key: PartitionKey, now_ms: int) -> Change:
        start = retention.verdict(state, key, retention.TailNews()).start_offset
        gone = retention.below_start(state, key, start)
        return drop(gone, now_ms) if gone else delete(state, key, now_ms)

    return patch(work, "delete_below_start", wrong)


def tails_go() -> Mistake:
    """R74: a partition of which everything expires loses its tail, too."""

    def wrong(state: ClusterState, key: PartitionKey, now_ms: int) -> Change:
        partition = state.partitions.get(key)
        if partition is None or not partition.log_start_offset:
            return Change()
        tail = state.tail(partition)
        gone = [each for each in (tail,) if each and each.segment.state is SegmentState.ACTIVE]
        return drop(gone, now_ms)

    return patch(work, "delete_below_start", wrong)


def wall_clock_counts() -> Mistake:
    """R73: a segment's age is what the coordinator's wall clock says."""

    def count(self: CountedTime) -> None:
        self._ledger.state.counted_ms = self._clock.now_ms()

    return patch(CountedTime, "count", count)


def start_goes_back() -> Mistake:
    """I19: a coordinator forgets the log start of a partition with its next segment."""

    def moved(_: ClusterState, partition: PartitionRecord, offset: int, __: int) -> Change:
        return Change((updated(partition, log_start_offset=offset % 50),))

    return patch(retention, "_moved", moved)


def skipped_in_silence() -> Mistake:
    """R74: a consumer that was overtaken goes on without a word."""

    def skip_to(self: Reader, offset: int) -> None:
        self.fetch_from(offset)

    return patch(Reader, "skip_to", skip_to)


def any_topic_gives_room() -> Mistake:
    """R75: a full disk takes records of a topic that refuses that."""
    return patch(retention, "DELETE_OLDEST", mock.ANY)


def young_segments_go() -> Mistake:
    """R73: whatever is sealed counts as expired."""
    found = retention.verdict

    def wrong(*given: Any) -> retention.RetentionVerdict:
        state, key, tail = given
        verdict = found(state, key, tail)
        topic, partition = state.topics.get(key[0]), state.partitions.get(key)
        if topic is None or partition is None or not topic.retention.has_limits:
            return verdict
        return retention.RetentionVerdict(max(verdict.start_offset, partition.next_base_offset))

    return patch(retention, "verdict", wrong)


def room_is_made_at_once() -> Mistake:
    """R105: a wish for room is met in one step, however much it asks for."""
    return patch(reclaim_steps, "STEP_SHARE", 1)


def room_is_made_for_ever() -> Mistake:
    """R105: nobody looks whether what has gone made room."""
    return patch(reclaim_steps, "_refusal", lambda *_: "")
