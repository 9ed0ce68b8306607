"""Unsealed segments by who leads them, and how many of them each node has.

Pure. A part of ``ClusterState``, which tells it of each record that is put or removed. Whether a
segment needs a recovery, and which node gets the next replica, is asked again and again while very
many segments change; here that costs a look at each node, and at each topic.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from icecore.model import Incarnation, NodeId, Segment, SegmentId, SegmentState


class Led(NamedTuple):
    """Fields that all segments of a group share."""

    topic_id: bytes
    state: SegmentState
    leader: NodeId
    leader_incarnation: Incarnation


@dataclass
class OpenSegments:
    """Segments that are PREPARED, ACTIVE or RECOVERING."""

    groups: dict[Led, dict[SegmentId, None]] = field(default_factory=dict)
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


def _led(segment: Segment) -> Led:
    return Led(segment.topic_id, segment.state, segment.leader, segment.leader_incarnation)
