"""Decisions about what a topic keeps: where its partitions begin, and which segments go. Pure.

First the log start moves, in a commit of its own; only then whole sealed segments below it become
deletion records, so whoever reads there hears what is left and no reader finds less than was
promised.
How old a segment is, is time that coordinators have counted since it was sealed: no wall clock
makes it older (R73).

A hold keeps a topic from its retention: a reader has the topic as of one moment, for the time that
it asks for. Holds are few, short and end by themselves, in counted time: a reader that dies keeps a
topic from its retention for a day at most. What people order (records or topics deleted) is done
all the same, and so is what a full disk needs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from icecore.errors import (
    ConflictError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore.topic_settings import DELETE_OLDEST, NO_LIMIT
from icecore_coordinator.decisions.remote.tiering import drop_tiered, records_per_drop
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    is_below_start,
    is_published,
    live_topics,
    segments_from,
)
from icecore_coordinator.state.limits import HOLDS_MAX
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    PartitionKey,
    PartitionRecord,
    SegmentRecord,
    StoredHold,
    updated,
)

NEVER = math.inf
EMPTY_TAIL_LOOK_MS = 60_000
"""How often a tail is looked at that is old, and empty as far as anybody has told."""
OLD_TAIL_LOOK_MS = 5_000
"""The same of one that is to be sealed."""


@dataclass(frozen=True, slots=True)
class TailNews:
    """The last report about the segment that takes a partition's appends."""

    length_bytes: int = 0
    high_watermark: int = 0


@dataclass(frozen=True, slots=True)
class RetentionVerdict:
    """Retention's decision about one partition."""

    start_offset: int
    """Log start that the partition should have; the present one when nothing is expired."""
    is_roll_due: bool = False
    """Its tail is so old that it must be sealed, or its records could never go."""
    next_ms: float = NEVER
    """When to look again even if nothing happens, in counted time."""
    next_tail_bytes: float = NEVER
    """Tail length in bytes at which more is expired."""


def sealed_segments(state: ClusterState, key: PartitionKey) -> list[SegmentRecord]:
    """Return the sealed segments of one partition, oldest first, including those below its log
    start."""
    return [each for each in state.segments_in(key) if each.segment.state == SegmentState.SEALED]


def verdict(state: ClusterState, key: PartitionKey, tail: TailNews) -> RetentionVerdict:
    """Decide which whole sealed segments of a partition are expired, the oldest first."""
    partition, topic = state.partitions.get(key), state.topics.get(key[0])
    if partition is None or topic is None:
        return RetentionVerdict(0)
    start, kept = partition.log_start_offset, topic.retention
    if not (topic.is_live and kept.has_limits):
        return RetentionVerdict(start)
    if topic.held_until_ms > state.counted_ms:
        return RetentionVerdict(start, next_ms=topic.held_until_ms)
    sealed = [each for each in sealed_segments(state, key) if each.segment.end_offset > start]
    behind = sum(each.segment.length_bytes for each in sealed) + tail.length_bytes
    next_ms = next_tail_bytes = NEVER
    for record in sealed:
        behind -= record.segment.length_bytes
        expires_ms, lacking = NEVER, NEVER
        if kept.retention_ms != NO_LIMIT:
            expires_ms = record.since_ms + kept.retention_ms
        if kept.retention_bytes != NO_LIMIT:
            lacking = kept.retention_bytes - behind
        if expires_ms > state.counted_ms and lacking > 0:
            next_ms, next_tail_bytes = expires_ms, tail.length_bytes + lacking
            break
        start = record.segment.end_offset
    is_roll_due, roll_ms = _roll(state, partition, tail, kept.retention_ms)
    return RetentionVerdict(start, is_roll_due, min(next_ms, roll_ms), next_tail_bytes)


def _roll(
    state: ClusterState, partition: PartitionRecord, tail: TailNews, retention_ms: int
) -> tuple[bool, float]:
    """Return whether the tail must be sealed for its age, and when to look again if not."""
    record = state.tail(partition)
    if record is None or retention_ms == NO_LIMIT or record.segment.state != SegmentState.ACTIVE:
        return False, NEVER
    due_ms = record.since_ms + retention_ms
    if state.counted_ms < due_ms:
        return False, due_ms
    if max(tail.high_watermark, record.segment.base_offset) == record.segment.base_offset:
        return False, state.counted_ms + EMPTY_TAIL_LOOK_MS
    return True, state.counted_ms + OLD_TAIL_LOOK_MS


def retain(state: ClusterState, key: PartitionKey, tail: TailNews) -> Change:
    """Move the log start behind what is expired."""
    start = verdict(state, key, tail).start_offset
    partition = state.partitions.get(key)
    if partition is None:
        return Change()
    return _moved(state, partition, start, partition.next_base_offset)


