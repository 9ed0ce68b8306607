"""The invariants of retention, checked with each change of the metadata (R73 to R75, I19)."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from icecore.model import SegmentState
from icecore.topic_settings import DELETE_OLDEST, NO_LIMIT
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.left_out import behind_left_out
from icecore_coordinator.state.records import Change, PartitionKey, PartitionRecord, SegmentRecord

if TYPE_CHECKING:
    from tests.simulation.cluster import World

SLACK_S = 0.05
"""Time counts from the decision to seal, which is stored a little later; in whole milliseconds."""


class RetentionInvariants:
    """Knows what really happened when, whatever coordinators remember.

    Args:
        world: Its disks, and what was asked for by hand.
        note: Told of each thing that must not be.
    """

    def __init__(self, world: "World", note: Callable[[str], None]) -> None:
        self._world = world
        self._note = note
        self._starts: dict[PartitionKey, int] = {}
        self._sealed_s: dict[int, float] = {}
        """The time when it was decided that each segment is sealed, by the clock of the world: ages
        count from then, and a coordinator may be paused before it hears that this is stored."""

    def before_commit(self, change: Change, state: ClusterState) -> None:
        """A change is about to be stored. A start that is known by then may be new: it was stored,
        and the coordinator that stored it never heard so."""
        now_s = asyncio.get_running_loop().time()
        for record in (*change.puts, *change.deletes):
            if not isinstance(record, PartitionRecord | SegmentRecord):
                continue
            partition = state.partitions.get(record.partition_key)
            known = self._starts.get(record.partition_key, 0)
            if partition is not None and partition.log_start_offset > known:
                self._check_start(partition, state.segments, state, now_s)
        for record in change.puts:
            if isinstance(record, SegmentRecord) and _is_sealed(record):
                known_record = state.segments.get(record.segment.segment_id)
                if known_record is None or not _is_sealed(known_record):
                    self._sealed_s[record.segment.segment_id] = now_s

    def on_commit(
        self, change: Change, before: Mapping[int, SegmentRecord], state: ClusterState
    ) -> None:
        """A change is stored; ``before`` are the segments of the moment before."""
        now_s = asyncio.get_running_loop().time()
        merged = self._merged(change, before)
        for gone in change.deletes:
            if not isinstance(gone, SegmentRecord) or gone.segment.segment_id in merged:
                continue
            if state.is_live_topic(gone.segment.topic_id):
                self._check_gone(gone, state)
        for record in change.puts:
            if isinstance(record, PartitionRecord):
                self._check_start(record, before, state, now_s)
            elif isinstance(record, SegmentRecord) and _is_sealed(record):
                self._sealed_s.setdefault(record.segment.segment_id, now_s)

    def _merged(self, change: Change, before: Mapping[int, SegmentRecord]) -> set[int]:
        """Segments that go while one comes that has all their offsets, and no others."""
        found: set[int] = set()
        for record in change.puts:
            if not isinstance(record, SegmentRecord) or record.segment.segment_id in before:
                continue
            segment = record.segment
            if not segment.is_remote_only:
                continue
            sources = [
                each.segment
                for each in change.deletes
                if isinstance(each, SegmentRecord)
                and each.partition_key == record.partition_key
                and segment.base_offset <= each.segment.base_offset
                and each.segment.end_offset <= segment.end_offset
            ]
            offsets = sum(each.end_offset - each.base_offset for each in sources)
            if offsets == segment.end_offset - segment.base_offset:
                found.update(each.segment_id for each in sources)
                ages_s = [self._sealed_s.get(each.segment_id, 0.0) for each in sources]
                self._sealed_s[segment.segment_id] = max(ages_s)
        return found

    def _check_gone(self, gone: SegmentRecord, state: ClusterState) -> None:
        """The start that counts is the one of an earlier change."""
        segment, start = gone.segment, self._starts.get(gone.partition_key, 0)
        if segment.state is SegmentState.SEALED and segment.end_offset > start:
            self._note(f"R74: segment {segment.segment_id} goes, the log start is {start}")
        partition = state.partitions.get(gone.partition_key)
        is_tail = partition is not None and partition.tail_segment_id == segment.segment_id
        if is_tail:
            self._note(f"R74: segment {segment.segment_id} goes and is the tail")

    def _check_start(
        self,
        record: PartitionRecord,
        before: Mapping[int, SegmentRecord],
        state: ClusterState,
        now_s: float,
    ) -> None:
        key, start = record.partition_key, record.log_start_offset
        known = self._starts.get(key, 0)
        if start < known:
            self._note(f"I19: the log start of {key[1]} goes back from {known} to {start}")
        self._starts[key] = max(start, known)
        topic = state.topics.get(key[0])
        if start <= known or topic is None:
            return
        kept = topic.retention
        by_hand = self._world.deleted_by_hand.get(topic.name, 0)
        if start <= behind_left_out(state.segments_in(key), by_hand):
            return
        if kept.on_full == DELETE_OLDEST and self._world.faults["disk_full"]:
            return
        if kept.retention_bytes != NO_LIMIT:
            return
        if kept.retention_ms == NO_LIMIT:
            self._note(f"R75: {topic.name} loses records up to {start}, and nothing allows that")
            return
        for each in before.values():
            segment = each.segment
            if each.partition_key != key or not known < segment.end_offset <= start:
                continue
            age_s = now_s - self._sealed_s.get(segment.segment_id, now_s)
            if age_s + SLACK_S < kept.retention_ms / 1000:
                self._note(f"R73: segment {segment.segment_id} goes {age_s:.3f} s after its seal")


def _is_sealed(record: SegmentRecord) -> bool:
    return record.segment.state is SegmentState.SEALED
