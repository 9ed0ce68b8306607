"""Decisions about the full digests of sealed segments. Pure.

A digest is believed when two replicas report the same (one, where the segment has only one copy).
Until then each report is kept in the segment's record, so that a restart forgets none. Reports of
nodes that are no replicas count for nothing, and nobody is called damaged here: a node whose digest
is another one reads its own file again (R66).
"""

from dataclasses import replace

from icecore.errors import ConflictError, InvalidRequestError
from icecore.model import Generation, NodeId, SegmentId, SegmentState
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, SegmentRecord, updated_segment
from icecore_replication.digest import current_digest, is_full_digest

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
