"""Decisions about what nodes keep of segments that lie in object storage. Pure.

The segment keeps its record, without replicas, and a tombstone beside it orders the files away
(R87). It never gets copies on nodes again. That is also what happens where all copies on nodes are
lost: nothing is, for the published one has all of it. An object store can be emptied, or be another
one than yesterday, without a word to anybody; so copies on nodes go only once a node has seen the
published copy again, and not the node that uploaded it if there is another one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from icecore.model import NodeId, SegmentId, SegmentState
from icecore.tier_records import TierRecord
from icecore.topic_settings import NO_LIMIT
from icecore_coordinator.state.cluster_state import ClusterState, may_lose_copies
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    PartitionKey,
    SegmentRecord,
    without_copies,
)

Verified: TypeAlias = Mapping[SegmentId, int]
"""The published copies that a node has just seen in the object store: attempt by segment."""


def verifiers(state: ClusterState, tier: TierRecord) -> list[NodeId]:
    """Return the nodes that may say whether a published copy is there: those with the cluster's
    object store but for its uploader, unless no other node has one."""
    return [each for each in state.tiers.nodes if each != tier.owner] or [*state.tiers.nodes]


def drop_copies(
    state: ClusterState, segment_id: SegmentId, verified: Verified, now_ms: int
) -> Change:
    """Let go what nodes have of a published segment, for want of room, however long they should
    keep it; nothing happens where they have to keep it."""
    record = state.segments.get(segment_id)
    if record is None or not _may_go(state, record) or not _is_verified(state, record, verified):
        return Change()
    return without_copies(record, now_ms)


def drop_expired_copies(
    state: ClusterState, key: PartitionKey, verified: Verified, now_ms: int
) -> Change:
    """Let go what nodes need not keep of a partition, a bounded number of segments."""
    records = [state.segments[each] for each in expired_copies(state, key) if each in verified]
    going = [each for each in records if _is_verified(state, each, verified)]
    changes = (without_copies(each, now_ms) for each in going[: RECORDS_PER_CHANGE // 2])
    return sum(changes, Change())


def _may_go(state: ClusterState, record: SegmentRecord) -> bool:
    """Return whether nodes have copies that they need not keep, and the table names the published
    one: a restore without metadata begins with the table."""
    if not record.segment.replicas or not may_lose_copies(state, record):
        return False
    tier, partition = (
        state.tiers.segments[record.segment.segment_id],
        state.partitions[record.partition_key],
    )
    return partition.table_revision >= (tier.revision or partition.tier_revision)


def _is_verified(state: ClusterState, record: SegmentRecord, verified: Verified) -> bool:
    """Return whether what was seen is what is published now."""
    segment_id = record.segment.segment_id
    return verified.get(segment_id) == state.tiers.segments[segment_id].attempt


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
        if (is_old or is_behind) and _may_go(state, record):
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


def has_lost_all(
    state: ClusterState, segment_id: SegmentId, is_lost: Callable[[NodeId], bool]
) -> bool:
    """Return whether it is published, and all copies that nodes had of it are lost."""
    record = state.segments.get(segment_id)
    if record is None or not record.segment.replicas or not may_lose_copies(state, record):
        return False
    return all(map(is_lost, record.segment.replicas))


def drop_lost_copies(
    state: ClusterState,
    segment_id: SegmentId,
    is_lost: Callable[[NodeId], bool],
    verified: Verified,
    now_ms: int,
) -> Change:
    """Stop counting copies on nodes, all of which are lost, of a published segment. Its table may
    be behind: there is nothing on nodes that could wait for it."""
    if not has_lost_all(state, segment_id, is_lost):
        return Change()
    record = state.segments[segment_id]
    return without_copies(record, now_ms) if _is_verified(state, record, verified) else Change()


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
            if node_id in record.holders and _may_go(state, record):
                yield SpareCopy(
                    segment_id, record.segment.length_bytes, record.max_append_timestamp_ms
                )
