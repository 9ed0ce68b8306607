"""Decisions about published copies whose objects are missing in the object store. Pure.

A node has looked in the cluster's own store and did not find them (R100). While nodes still have
the records, nothing is lost: the publication is taken back and the segment is uploaded again, as a
new attempt under new keys. So whatever was believed wrongly, and whatever comes late, does no harm.
A copy that no node has any more stays as it is, for a person may put the objects back.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from icecore.errors import ConflictError
from icecore.model import NodeId, SegmentId
from icecore.tier_records import TierRecord, TierState, withdrawn
from icecore_coordinator.decisions.tiering import due_ms
from icecore_coordinator.state.cluster_state import ClusterState, is_published, next_revision
from icecore_coordinator.state.records import (
    Change,
    PartitionKey,
    SegmentRecord,
    updated_segment,
)

CLOSED_MAX = 8
"""Closed attempts of a segment, kept for a day each, from which on a person has to look: objects
that go again and again, or a store that does not show them, are not mended by more uploads."""


def withdraw(
    state: ClusterState,
    segment_id: SegmentId,
    attempt: int,
    has_copy: Callable[[NodeId], bool],
) -> Change:
    """Take a publication back, so that the segment is uploaded again. An attempt that is not the
    published one (any more) changes nothing.

    Args:
        state: The cluster.
        segment_id: Of the segment.
        attempt: The published one, whose objects are missing.
        has_copy: Whether a node is up and does not call its copy damaged.

    Raises ConflictError: no node could upload it again, or it was done too often.
    """
    tier, record = state.tiers.segments.get(segment_id), state.segments.get(segment_id)
    if tier is None or tier.state is not TierState.PUBLISHED or tier.attempt != attempt:
        return Change()
    if record is None or not is_published(state, record):
        return Change()
    if why := _why_not(state, record, has_copy):
        raise ConflictError(f"segment {segment_id} is not uploaded again: {why}")
    kept = updated_segment(record, {"is_tiered": False})
    revision = next_revision(state, tier.partition_key)
    return Change((withdrawn(tier, state.counted_ms), kept, *revision))


def _why_not(state: ClusterState, record: SegmentRecord, has_copy: Callable[[NodeId], bool]) -> str:
    """Return why its publication stays; empty = it may be taken back."""
    without = replace(record, segment=record.segment.changed(is_tiered=False))
    if not any(map(has_copy, record.segment.replicas)):
        return "no node has a copy, so put its objects back"
    if due_ms(state, without) is None:
        return "it is not to be in object storage any more"
    closed = state.tiers.segments[record.segment.segment_id].closed_attempts
    return f"{CLOSED_MAX} copies did not stay there" if len(closed) >= CLOSED_MAX else ""


def awaits_copy(state: ClusterState, key: PartitionKey) -> bool:
    """Return whether a segment of a partition is about to get another copy. Until then its table
    stays as it is: so the old copy goes out of it in the commit that brings in the new one."""
    segment_ids = state.tiers.withdrawn.get(key, ())
    return any(
        record is not None and due_ms(state, record) is not None
        for record in map(state.segments.get, segment_ids)
    )


def held_attempt(state: ClusterState, tier: TierRecord, grace_ms: int) -> int:
    """Return the withdrawn attempt of a segment whose objects stay: what is left of it may be the
    last copy, or a table names it, or a reader is at it. 0 = they may go.

    Args:
        state: The cluster.
        tier: Record of its copies.
        grace_ms: How long after the next publication a reader may be at it, in counted time.
    """
    partition, topic = state.partitions.get(tier.partition_key), state.topics.get(tier.topic_id)
    if not tier.withdrawn or partition is None or topic is None:
        return 0
    named_by = tier.revision or partition.tier_revision
    is_read = state.counted_ms < max(tier.since_ms + grace_ms, topic.held_until_ms)
    return tier.withdrawn if is_read or partition.table_revision < named_by else 0


def forgotten_copies(
    state: ClusterState, has_copy: Callable[[NodeId, SegmentId], bool]
) -> Iterator[tuple[SegmentId, int]]:
    """Yield the published copies, with their attempts, that were in a store which a person gave up,
    while nobody has used another one since, and that can be uploaded again."""
    if state.tiers.store_id or not state.tiers.forgotten_store_id:
        return
    for segment_ids in state.tiers.held.values():
        for segment_id in segment_ids:

            def has(node_id: NodeId, segment_id: SegmentId = segment_id) -> bool:
                return has_copy(node_id, segment_id)

            if not _why_not(state, state.segments[segment_id], has):
                yield segment_id, state.tiers.segments[segment_id].attempt


def doubtful_copies(state: ClusterState, key: PartitionKey) -> list[SegmentId]:
    """Return the published copies of a partition that nodes still have, those first that its table
    does not name, then the oldest attempts."""
    tiers, partition = state.tiers, state.partitions.get(key)
    held = tiers.held.get(key[0], {})
    found = [tiers.segments[each] for each in tiers.published.get(key, ()) if each in held]
    has = partition.table_revision if partition is not None else 0
    found.sort(key=lambda tier: (tier.revision <= has, tier.attempt))
    return [each.segment_id for each in found]
