"""Decisions about copies in object storage: begin an upload, publish, drop what nodes have, retire,
sweep. Pure.

Every step is a compare-and-set, before anything happens (R84). An attempt counts from ``begin`` to
``close``; whoever carries out one that was closed meanwhile changes nothing by it. Bytes come
before metadata when a copy is made, metadata before bytes when it goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from icecore.errors import ConflictError, InvalidRequestError
from icecore.model import NO_INCARNATION, Incarnation, NodeId, SegmentId, SegmentState
from icecore.tier_records import (
    NO_ATTEMPT,
    TierCopy,
    TierRecord,
    TierState,
    TierTopicRecord,
    closed,
    retired,
)
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    is_below_start,
    next_of,
    next_revision,
)
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    ClusterRecord,
    PartitionKey,
    SegmentRecord,
    drop,
    updated,
    updated_segment,
    without_copies,
)
from icecore_replication.digest import current_digest

COUNTER = "tier_attempt"
SEGMENT_IDS = "segment_id"
SHA256_BYTES = 32
DIGEST_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Attempt:
    """One upload, as a node was asked to carry it out."""

    segment_id: SegmentId
    attempt: int
    owner: NodeId
    owner_incarnation: Incarnation


def due_ms(state: ClusterState, record: SegmentRecord) -> int | None:
    """Since when, in counted time, a segment is to be copied, be that to come; None = it is not."""
    segment, topic = record.segment, state.topics.get(record.segment.topic_id)
    if topic is None or not (topic.is_live and topic.tiering.is_on):
        return None
    is_whole = segment.state == SegmentState.SEALED and bool(segment.replicas)
    if not is_whole or segment.is_tiered or not current_digest(segment.full_digest):
        return None
    return None if is_below_start(state, record) else record.since_ms + topic.tiering.tier_after_ms


def is_due(state: ClusterState, record: SegmentRecord) -> bool:
    """Return whether an upload should begin now."""
    tier = state.tiers.segments.get(record.segment.segment_id)
    if tier is not None and (tier.is_under_way or tier.state is not TierState.UPLOADING):
        return False
    due = due_ms(state, record)
    return due is not None and due <= state.counted_ms


def begin(state: ClusterState, segment_id: SegmentId, owner: NodeId) -> Change:
    """The next attempt, with a number that nobody ever had.

    Raises ConflictError: the segment is not due (any more), or the node can't copy it.
    """
    record = state.segments.get(segment_id)
    if record is None or not is_due(state, record):
        raise ConflictError(f"segment {segment_id} is not to be copied into object storage now")
    if owner not in record.segment.replicas or owner not in state.tiers.nodes:
        raise ConflictError(f"node {owner} has no copy of segment {segment_id}, or no object store")
    counter, segment = next_of(state, COUNTER), record.segment
    known = state.tiers.segments.get(segment_id) or TierRecord(
        segment_id=segment_id,
        topic_id=segment.topic_id,
        partition=segment.partition,
        generation=segment.generation,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        state=TierState.UPLOADING,
        tier_format="",
    )
    begun = updated(
        known,
        generation=segment.generation,
        tier_format=state.topics[segment.topic_id].tiering.tier_format,
        attempt=counter.next_value,
        owner=owner,
        owner_incarnation=state.incarnation(owner),
        since_ms=state.counted_ms,
    )
    counted = updated(counter, next_value=counter.next_value + 1)
    is_first = segment.topic_id not in state.tiers.topics
    of_topic = (TierTopicRecord(segment.topic_id, version=1),) if is_first else ()
    return Change((counted, begun, *of_topic, *used_by(state, owner)))


def used_by(state: ClusterState, node_id: NodeId) -> tuple[ClusterRecord, ...]:
    """From now on the cluster uses the object store of this node, if it did not before."""
    url = state.nodes[node_id].tier_url
    if state.cluster is None or state.cluster.tier_url == url:
        return ()
    return (updated(state.cluster, tier_url=url),)


def bound_to(state: ClusterState, store_id: bytes) -> tuple[ClusterRecord, ...]:
    """From its first copy that counts on, the cluster uses the object store with this identity.
    Raises ObjectStoreError when it uses another one."""
    state.tiers.check_store(store_id)
    if state.cluster is None or not store_id or state.cluster.store_id:
        return ()
    return (updated(state.cluster, store_id=store_id),)


def forget_store(state: ClusterState, store_id: bytes) -> Change:
    """Give up the cluster's object store: the next one that a node uploads to is the cluster's.
    What is published stays so, for the store may come back.

    Raises InvalidRequestError: the cluster uses another one, or none.
    """
    used_id = state.tiers.store_id
    if store_id and store_id == state.tiers.forgotten_store_id and not used_id:
        return Change()
    if state.cluster is None or not used_id or store_id != used_id:
        used = f"object store {used_id.hex()}" if used_id else "no object store yet"
        raise InvalidRequestError(
            f"this cluster uses {used}, not {store_id[:16].hex() or 'one without an id'}: icecore "
            "tier status --json has the id as store_id"
        )
    given_up = updated(state.cluster, tier_url="", store_id=b"", forgotten_store_id=store_id)
    return Change((given_up,))


def store_warnings(state: ClusterState, live: Liveness) -> list[str]:
    """Return warnings for operators: nodes that are not used because of their object store, and a
    store that replaced the cluster's."""
    tiers = state.tiers
    refused = {each: live.of(each).store_problem for each in tiers.urls if live.is_live(each)}
    said = [f"node {node_id}: {why}" for node_id, why in refused.items() if why]
    found = [
        f"node {node_id} has the object store {url}, the cluster uses {tiers.url}: that node is "
        "asked for nothing there; give all nodes the same tier_url"
        for node_id, url in tiers.urls.items()
        if node_id not in tiers.nodes
    ]
    elsewhere = [each for each in tiers.nodes if tiers.urls[each] != tiers.url and tiers.url]
    is_proved = {tiers.urls[each] for each in elsewhere if _has_ours(state, live, each)}
    moved = {tiers.urls[each] for each in elsewhere} - is_proved
    return (
        said
        + found
        + [
            f"all nodes have the object store {url}, the cluster used {tiers.url} before: what is "
            "published can be read only if it was copied there"
            for url in sorted(moved)
        ]
    )


