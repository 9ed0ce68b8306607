"""Decisions about published copies that nodes have looked for in the object store. Pure.

A copy that was seen lets nodes drop theirs (R87). The segment keeps its record, without replicas,
and a deletion record beside it orders the files away. It never gets copies on nodes again. That is
also what happens where all copies on nodes are lost: nothing is, for the published one has all of
it. An object store can be emptied, or be another one than yesterday, without a word to anybody; so
copies on nodes go only once a node has seen the published copy again, and not the node that
uploaded it if there is another one.

A copy whose objects are missing is withdrawn (R100), when a node has looked in the cluster's own
store. While nodes still have the records, nothing is lost: the publication is taken back and the
segment is uploaded again, as a new attempt under new keys. So whatever was believed wrongly, and
whatever comes late, does no harm. A copy that no node has any more stays as it is, for a person may
put the objects back.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from icecore.errors import ConflictError
from icecore.model import NodeId, SegmentId, SegmentState
from icecore.tier_records import TierRecord, TierState, withdrawn
from icecore.topic_settings import NO_LIMIT
from icecore_coordinator.decisions.remote.tiering import due_ms
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    is_published,
    may_lose_copies,
    next_revision,
)
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    PartitionKey,
    SegmentRecord,
    updated_segment,
    without_copies,
)

# --- seen: nodes drop theirs ----------------------------------------------------------------------

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
    """Return when, in counted time, nodes need not keep another segment of a partition.

    None = never, if nothing of it changes before.
    """
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


# --- missing: the segment is uploaded again -------------------------------------------------------

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
