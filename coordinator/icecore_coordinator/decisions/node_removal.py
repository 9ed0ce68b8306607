"""Decisions about nodes that are emptied or go for good, and about room for new ones. Pure.

A node's record may go once no other record names the node (R106). What a dead node was to hold or
to delete is given up before, by a person who says that its disk is gone. Whoever comes with its id
later is a new node: nothing on its disk counts, and it gets an incarnation that the id never had.
"""

from dataclasses import dataclass

from icecore.errors import ConflictError, InvalidRequestError
from icecore.model import NodeId, NodeState, SegmentId, SegmentState
from icecore_coordinator.decisions.disk_changes import HasCopy, last_copies
from icecore_coordinator.decisions.node_changes import INCARNATIONS, confirm_deletion
from icecore_coordinator.decisions.segment_changes import remove_sealed_replica
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    eligible_nodes,
    live_topics,
    next_of,
)
from icecore_coordinator.state.limits import NODES_MAX
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    NodeRecord,
    updated,
    updated_segment,
)


def drain_node(
    state: ClusterState, live: Liveness, node_id: NodeId, *, allow_fewer_copies: bool
) -> Change:
    """Have a node emptied (R115). Other work finds that by looking.

    Raises InvalidRequestError: there is no such node, or too few others are left.
    """
    known = _registered(state, node_id)
    if known.is_drained:
        return Change()
    others = sum(each.node_id != node_id for each in eligible_nodes(state, live))
    needed = max((each.settings.replication_factor for each in live_topics(state)), default=1)
    least = 1 if allow_fewer_copies else needed
    if others < least:
        raise InvalidRequestError(
            f"{others} other nodes can take what node {node_id} has, and there are "
            f"topics with {needed} copies: add a node first, or allow fewer copies"
        )
    return Change((updated(known, is_drained=True),))


def undrain_node(state: ClusterState, node_id: NodeId) -> Change:
    """Let a node get new segments again.

    Raises InvalidRequestError: there is no such node.
    """
    known = _registered(state, node_id)
    return Change((updated(known, is_drained=False),)) if known.is_drained else Change()


def _registered(state: ClusterState, node_id: NodeId) -> NodeRecord:
    known = state.nodes.get(node_id)
    if known is None or not known.incarnation:
        raise InvalidRequestError(f"there is no node {node_id}")
    return known


@dataclass(frozen=True, slots=True)
class NamedIn:
    """Numbers of the records that name a node."""

    unsealed: int
    """Segments that are not SEALED, with the node as a replica."""
    sealed: int
    """The same, SEALED."""
    held: int
    """Segments and deletion records with the node as a holder: it may have bytes to delete."""
    uploads: int
    """Copies into object storage that it was asked for, and that have not ended."""

    @property
    def is_nothing(self) -> bool:
        """Return whether the node's record may go."""
        return not (self.unsealed or self.sealed or self.held or self.uploads)


def named_in(state: ClusterState, node_id: NodeId) -> NamedIn:
    """Count the records that name a node."""
    listed = state.segments_of_node.get(node_id, {})
    unsealed = sum(each in state.unsealed for each in listed)
    under_way = (state.tiers.segments[each] for each in state.tiers.under_way)
    return NamedIn(
        unsealed=unsealed,
        sealed=len(listed) - unsealed,
        held=state.held[node_id],
        uploads=sum(each.owner == node_id for each in under_way),
    )


def remove_node(state: ClusterState, live: Liveness, node_id: NodeId) -> Change:
    """Take a node out of the cluster.

    Raises InvalidRequestError: there is no such node, it is up, or a record names it.
    """
    known = down_node(state, live, node_id)
    named = named_in(state, node_id)
    if not named.is_nothing:
        raise InvalidRequestError(_why_named(node_id, named))
    return _without(state, known)


def down_node(state: ClusterState, live: Liveness, node_id: NodeId) -> NodeRecord:
    """Return the record of a node that is down. Raises InvalidRequestError."""
    known = state.nodes.get(node_id)
    if known is None:
        raise InvalidRequestError(f"there is no node {node_id}")
    if not _is_down(live, node_id):
        raise InvalidRequestError(
            f"node {node_id} is {live.state_of(node_id).name}, or starts: stop it, and wait until "
            "icecore cluster describe shows it as down"
        )
    return known


def _is_down(live: Liveness, node_id: NodeId) -> bool:
    status = live.of(node_id)
    return status.state is NodeState.DOWN and not status.is_connected


def _why_named(node_id: NodeId, named: NamedIn) -> str:
    """Tell what keeps a node from being forgotten, and what to do: the worst first."""
    if named.unsealed:
        return (
            f"node {node_id} is a replica of {named.unsealed} segments that are not sealed. They "
            "go on without it when enough other nodes are up: start another node, or end them with "
            "icecore topic roll, and try again"
        )
    if named.sealed or named.held:
        return (
            f"node {node_id} is a replica of {named.sealed} sealed segments, and "
            f"{named.held} segments may have bytes there that it is to delete when it is back. "
            "Start it again. If its disk is gone for good, say so: "
            f"icecore node remove {node_id} --disk-gone"
        )
    return (
        f"node {node_id} was asked for {named.uploads} copies into object storage. They end by "
        "themselves: try again in some minutes"
    )