def _has_ours(state: ClusterState, live: Liveness, node_id: NodeId) -> bool:
    """Return whether the node has found the cluster's own store, wherever that lies by now."""
    used_id = state.tiers.store_id
    return bool(used_id) and live.is_live(node_id) and live.of(node_id).store_id == used_id


def publish(
    state: ClusterState, upload: Attempt, copy: TierCopy, now_ms: int, store_id: bytes = b""
) -> Change:
    """Make the stored and proved result of this attempt the segment's copy from now on.

    Args:
        state: The cluster.
        upload: As it was begun.
        copy: What its owner says of it.
        now_ms: Wall clock, kept in deletion records.
        store_id: Identity of the object store that its owner used; empty = it has none.

    Raises:
        ConflictError: the attempt was closed, or its owner is not the registered process any more.
        ObjectStoreError: its owner has another object store than the cluster.
        InvalidRequestError: that is no copy of this segment.
    """
    tier, record = current(state, upload), state.segments.get(upload.segment_id)
    if record is None or record.segment.generation != tier.generation:
        raise ConflictError(f"attempt {tier.attempt} copied another form of the segment")
    check_copy(tier, copy)
    named_by = next_revision(state, tier.partition_key)
    stored = updated(
        tier,
        state=TierState.PUBLISHED,
        copy=copy,
        owner_incarnation=NO_INCARNATION,
        since_ms=state.counted_ms,
        revision=named_by[0].tier_revision if named_by else 0,
    )
    change = Change((stored, *named_by, *bound_to(state, store_id)))
    if record.segment.replicas:
        return change + Change((updated_segment(record, {"is_tiered": True}),))
    given_up = replace(record, segment=record.segment.changed(is_tiered=True))
    return change + without_copies(given_up, now_ms)


