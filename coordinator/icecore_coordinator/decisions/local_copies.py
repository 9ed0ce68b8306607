"""Decisions about what nodes keep of segments that lie in object storage. Pure.

The segment keeps its record, without replicas, and a tombstone beside it orders the files away
(R87). It never gets copies on nodes again. That is also what happens where all copies on nodes are
lost: nothing is, for the published one has all of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from icecore.model import NodeId, SegmentId, SegmentState
from icecore.topic_settings import NO_LIMIT
from icecore_coordinator.state.cluster_state import ClusterState, may_lose_copies
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    PartitionKey,
    without_copies,
)


def drop_copies(state: ClusterState, segment_id: SegmentId, now_ms: int) -> Change:
    """Let go what nodes have of a published segment, for want of room, however long they should
    keep it; nothing happens where they have to keep it."""
    record = state.segments.get(segment_id)
    if record is None or not record.segment.replicas or not may_lose_copies(state, record):
        return Change()
    return without_copies(record, now_ms)


def drop_expired_copies(state: ClusterState, key: PartitionKey, now_ms: int) -> Change:
    """Let go what nodes need not keep of a partition, a bounded number of segments."""
    expired = expired_copies(state, key)[: RECORDS_PER_CHANGE // 2]
    changes = (without_copies(state.segments[each], now_ms) for each in expired)
    return sum(changes, Change())


def expired_copies(state: ClusterState, key: PartitionKey) -> list[SegmentId]:
    """Published segments of a partition that nodes need not keep, by their topic's local retention:
    old ones, and those before the newest so many bytes. What the tail holds does not count yet."""
    topic = state.topics.get(key[0])
    if topic is None:
        return []
    kept = topic.tiering
    if not kept.has_local_limits:
        return []
    records = [each for each in state.segments_in(key) if each.segment.state == SegmentState.SEALED]
    behind = sum(each.segment.length_bytes for each in records)
    found = []
    for record in records:
        behind -= record.segment.length_bytes
        is_old = kept.local_retention_ms != NO_LIMIT and (
            record.since_ms + kept.local_retention_ms <= state.counted_ms
        )
        is_behind = NO_LIMIT != kept.local_retention_bytes <= behind
        if (is_old or is_behind) and record.segment.replicas and may_lose_copies(state, record):
            found.append(record.segment.segment_id)
    return found


def next_expiry_ms(state: ClusterState, key: PartitionKey) -> int | None:
    """When, in counted time, nodes need not keep another segment of a partition, if nothing of it
    changes before; None = never."""
    topic = state.topics.get(key[0])
    if topic is None or topic.tiering.local_retention_ms == NO_LIMIT:
        return None
    ends_ms = (
        each.since_ms + topic.tiering.local_retention_ms
        for each in state.segments_in(key)
        if each.segment.is_tiered and each.segment.replicas
    )
    return min((each for each in ends_ms if each > state.counted_ms), default=None)


def drop_lost_copies(
    state: ClusterState, segment_id: SegmentId, is_lost: Callable[[NodeId], bool], now_ms: int
) -> Change:
    """Stop counting copies on nodes, all of which are lost, of a published segment."""
    record = state.segments.get(segment_id)
    if record is None or not record.segment.replicas or not may_lose_copies(state, record):
        return Change()
    if not all(map(is_lost, record.segment.replicas)):
        return Change()
    return without_copies(record, now_ms)


@dataclass(frozen=True, slots=True)
class SpareCopy:
    """A published segment that a node with a full disk has."""

    segment_id: SegmentId
    length_bytes: int
    appended_ms: int


def spare_copies(state: ClusterState, node_id: NodeId) -> list[SpareCopy]:
    """Return copies that a node could free without the loss of any record, the oldest first."""
    return sorted(_spare_copies(state, node_id), key=lambda each: each.appended_ms)


def _spare_copies(state: ClusterState, node_id: NodeId) -> Iterator[SpareCopy]:
    for segment_ids in state.tiers.held.values():
        for segment_id in segment_ids:
            record = state.segments[segment_id]
            if node_id in record.holders and may_lose_copies(state, record):
                yield SpareCopy(
                    segment_id, record.segment.length_bytes, record.max_append_timestamp_ms
                )
