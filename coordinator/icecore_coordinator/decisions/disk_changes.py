"""Decisions about a node that comes with another disk than the one it had. Pure.

Nothing on such a disk counts (R45), so whoever lets it in gives up what was on the one before. That
is done without asking while every segment keeps enough intact copies elsewhere. Else a person must
say so: the disk that holds the last copy may only be unplugged, and who comes with the other one
may be anybody (R67). As long as the registration is refused, nothing changes: the node can come
back with the disk that it had.
"""

from collections.abc import Callable
from dataclasses import replace

from icecore.errors import InvalidRequestError, UnavailableError, WrongClusterError
from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, NodeRecord, updated

HasCopy = Callable[[NodeId, SegmentId], bool]
"""Whether a node, by its id, has not said that its copy of a segment, by its id, is damaged."""


def last_copies(
    state: ClusterState, live: Liveness, node_id: NodeId, has_copy: HasCopy
) -> list[SegmentId]:
    """Segments that may be lost, or stay without a provable end, when this node's disk is gone."""
    found = []
    for segment_id in state.segments_of_node.get(node_id, ()):
        segment = state.segments[segment_id].segment
        if segment.state == SegmentState.SEALED:
            others = [each for each in segment.replicas if each != node_id]
            is_safe = segment.is_tiered or any(has_copy(each, segment_id) for each in others)
        elif segment.state == SegmentState.PREPARED:
            is_safe = True
        else:
            others = [
                each
                for each in segment.replicas
                if each != node_id and has_copy(each, segment_id) and _had(state, each, segment_id)
            ]
            is_safe = _can_be_decided(state, live, segment, others)
        if not is_safe:
            found.append(segment_id)
    return sorted(found)


def _had(state: ClusterState, node_id: NodeId, segment_id: SegmentId) -> bool:
    """Return whether the node's disk is old enough to hold a copy of an unsealed segment."""
    record = state.nodes.get(node_id)
    return record is not None and segment_id >= record.disk_since_segment_id


def _can_be_decided(
    state: ClusterState, live: Liveness, segment: Segment, others: list[NodeId]
) -> bool:
    """Return whether R31 holds once these members answer, and nobody else ever does."""
    if segment.leader in others and state.leader_is_live(segment, live):
        return True
    quorum = segment.settings.quorum
    if len(others) < max(1, len(segment.replicas) - quorum + 1):
        return False
    return segment.settings.min_insync_replicas >= quorum or not set(others).isdisjoint(segment.isr)


def check_disk(state: ClusterState, live: Liveness, node_id: NodeId, has_copy: HasCopy) -> None:
    """To be asked when nothing on the node's disk would count.

    Raises WrongClusterError: that would cost last copies, and no person has accepted it.
    """
    known = state.nodes.get(node_id)
    if known is None or known.is_disk_accepted:
        return
    lost = last_copies(state, live, node_id, has_copy)
    if lost:
        raise WrongClusterError(
            f"node {node_id} comes with another disk than before, or with an older copy of it, and "
            f"the one before holds the last intact copy of {len(lost)} segments, such as "
            f"{lost[:3]}. Start it with that disk. If that is gone for good, say so: "
            f"icecore cluster accept-disk --node-id {node_id}"
        )


def accept_disk(state: ClusterState, live: Liveness, node_id: NodeId) -> Change:
    """A person's word; it holds for one registration.

    Raises:
        InvalidRequestError: there is no such node.
        UnavailableError: it is connected, with a disk that counts.
    """
    known = state.nodes.get(node_id)
    if known is None or not known.incarnation:
        raise InvalidRequestError(f"there is no node {node_id}")
    if live.of(node_id).is_connected:
        raise UnavailableError(f"node {node_id} is up with the disk that is registered")
    if known.is_disk_accepted:
        return Change()
    return Change((updated(known, is_disk_accepted=True),))


def with_new_disk(state: ClusterState, activation: Change) -> Change:
    """The activation of a node nothing of whose disk counts: what it had before is given up."""
    since = SegmentId(next_of(state, "segment_id").next_value)
    return Change(
        tuple(
            replace(each, disk_since_segment_id=since) if isinstance(each, NodeRecord) else each
            for each in activation.puts
        ),
        activation.deletes,
    )