def current(state: ClusterState, upload: Attempt) -> TierRecord:
    """The record that this attempt is to end. Raises ConflictError: it was closed."""
    tier = state.tiers.segments.get(upload.segment_id)
    if tier is None or not tier.is_under_way or tier.attempt != upload.attempt:
        raise ConflictError(f"attempt {upload.attempt} of segment {upload.segment_id} is closed")
    asked = (upload.owner, upload.owner_incarnation)
    is_registered = state.incarnation(upload.owner) == upload.owner_incarnation
    if (tier.owner, tier.owner_incarnation) != asked or not is_registered:
        raise ConflictError(f"attempt {tier.attempt} is not one of node {upload.owner} as it runs")
    return tier


def check_copy(tier: TierRecord, copy: TierCopy) -> None:
    """Raises InvalidRequestError: that can be no copy of what the record names."""
    if len(copy.manifest_sha256) != SHA256_BYTES:
        raise InvalidRequestError("the SHA-256 of a manifest has 32 bytes")
    if not 0 < len(copy.content_digest) <= DIGEST_BYTES_MAX:
        raise InvalidRequestError("a copy without a content digest proves nothing")
    if copy.tier_format != tier.tier_format:
        raise InvalidRequestError(
            f"a copy in format {copy.tier_format[:64]!r}, {tier.tier_format} was asked for"
        )
    if copy.records > tier.end_offset - tier.base_offset or not copy.length_bytes:
        raise InvalidRequestError(
            f"{copy.records} records in {copy.length_bytes} bytes are not segment {tier.segment_id}"
        )


def close(state: ClusterState, segment_id: SegmentId, attempt: int) -> Change:
    """This attempt failed, or nobody knows how it went: it will never count, and is swept."""
    tier = state.tiers.segments.get(segment_id)
    if tier is None or not tier.is_under_way or tier.attempt != attempt:
        return Change()
    return Change((closed(tier, state.counted_ms),))


# --- when segments go -----------------------------------------------------------------------------


def release(state: ClusterState, segment_id: SegmentId, grace_ms: int) -> Change:
    """The objects of a retired copy may go: the table does not name them, and readers are done.

    Args:
        state: The cluster.
        segment_id: Of a segment that is gone.
        grace_ms: How long after that somebody may still read them, in counted time.
    """
    tier = state.tiers.segments.get(segment_id)
    if tier is None or not tier.is_retiring or state.counted_ms < tier.since_ms + grace_ms:
        return Change()
    partition, topic = state.partitions.get(tier.partition_key), state.topics.get(tier.topic_id)
    if partition is not None and partition.table_revision < tier.revision:
        return Change()
    if topic is not None and topic.held_until_ms > state.counted_ms:
        return Change()
    return Change((closed(tier, state.counted_ms),))


def committed(state: ClusterState, key: PartitionKey, revision: int) -> Change:
    """The next bounded step of noting that the table of a partition has what was published as of
    this revision, or later; empty when all is noted. Readers who opened the table just before may
    read what it names no more, so their grace begins now."""
    partition = state.partitions.get(key)
    if partition is None or not partition.table_revision < revision <= partition.tier_revision:
        return Change()
    retiring = [state.tiers.segments[each] for each in state.tiers.retiring_of.get(key, ())]
    let_go = sorted(
        (each for each in retiring if partition.table_revision < each.revision <= revision),
        key=lambda each: each.revision,
    )
    if len(let_go) >= RECORDS_PER_CHANGE:
        # Whole revisions: at least the first one, of which one change has retired all.
        revision = max(let_go[0].revision, let_go[RECORDS_PER_CHANGE - 1].revision - 1)
        let_go = [each for each in let_go if each.revision <= revision]
    since = [updated(each, since_ms=state.counted_ms) for each in let_go]
    return Change((updated(partition, table_revision=revision), *since))


