"""Counts that are kept as records change: unsealed segments by leader, segments by node, and
totals over all segments and partitions.

Pure. A part of ``ClusterState``, which tells it of each record that is put or removed. Whether a
segment needs a recovery, and which node gets the next replica, is asked again and again while very
many segments change; here that costs a look at each node, and at each topic.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from icecore.model import Incarnation, NodeId, Segment, SegmentId, SegmentState


class LedSegments(NamedTuple):
    """Fields that all segments of a group share."""

    topic_id: bytes
    state: SegmentState
    leader: NodeId
    leader_incarnation: Incarnation


@dataclass
class OpenSegments:
    """Segments that are PREPARED, ACTIVE or RECOVERING."""

    groups: dict[LedSegments, dict[SegmentId, None]] = field(default_factory=dict)
    """None is empty."""
    replicas: Counter[NodeId] = field(default_factory=Counter)
    """By node, of all groups."""
    leads: Counter[NodeId] = field(default_factory=Counter)
    """By leader, of all groups."""

    def put(self, segment: Segment) -> None:
        """Its record is stored, and is not SEALED; an older one was removed."""
        self.groups.setdefault(_led(segment), {})[segment.segment_id] = None
        for node_id in segment.replicas:
            self.replicas[node_id] += 1
        self.leads[segment.leader] += 1

    def remove(self, segment: Segment) -> None:
        """Its record is gone; a SEALED one was in no group."""
        if segment.state is SegmentState.SEALED:
            return
        led = _led(segment)
        group = self.groups[led]
        del group[segment.segment_id]
        if not group:
            del self.groups[led]
        for node_id in segment.replicas:
            self.replicas[node_id] -= 1
        self.leads[segment.leader] -= 1


def _led(segment: Segment) -> LedSegments:
    return LedSegments(segment.topic_id, segment.state, segment.leader, segment.leader_incarnation)


# --- totals ---------------------------------------------------------------------------------------

# Counts over all segments and partitions, kept as records change.
#
# Pure. A part of ``ClusterState``, which tells it of each record that is put or removed. Whoever
# watches a cluster asks for them every few seconds; with a million segments a look at each would
# hold up everything else for a second.


K = TypeVar("K")


@dataclass
class Totals:
    """Counts; what counts nothing has no entry."""

    partitions: Counter[bytes] = field(default_factory=Counter)
    """By topic."""
    active: Counter[bytes] = field(default_factory=Counter)
    """ACTIVE segments, by topic: partitions that take appends."""
    sealed_bytes: Counter[bytes] = field(default_factory=Counter)
    """By topic."""
    copies: Counter[int] = field(default_factory=Counter)
    """SEALED segments that nodes are to keep, by how many have a verified copy."""
    out_of_sync: dict[SegmentId, None] = field(default_factory=dict)
    """Unsealed segments with fewer members in sync than their replication factor."""

    def put(self, segment: Segment, *, is_under_replicated: bool) -> None:
        """Its record is stored; an older one was removed."""
        self._count(segment, 1)
        if segment.state is not SegmentState.SEALED and is_under_replicated:
            self.out_of_sync[segment.segment_id] = None

    def remove(self, segment: Segment) -> None:
        """Its record is gone."""
        self._count(segment, -1)
        self.out_of_sync.pop(segment.segment_id, None)

    def count_partition(self, topic_id: bytes, by: int) -> None:
        """There is one more or one less of the topic."""
        _add(self.partitions, topic_id, by)

    def _count(self, segment: Segment, by: int) -> None:
        if segment.state is SegmentState.ACTIVE:
            _add(self.active, segment.topic_id, by)
        elif segment.state is SegmentState.SEALED:
            _add(self.sealed_bytes, segment.topic_id, by * segment.length_bytes)
            if not (segment.is_skipped or segment.is_remote_only):
                _add(self.copies, len(segment.replicas), by)


def _add(counts: Counter[K], key: K, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]
