"""The possible losses of late syncs, seen from outside: which replica could have lost unsynced
data, and when.

A segment may be given up (R82), or stay undecided, only if its replicas lost their power, or a sync
of theirs failed, while it was open. A coordinator that calls it lost or undecided without that has
forgotten a copy. Records in a segment that was rightly given up are noted for the checkers.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from icecore.model import Segment, SegmentState
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_replication.recovery import FenceReply, may_decide
from tests.simulation.stored_logs import durable_tail

if TYPE_CHECKING:
    from tests.simulation.cluster import World


class Losses:
    """Follows the records of one world.

    Args:
        world: Its disks and its history.
        note: Told of what must not be.
    """

    def __init__(self, world: "World", note: Callable[[str], None]) -> None:
        self._world = world
        self._note = note
        self._opened_s: dict[int, float] = {}

    def on_commit(self, change: Change, before: Mapping[int, SegmentRecord]) -> None:
        """A change of the metadata is stored."""
        for record in change.puts:
            if isinstance(record, SegmentRecord):
                self._on_put(record, before.get(record.segment.segment_id))
        for record in change.deletes:
            if isinstance(record, SegmentRecord) and record.is_unclean_begun:
                self._given_up(record.segment, record.segment.base_offset)

    def _on_put(self, record: SegmentRecord, old: SegmentRecord | None) -> None:
        segment = record.segment
        if segment.state is SegmentState.ACTIVE:
            self._opened_s.setdefault(segment.segment_id, self._world.loop.time())
        if record.is_unclean_allowed and not (old and old.is_unclean_allowed):
            whole = [each for each in segment.replicas if not self._is_doubtful(each, segment)]
            if whole:
                self._note(f"R82: segment {segment.segment_id} is given up, {whole} have all of it")
        was_sealed = old is not None and old.segment.state is SegmentState.SEALED
        if was_sealed and segment.is_lost and not (old and old.segment.is_lost):
            if whole := [each for each in record.holders if self._has_all(each, segment)]:
                self._note(f"R98: segment {segment.segment_id} is lost, {whole} have all of it")
            self._note_lost(segment)
        if segment.lossy and segment.state is SegmentState.SEALED and not was_sealed:
            self._given_up(segment, segment.end_offset)
        if segment.is_skipped and not was_sealed:
            if segment.is_lost:
                self._note_lost(segment)
            else:
                self._note_span(self._world.history.left_out, segment)

    def _note_lost(self, segment: Segment) -> None:
        self._note_span(self._world.history.unavailable, segment)

    def _note_span(
        self, spans: dict[tuple[str, int], list[tuple[int, float]]], segment: Segment
    ) -> None:
        span = (segment.base_offset, float(segment.end_offset))
        spans.setdefault((segment.topic, segment.partition), []).append(span)

    def _has_all(self, node_id: int, segment: Segment) -> bool:
        """Return whether a node has a whole copy of a sealed segment: in the memory of a process
        that runs, or on its disks."""
        name = f"node-{node_id}"
        node, end_offset = self._world.shells.get(name), segment.end_offset
        replica = node.replicas.get(segment.segment_id) if node is not None else None
        if self._world.is_up(name) and replica is not None and replica.life.counts:
            return replica.log.tail.end_offset >= end_offset
        tail = durable_tail(self._world.hosts[name], segment.segment_id, end_offset)
        return tail is not None and tail.end_offset >= end_offset

    def _given_up(self, segment: Segment, end_offset: int) -> None:
        key = (segment.topic, segment.partition)
        found = self._world.history.given_up.setdefault(key, [])
        found.append((end_offset, self._world.loop.time()))

    def _is_doubtful(self, node_id: int, segment: Segment) -> bool:
        name = f"node-{node_id}"
        since_s = self._opened_s.get(segment.segment_id, 0.0)
        host = self._world.hosts[name]
        return self._world.is_suspect(name) or any(at_s >= since_s for at_s in host.doubtful_s)

    def may_be_undecided(self, segment: Segment) -> bool:
        """Return whether so many of its replicas may be UNKNOWN that nothing decides where it
        ends."""
        replies = {
            node_id: FenceReply(intact=not self._is_doubtful(node_id, segment))
            for node_id in segment.replicas
        }
        return may_decide(replies, segment) is None