def move_log_start(
    state: ClusterState, key: PartitionKey, offset: int, high_watermark: int
) -> Change:
    """Move the log start to an offset; nothing happens when it is there or beyond.

    Args:
        state: The cluster.
        key: Of the partition.
        offset: The first one to keep.
        high_watermark: The highest one that is known of the partition.

    Raises:
        UnknownTopicError: There is no such partition, or its topic is deleted.
        OffsetOutOfRangeError: The offset is above the high watermark.
    """
    partition = state.partitions.get(key)
    if partition is None or not state.is_live_topic(key[0]):
        raise UnknownTopicError(f"there is no partition {key[1]} of topic {key[0].hex()}")
    end = max(high_watermark, partition.next_base_offset)
    if offset > end:
        start = partition.log_start_offset
        raise OffsetOutOfRangeError(
            f"partition {key[1]}: before_offset {offset} is outside [{start}, {end}]",
            partition=key[1],
            log_start_offset=start,
            high_watermark=end,
        )
    return _moved(state, partition, offset, end)


def _moved(
    state: ClusterState, partition: PartitionRecord, offset: int, high_watermark: int
) -> Change:
    """The log start only grows, and never passes the high watermark (I19). Where no published copy
    begins there, object storage has to be told (R99); else its first copy says it. Between segments
    the order tells it that takes the ones below out of the table."""
    assert offset <= max(high_watermark, partition.log_start_offset), (partition, offset)
    if offset <= partition.log_start_offset:
        return Change()
    moved = updated(partition, log_start_offset=offset)
    first = next(segments_from(state, partition.partition_key, offset), None)
    is_between = first is not None and first.segment.base_offset == offset
    is_implied = is_between and first is not None and is_published(state, first)
    if partition.topic_id in state.tiers.topics and not is_implied:
        moved = replace(
            moved,
            start_version=partition.start_version + 1,
            tier_revision=partition.tier_revision + (not is_between),
        )
    return Change((moved,))


def below_start(state: ClusterState, key: PartitionKey, start: int) -> list[SegmentRecord]:
    """Sealed segments that would be wholly below this start and may go then.

    The newest sealed one stays while no tail is open behind it: from there the next one starts.
    """
    partition = state.partitions[key]
    sealed = sealed_segments(state, key)
    tail = state.tail(partition)
    if tail is None or tail.segment.state != SegmentState.ACTIVE:
        sealed = sealed[:-1]
    return [each for each in sealed if each.segment.end_offset <= start]


