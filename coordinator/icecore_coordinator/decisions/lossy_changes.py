"""Decisions that give up data, and the segment's record keeps them. Pure.

The cluster itself never chooses a log that may lack acknowledged records, and never forgets a
segment. These acts are for when the alternative is to wait for ever: an admin's, and the one that
a topic orders beforehand for the case that no copy can be trusted (``on_total_loss``).
"""

from collections.abc import Callable, Mapping

from icecore.errors import InvalidRequestError
from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore.topic_settings import RESTART_EMPTY, VOLATILE_ENGINES
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, SegmentRecord, updated_segment, without_copies
from icecore_replication.recovery import FenceReply, is_total_loss


def named(state: ClusterState, topic: str, partition: int, segment_id: SegmentId) -> SegmentRecord:
    """The record an admin means; all three must fit, so that a typo destroys nothing.

    Raises:
        UnknownTopicError: there is no such topic.
        InvalidRequestError: the partition has no such segment.
    """
    key = (state.topic(topic).topic_id, partition)
    record = state.segments.get(segment_id)
    if record is None or record.partition_key != key:
        raise InvalidRequestError(f"{topic}/{partition} has no segment {segment_id}")
    return record


def declare_lost(
    record: SegmentRecord,
    live: Liveness,
    has_copy: Callable[[NodeId], bool],
    now_ms: int = 0,
) -> Change:
    """A sealed segment of which nobody holds a copy any more: readers skip it from now on.

    Args:
        record: As it is now.
        live: Who is up.
        has_copy: Whether a node does not call its copy damaged.
        now_ms: Wall clock, kept in deletion records.

    Raises InvalidRequestError: it is not SEALED, or a node still holds a verified copy.
    """
    segment = record.segment
    if segment.is_skipped or segment.is_remote_only:
        return Change()
    if segment.state != SegmentState.SEALED:
        raise InvalidRequestError(
            f"segment {segment.segment_id} is {segment.state.name}, not SEALED: see recover-unclean"
        )
    holders = [each for each in segment.replicas if live.is_live(each) and has_copy(each)]
    if holders:
        raise InvalidRequestError(
            f"segment {segment.segment_id} is not lost: nodes {holders} hold verified copies"
        )
    if segment.is_tiered:  # nothing is lost
        return without_copies(record, now_ms)
    return Change((updated_segment(record, {"replicas": (), "lossy": True}),))


def allow_unclean(record: SegmentRecord) -> Change:
    """The recovery of this segment may end it at the longest log left, or with nothing.

    Raises InvalidRequestError: it is not RECOVERING, so it is fine, or will be by itself.
    """
    segment = record.segment
    if segment.state != SegmentState.RECOVERING:
        raise InvalidRequestError(
            f"segment {segment.segment_id} is {segment.state.name}, not RECOVERING"
        )
    if record.is_unclean_allowed:
        return Change()
    return Change((updated_segment(record, {}, is_unclean_allowed=True),))


def allow_total_loss(
    state: ClusterState, segment_id: SegmentId, replies: Mapping[NodeId, FenceReply]
) -> Change:
    """The same without a person, as the segment was opened: no copy of it can be trusted (R82).

    Args:
        state: As it is now.
        segment_id: Of a segment whose recovery is undecided.
        replies: To its fence, by node id.

    Raises InvalidRequestError: the segment waits for a person, or some copy may be whole.
    """
    record = state.segments.get(segment_id)
    if record is None or record.segment.state != SegmentState.RECOVERING:
        raise InvalidRequestError(f"segment {segment_id} is not RECOVERING any more")
    segment = record.segment
    if segment.settings.on_total_loss != RESTART_EMPTY:
        raise InvalidRequestError(f"segment {segment_id} waits for a person")
    current = {
        node_id: reply
        for node_id, reply in replies.items()
        if reply.incarnation == state.incarnation(node_id)
    }
    if not is_total_loss(current, segment):
        raise InvalidRequestError(f"a copy of segment {segment_id} may be whole")
    return allow_unclean(record)


def may_vanish(segment: Segment) -> bool:
    """Return whether a sealed segment may go without a word of a person: its topic allowed it, and
    its copies were in memory before they were on disks."""
    settings = segment.settings
    return settings.engine in VOLATILE_ENGINES and settings.on_total_loss == RESTART_EMPTY


def declare_vanished(
    state: ClusterState, segment_id: SegmentId, is_gone: Callable[[NodeId], bool]
) -> Change:
    """A sealed segment whose copies were in memory, all of whose processes ended: it is lost, as
    the segment was opened (R98).

    A copy that has reached a disk may be there again later, whatever its node says now. So each
    node that was ever asked to keep bytes of it has to have said that nothing is left.

    Args:
        state: As it is now.
        segment_id: Of the segment.
        is_gone: Whether the registered process of a node has said that it has nothing of it.

    Raises InvalidRequestError: it is not SEALED, waits for a person, or a copy may be left.
    """
    record = state.segments.get(segment_id)
    if record is None or record.segment.state != SegmentState.SEALED:
        raise InvalidRequestError(f"segment {segment_id} is not SEALED")
    segment = record.segment
    if segment.is_tiered or not segment.replicas:
        return Change()
    if not may_vanish(segment):
        raise InvalidRequestError(f"segment {segment_id} waits for a person")
    if left := silent_holders(record, is_gone):
        raise InvalidRequestError(f"nodes {left} may have a copy of segment {segment_id}")
    return Change((updated_segment(record, {"replicas": (), "lossy": True}),))


def silent_holders(record: SegmentRecord, is_gone: Callable[[NodeId], bool]) -> list[NodeId]:
    """Return the nodes that may have something of a segment, listed or not."""
    segment = record.segment
    asked = dict.fromkeys((*segment.replicas, *segment.surplus, *record.holders))
    return [each for each in asked if not is_gone(each)]


def begin_unclean(state: ClusterState, segment_id: SegmentId) -> Change:
    """Nodes are about to be brought to an end that nothing proves. From then on their copies look
    like any others, also to a coordinator that comes after this one. The record tells the nodes
    that it may lie below what readers have seen: no order alone does (R111).

    Raises InvalidRequestError: nobody allowed it, or the segment is recovered by now.
    """
    record = state.segments.get(segment_id)
    if record is None or record.segment.state != SegmentState.RECOVERING:
        raise InvalidRequestError(f"segment {segment_id} is not RECOVERING any more")
    if not record.is_unclean_allowed:
        raise InvalidRequestError(f"segment {segment_id} must not end unclean")
    if record.is_unclean_begun and record.segment.lossy:
        return Change()
    return Change((updated_segment(record, {"lossy": True}, is_unclean_begun=True),))