# --- sweeping -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sweeping:
    """One closed attempt whose objects are to go."""

    segment_id: SegmentId
    attempt: int
    is_last: bool
    """True when no node can still put objects: once these are swept, the attempt is forgotten."""


def sweepings(
    state: ClusterState, segment_id: SegmentId, keep_ms: int, held_attempt: int = NO_ATTEMPT
) -> list[Sweeping]:
    """Return the closed attempts of a segment that are to be swept now. Each is swept at once, and
    again after ``keep_ms`` of counted time: a paused node may have put objects meanwhile. Those up
    to ``held_attempt`` stay."""
    tier = state.tiers.segments.get(segment_id)
    closed = tier.closed_attempts if tier is not None else ()
    return [
        Sweeping(segment_id, each.attempt, is_last=is_over)
        for each in closed
        if each.attempt > held_attempt
        and ((is_over := state.counted_ms >= each.closed_ms + keep_ms) or not each.is_swept)
    ]


def swept(state: ClusterState, done: Sweeping) -> Change:
    """Nothing of a closed attempt is there any more; its segment's record goes with the last."""
    tier = state.tiers.segments.get(done.segment_id)
    if tier is None or all(each.attempt != done.attempt for each in tier.closed_attempts):
        return Change()
    left = tuple(
        replace(each, is_swept=True) if each.attempt == done.attempt else each
        for each in tier.closed_attempts
        if each.attempt != done.attempt or not done.is_last
    )
    if left == tier.closed_attempts:
        return Change()
    if not left and tier.attempt == NO_ATTEMPT:
        return Change(deletes=(tier,))
    return Change((updated(tier, closed_attempts=left),))


def gone_topics(state: ClusterState) -> list[bytes]:
    """Topics that are gone for good, whose prefixes may be emptied: no copy of theirs counts."""
    return [
        topic_id
        for topic_id, each in state.tiers.topics.items()
        if topic_id not in state.topics and _may_empty(state, each)
    ]


def _may_empty(state: ClusterState, topic: TierTopicRecord) -> bool:
    """At once when all attempts are closed, and once more when all are forgotten."""
    segment_ids = state.tiers.of_topic.get(topic.topic_id, {})
    if not segment_ids:
        return True
    is_closed = all(not state.tiers.segments[each].attempt for each in segment_ids)
    return is_closed and not topic.is_swept


def emptied(state: ClusterState, topic_id: bytes, *, is_last: bool) -> Change:
    """The prefix of a topic that is gone was emptied; ``is_last``: nothing was left to come."""
    topic = state.tiers.topics.get(topic_id)
    if topic is None or topic_id in state.topics:
        return Change()
    if is_last:
        return Change(deletes=(topic,))
    if topic.is_swept and not topic.gone_version:
        return Change()
    return Change((updated(topic, is_swept=True, gone_version=0),))


def records_per_drop(state: ClusterState, topic_id: bytes) -> int:
    """Return how many records of a change ``drop_tiered`` takes at most for one segment."""
    return 3 if topic_id in state.tiers.topics else 2


def drop_tiered(
    state: ClusterState,
    records: Sequence[SegmentRecord],
    now_ms: int,
    *,
    is_topic_gone: bool = False,
) -> Change:
    """As ``drop``, and what object storage has of these segments is retired in the same step.

    Args:
        state: The cluster.
        records: Of segments that go.
        now_ms: Wall clock, kept in deletion records.
        is_topic_gone: For good, and its table with it: nothing has to be taken out of that.
    """
    segment_ids = (each.segment.segment_id for each in records)
    tiers = [state.tiers.segments[each] for each in segment_ids if each in state.tiers.segments]
    keys = {each.partition_key for each in tiers if each.state is TierState.PUBLISHED}
    bumped = {
        key: following
        for key in sorted(keys)
        for following in next_revision(state, key)
        if not is_topic_gone
    }
    gone = [
        retired(each, state.counted_ms, bumped[key].tier_revision if key in bumped else 0)
        for each in tiers
        for key in (each.partition_key,)
    ]
    return drop(records, now_ms) + Change((*gone, *bumped.values()))