def delete_below_start(state: ClusterState, key: PartitionKey, now_ms: int) -> Change:
    """Deletion records for segments wholly below the log start, a bounded number of them."""
    partition = state.partitions.get(key)
    if partition is None or not state.is_live_topic(key[0]) or not partition.log_start_offset:
        return Change()
    gone = below_start(state, key, partition.log_start_offset)
    return drop_tiered(state, gone[: RECORDS_PER_CHANGE // records_per_drop(state, key[0])], now_ms)


def add_holder(state: ClusterState, segment_id: SegmentId, node_id: NodeId) -> Change:
    """A copy was made while its segment was deleted: its node gets the order, too."""
    record = state.deleted.get(segment_id)
    if record is None or node_id in record.holders:
        return Change()
    return Change((updated(record, holders=(*record.holders, node_id)),))


@dataclass(frozen=True, slots=True)
class Sacrifice:
    """The oldest part of a partition that would free bytes of one node, if it went."""

    key: PartitionKey
    offset: int
    """Log start of the partition after the deletion."""
    length_bytes: int
    appended_ms: int
    """When the last record of it was appended, as leaders' clocks had it."""


def sacrifices(state: ClusterState, node_id: NodeId) -> list[list[Sacrifice]]:
    """By partition of topics that allow it, what could go of a node's disk, oldest first."""
    topics = [each for each in live_topics(state) if each.retention.on_full == DELETE_OLDEST]
    return [
        list(_sacrifices_of(state, partition, node_id))
        for topic in topics
        for partition in state.partitions_of(topic)
    ]


def _sacrifices_of(
    state: ClusterState, partition: PartitionRecord, node_id: NodeId
) -> Iterator[Sacrifice]:
    for record in below_start(state, partition.partition_key, partition.next_base_offset):
        segment = record.segment
        if segment.end_offset > partition.log_start_offset and node_id in record.holders:
            yield Sacrifice(
                partition.partition_key,
                segment.end_offset,
                segment.length_bytes,
                record.max_append_timestamp_ms,
            )


def spare_tails(state: ClusterState, node_id: NodeId) -> list[Segment]:
    """Active segments on a node whose records could go if they were sealed."""
    topics = [each for each in live_topics(state) if each.retention.on_full == DELETE_OLDEST]
    tails = [state.tail(partition) for topic in topics for partition in state.partitions_of(topic)]
    return [
        each.segment
        for each in tails
        if each is not None
        and each.segment.state == SegmentState.ACTIVE
        and node_id in each.segment.replicas
    ]


def going_bytes(state: ClusterState, node_id: NodeId) -> int:
    """Return the bytes that the node will gain from deletions: ordered ones that it has not carried
    out yet, and those to come."""
    ordered = (state.deleted[each] for each in state.deleted_held)
    going = (
        state.segments[each]
        for each in state.segments_of_node.get(node_id, ())
        if is_below_start(state, state.segments[each])
    )
    return sum(each.length_bytes for each in ordered if node_id in each.holders) + sum(
        each.segment.length_bytes for each in going
    )


def held_bytes(state: ClusterState, node_id: NodeId, tail_bytes: Callable[[SegmentId], int]) -> int:
    """Return the length of all logs that a node keeps: without those that are to be deleted.

    Args:
        state: The cluster.
        node_id: Whose.
        tail_bytes: How long a segment is that is not sealed, as its leader says.
    """
    kept = (state.segments[each] for each in state.segments_of_node.get(node_id, ()))
    return sum(
        each.segment.length_bytes
        if each.segment.state == SegmentState.SEALED
        else tail_bytes(each.segment.segment_id)
        for each in kept
        if not is_below_start(state, each)
    )


def sacrifice(state: ClusterState, given: Sacrifice) -> Change:
    """Move the log start behind it, if the topic still allows that."""
    topic, partition = state.topics.get(given.key[0]), state.partitions.get(given.key)
    if topic is None or partition is None:
        return Change()
    if not topic.is_live or topic.retention.on_full != DELETE_OLDEST:
        return Change()
    return _moved(state, partition, given.offset, partition.next_base_offset)


# --- holds ----------------------------------------------------------------------------------------

HOLD_MS_MAX = 24 * 3600 * 1000
LEASE_ID_BYTES = 16
OWNER_CHARS_MAX = 200


def hold(state: ClusterState, topic: str, asked: StoredHold, *, is_renewal: bool) -> Change:
    """Hold a topic from now on, or longer than before.

    Args:
        state: The cluster.
        topic: Its name.
        asked: The hold; its ``until_ms`` is a duration.
        is_renewal: There must be one that has not ended.

    Raises:
        UnknownTopicError: There is no such topic.
        InvalidRequestError: The hold is malformed, too long, or one too many.
        ConflictError: It is to be renewed and has ended, or never was.
    """
    _check(asked)
    record, now_ms = state.topic(topic), state.counted_ms
    live = {each.lease_id: each for each in record.holds if each.until_ms > now_ms}
    known = live.pop(asked.lease_id, None)
    if is_renewal and known is None:
        raise ConflictError(
            f"the hold {asked.lease_id.hex()} of topic {topic!r} has ended: retention may have "
            "taken what it held. Take a new snapshot, and hold it for longer",
            topic=topic,
        )
    if known is None and len(live) >= HOLDS_MAX:
        raise InvalidRequestError(
            f"topic {topic!r} has {HOLDS_MAX} holds, which is the most: end one of those who read "
            "it, or wait until a hold ends"
        )
    until_ms = max(now_ms + asked.until_ms, known.until_ms if known else 0)
    following = StoredHold(asked.lease_id, until_ms, known.owner if known else asked.owner)
    if following == known:
        return Change()  # somebody has only asked whether it lasts
    return Change((updated(record, holds=(*live.values(), following)),))


def _check(asked: StoredHold) -> None:
    """Raises InvalidRequestError."""
    if len(asked.lease_id) != LEASE_ID_BYTES:
        raise InvalidRequestError(f"the id of a hold has {LEASE_ID_BYTES} bytes")
    if not 0 < asked.until_ms <= HOLD_MS_MAX:
        raise InvalidRequestError(f"a topic is held for 1 to {HOLD_MS_MAX} ms at a time")
    if len(asked.owner) > OWNER_CHARS_MAX:
        raise InvalidRequestError(f"the owner of a hold has {OWNER_CHARS_MAX} characters at most")


def let_go(state: ClusterState, topic: str, lease_id: bytes) -> Change:
    """End a hold; nothing happens when it has ended. Raises UnknownTopicError."""
    record = state.topic(topic)
    left = tuple(each for each in record.holds if each.lease_id != lease_id)
    return Change() if left == record.holds else Change((updated(record, holds=left),))
