"""Decisions about copies of SEALED segments: what their digest is, which are too many. Pure.

A full digest is believed when two replicas report the same (one, where the segment has only one
copy). Until then each report is kept in the segment's record, so that a restart forgets none.
Reports of nodes that are no replicas count for nothing, and nobody is called damaged here: a node
whose digest is another one reads its own file again (R66).

Once a digest is agreed, copies beyond the replication factor may go. Who returns after a repair
makes one too many. So does what never counted: of a follower that was behind when its leader died,
or of a copy that failed. It goes in two changes (R93): by this one the copy counts no more and its
node is to drop it, by another (``node_changes.py``) the node has shown that it is gone. Until then
the node gets no copy of the segment again, so no order to drop one ever meets a copy that counts.
An order that still waits is taken back when the copies that it relied on count no more.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from icecore.errors import ConflictError, InvalidRequestError
from icecore.model import Generation, NodeId, SegmentId, SegmentState
from icecore_coordinator.decisions.placement import host_of, rack_of
from icecore_coordinator.state.cluster_state import ClusterState, is_below_start
from icecore_coordinator.state.records import Change, SegmentRecord, strays, updated_segment
from icecore_replication.digest import current_digest, is_full_digest

# --- digests --------------------------------------------------------------------------------------

AGREEING_MIN = 2


def set_full_digest(
    state: ClusterState,
    segment_id: SegmentId,
    generation: Generation,
    full_digest: bytes,
    node_id: NodeId,
) -> Change:
    """Note what a replica reports, and set the digest once enough replicas say the same.

    Raises:
        ConflictError: another digest is set, or the segment is not SEALED in this generation.
        InvalidRequestError: it is no full digest in the current format.
    """
    record = state.segments.get(segment_id)
    if not is_full_digest(full_digest):
        raise InvalidRequestError(f"no full digest in the current format: {full_digest.hex()}")
    if record is None or record.segment.state != SegmentState.SEALED:
        raise InvalidRequestError(f"segment {segment_id} is not sealed")
    segment = record.segment
    if segment.generation != generation:
        raise InvalidRequestError(f"segment {segment_id} has generation {segment.generation}")
    agreed = current_digest(segment.full_digest)
    if agreed not in (b"", full_digest):
        raise ConflictError(f"another full digest of segment {segment_id} was agreed on")
    if agreed or node_id not in segment.replicas:
        return Change()
    reports = reported_digests(record) | {node_id: full_digest}
    agreeing = sum(each == full_digest for each in reports.values())
    if agreeing >= min(AGREEING_MIN, len(segment.replicas)):
        done = updated_segment(record, {"full_digest": full_digest})
        return Change((replace(done, digest_nodes=(), digests=()),))
    if reports == reported_digests(record):
        return Change()
    nodes = tuple(sorted(reports))
    kept = updated_segment(record, {})
    return Change(
        (replace(kept, digest_nodes=nodes, digests=tuple(reports[each] for each in nodes)),)
    )


def reported_digests(record: SegmentRecord) -> dict[NodeId, bytes]:
    """By node, what its replicas reported while no two agreed."""
    reports = zip(record.digest_nodes, record.digests, strict=True)
    return {
        node: digest
        for node, digest in reports
        if node in record.segment.replicas and is_full_digest(digest)
    }


def disagreeing(record: SegmentRecord) -> tuple[NodeId, ...]:
    """Replicas that reported different digests, when there are such; a person must look."""
    reports = reported_digests(record)
    return tuple(sorted(reports)) if len(set(reports.values())) > 1 else ()


# --- replication factor ---------------------------------------------------------------------------


def take_factor(state: ClusterState, segment_id: SegmentId) -> Change:
    """Let a sealed segment have as many copies as its topic has by now.

    Repairs and drops go by the record of the segment, and find what it lacks or has too much of.
    A topic that is deleted changes nothing any more.
    """
    record = state.segments.get(segment_id)
    if record is None or record.segment.state != SegmentState.SEALED:
        return Change()
    segment, topic = record.segment, state.topics.get(record.segment.topic_id)
    if topic is None or not topic.is_live:
        return Change()
    factor = topic.settings.replication_factor
    if factor == segment.settings.replication_factor:
        return Change()
    settings = replace(
        segment.settings,
        replication_factor=factor,
        min_insync_replicas=topic.settings.min_insync_replicas,
    )
    return Change((updated_segment(record, {"settings": settings}),))


# --- surplus --------------------------------------------------------------------------------------


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
) -> tuple[bool, int, int, int, NodeId]:
    """A node that is to be empty first, then by the racks and hosts that are left without this
    copy, then by what its node has to keep."""
    left = [state.nodes[each] for each in sound if each != node_id and each in state.nodes]
    racks, hosts = {*map(rack_of, left)}, {*map(host_of, left)}
    is_drained = node_id in state.nodes and state.nodes[node_id].is_drained
    count = len(state.segments_of_node.get(node_id, ()))
    return (is_drained, len(racks), len(hosts), count, node_id)