def forget_unproved(state: ClusterState) -> Change:
    """Forget nodes of which earlier versions stored a record when they only registered; so many as
    fit in a change."""
    unproved = [each for each in state.nodes.values() if not each.incarnation]
    gone = [each for each in unproved if named_in(state, each.node_id).is_nothing]
    return _without(state, *gone[: RECORDS_PER_CHANGE - 1])


def _without(state: ClusterState, *known: NodeRecord) -> Change:
    """Their incarnations are never given out again to these ids."""
    counter = next_of(state, INCARNATIONS)
    floor = max((each.issued_incarnation + 1 for each in known), default=0)
    if counter.next_value >= floor:
        return Change(deletes=known)
    return Change((updated(counter, next_value=floor),), known)


# --- room for new nodes ---------------------------------------------------------------------------


def room_for_node(state: ClusterState, live: Liveness, node_id: NodeId) -> Change:
    """Make room for the record of a node (R107): where there are too many, the one goes that is
    down for longest of those that no other record names.

    Raises InvalidRequestError: there is no such node.
    """
    if node_id in state.nodes or len(state.nodes) < NODES_MAX:
        return Change()
    idle = [each for each in state.nodes if _is_idle(state, live, each)]
    if not idle:
        raise InvalidRequestError(
            f"a cluster has at most {NODES_MAX} nodes, and each is up or holds something: take out "
            "one that is gone for good with icecore node remove"
        )
    return _without(state, state.nodes[min(idle, key=lambda each: _down_since(live, each))])


def _is_idle(state: ClusterState, live: Liveness, node_id: NodeId) -> bool:
    return _is_down(live, node_id) and named_in(state, node_id).is_nothing


def _down_since(live: Liveness, node_id: NodeId) -> tuple[float, NodeId]:
    """Those first that were never up."""
    since_ms = live.of(node_id).down_since_ms
    return (-1.0 if since_ms is None else since_ms, node_id)


# --- a disk that is gone for good -----------------------------------------------------------------


def check_disk_gone(
    state: ClusterState, live: Liveness, node_id: NodeId, has_copy: HasCopy
) -> NodeRecord:
    """To be asked before anything of a node's disk is given up.

    Args:
        state: The cluster.
        live: Who is up.
        node_id: The node.
        has_copy: Whether a node has not said that its copy is damaged.

    Raises InvalidRequestError: the node is not down, plays a role in an unsealed segment, or has
        copies that no other node has which is up.
    """
    known = down_node(state, live, node_id)
    named = named_in(state, node_id)
    if named.unsealed:
        raise InvalidRequestError(_why_named(node_id, named))
    lost = last_copies(state, live, node_id, _on_nodes_up(live, has_copy))
    if lost:
        raise InvalidRequestError(
            f"node {node_id} has copies of {len(lost)} segments, such as {lost[:3]}, of which no "
            "node that is up has an intact one. Start all other nodes. If no copy is left, give "
            "these segments up first: icecore segment declare-lost"
        )
    return known


def _on_nodes_up(live: Liveness, has_copy: HasCopy) -> HasCopy:
    return lambda node_id, segment_id: live.is_live(node_id) and has_copy(node_id, segment_id)


def may_have_bytes(state: ClusterState, node_id: NodeId, segment_id: SegmentId) -> bool:
    """Return whether a segment or its deletion record names a node as a replica or a holder."""
    record, deletion = state.segments.get(segment_id), state.deleted.get(segment_id)
    if deletion is not None and node_id in deletion.holders:
        return True
    return record is not None and node_id in (*record.holders, *record.segment.replicas)


def give_up_copy(
    state: ClusterState,
    live: Liveness,
    node_id: NodeId,
    segment_id: SegmentId,
    has_copy: HasCopy,
    now_ms: int,
) -> Change:
    """Nobody counts on the copy of a node any more; once that is so, nobody waits until it is
    deleted.

    Raises ConflictError: meanwhile it is the last one, or its segment is not sealed.
    """
    try:
        down_node(state, live, node_id)
    except InvalidRequestError as error:
        raise ConflictError(error.message) from error
    deleted = confirm_deletion(state, segment_id, [node_id])
    record = state.segments.get(segment_id)
    if record is None or node_id in record.segment.surplus:
        return deleted
    segment = record.segment
    if node_id in segment.replicas:
        others = [each for each in segment.replicas if each != node_id]
        counts = _on_nodes_up(live, has_copy)
        is_safe = segment.is_tiered or any(counts(each, segment_id) for each in others)
        if segment.state is not SegmentState.SEALED:
            raise ConflictError(f"segment {segment_id} is {segment.state.name}")
        if not is_safe:
            raise ConflictError(f"node {node_id} has the last copy of segment {segment_id}")
        return deleted + remove_sealed_replica(state, segment_id, node_id, now_ms)
    holders = tuple(each for each in record.holders if each != node_id)
    if holders == record.holders:
        return deleted
    return deleted + Change((updated_segment(record, {}, holders=holders),))
