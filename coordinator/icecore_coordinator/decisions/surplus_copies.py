"""Decisions about copies of sealed segments beyond the replication factor. Pure.

Who returns after a repair makes one copy too many. So does what never counted: of a follower that
was behind when its leader died, or of a copy that failed. It goes in two changes (R93): by this one
the copy counts no more and its node is to drop it, by another (``node_changes.py``) the node has
shown that it is gone. Until then the node gets no copy of the segment again, so no order to drop
one ever meets a copy that counts. An order that still waits is taken back when the copies that it
relied on count no more.
"""

from collections.abc import Callable, Sequence

from icecore.model import NodeId, SegmentId, SegmentState
from icecore_coordinator.state.cluster_state import ClusterState, is_below_start
from icecore_coordinator.state.records import Change, SegmentRecord, strays, updated_segment
from icecore_replication.digest import current_digest


def drop_surplus(
    state: ClusterState,
    segment_id: SegmentId,
    is_sound: Callable[[NodeId], bool],
    is_up: Callable[[NodeId], bool],
) -> Change:
    """Have a copy dropped of a segment of which there are enough others: one that never counted,
    else one that counts no more from now on.

    Args:
        state: The cluster.
        segment_id: Of the segment.
        is_sound: Whether a node that is listed is up for good and calls its copy intact.
        is_up: Whether a node can be told to drop what does not count.
    """
    record = state.segments.get(segment_id)
    if record is None or not _may_drop(state, record):
        return Change()
    segment = record.segment
    sound = [each for each in segment.replicas if is_sound(each)]
    over = len(sound) - segment.settings.replication_factor
    uncounted = [each for each in strays(record) if is_up(each)]
    if over >= 0 and uncounted:
        return Change((updated_segment(record, {"surplus": (uncounted[0],)}),))
    if over <= 0:
        return Change()
    chosen = max(sound, key=lambda each: _gain(state, sound, each))
    left = tuple(each for each in segment.replicas if each != chosen)
    return Change((updated_segment(record, {"replicas": left, "surplus": (chosen,)}),))


def keep_surplus(
    state: ClusterState, segment_id: SegmentId, counts: Callable[[NodeId], bool]
) -> Change:
    """Take back the order to drop a copy of which there are too few without it by now.

    Who has not obeyed yet, for it is away, then has a copy that is verified and counts again; who
    has is a node like any other.

    Args:
        state: The cluster.
        segment_id: Of the segment.
        counts: Whether the copy of a node that is listed is one to rely on.
    """
    record = state.segments.get(segment_id)
    if record is None or not record.segment.surplus:
        return Change()
    segment = record.segment
    if sum(map(counts, segment.replicas)) >= segment.settings.replication_factor:
        return Change()
    return Change((updated_segment(record, {"surplus": ()}),))


def _may_drop(state: ClusterState, record: SegmentRecord) -> bool:
    """One at a time; none while replicas have not agreed on what they hold."""
    segment = record.segment
    return (
        segment.state == SegmentState.SEALED
        and not segment.surplus
        and bool(current_digest(segment.full_digest))
        and not is_below_start(state, record)
    )


def _gain(
    state: ClusterState, sound: Sequence[NodeId], node_id: NodeId
) -> tuple[bool, int, int, NodeId]:
    """A node that is to be empty first, then by the racks that are left without this copy, then by
    what its node has to keep."""
    racks = {
        state.nodes[each].rack or str(each)
        for each in sound
        if each != node_id and each in state.nodes
    }
    is_drained = node_id in state.nodes and state.nodes[node_id].is_drained
    return (is_drained, len(racks), len(state.segments_of_node.get(node_id, ())), node_id)
