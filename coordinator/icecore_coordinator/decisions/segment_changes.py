"""Decisions about segments: prepare, open, recover, seal, count replicas. Pure.

Each function checks what must hold *now* and returns the ``Change`` that makes it so, or raises
the error the asker gets. Nothing here waits: whoever waited for nodes in between calls again with
the version it started from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from icecore.errors import (
    ConflictError,
    FencedError,
    IcecoreError,
    InvalidRequestError,
    NotEnoughReplicasError,
    NotLeaderError,
    UnknownTopicError,
)
from icecore.model import (
    EPOCH_STEP,
    SEGMENT_ID_MAX,
    Epoch,
    Incarnation,
    NodeId,
    NodeState,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    Placement,
    may_lose_copies,
    newest_in,
    next_of,
    without_repeats,
)
from icecore_coordinator.state.left_out import base_behind, left_out
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    Change,
    PartitionKey,
    SegmentRecord,
    drop,
    is_prepared,
    updated,
    updated_segment,
    without_copies,
)
from icecore_replication.isr import IsrProposal, accept_isr_change
from icecore_replication.producers import snapshot_digest

IDS_PASSED_OVER: Final = 1 << 20
"""Segment ids that are not given out where a node has something else under one of them."""
IDS_PASSED_OVER_UNTIL: Final = SEGMENT_ID_MAX // 2
"""The rest is for segments."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A prepared segment and the nodes that confirmed it, with the incarnation they had."""

    segment_id: SegmentId
    confirmed: Mapping[NodeId, Incarnation]


@dataclass(frozen=True, slots=True)
class DecidedSeal:
    """The decided end of a segment and what is known of its bytes."""

    segment_id: SegmentId
    version: int
    """Version of the record that the decision is based on; it freezes the record's state and
    in-sync set."""
    end_offset: int
    seal_digest: bytes
    replicas: tuple[NodeId, ...]
    """Nodes verified to hold everything below ``end_offset``, durably."""
    length_bytes: int = 0
    producer_digest: bytes = b""
    max_append_timestamp_ms: int = 0
    is_lossy: bool = False
    """Its end was not proved; without replicas nothing is left of it."""
    seen_end_offset: int = 0
    """Readers are known to have come so far. It counts for an end that was not proved."""

    @property
    def next_base_offset(self) -> int:
        """Return the offset at which the partition goes on."""
        if not self.is_lossy:
            return self.end_offset
        return base_behind(self.end_offset, self.seen_end_offset)


def prepare(state: ClusterState, places: Sequence[tuple[PartitionKey, Placement]]) -> Change:
    """PREPARED records for the next segments of some partitions, in the order given.

    Raises:
        UnknownTopicError: a partition is gone or its topic is deleted.
    """
    counter = next_of(state, "segment_id")
    records = []
    for number, (key, place) in enumerate(places):
        topic = state.topics.get(key[0])
        partition = state.partitions.get(key)
        if topic is None or not topic.is_live or partition is None:
            raise UnknownTopicError(f"partition {key[1]} of topic {key[0].hex()} is gone")
        segment = Segment(
            segment_id=SegmentId(counter.next_value + number),
            topic_id=topic.topic_id,
            topic=topic.name,
            partition=partition.partition,
            state=SegmentState.PREPARED,
            epoch=Epoch(partition.last_epoch + EPOCH_STEP),
            settings=topic.settings,
            leader=place.leader,
            replicas=place.nodes,
            version=1,
        )
        # Above 0, which says that a record is of before it was counted.
        since_ms = max(1, state.counted_ms)
        records.append(SegmentRecord(segment, holders=place.nodes, since_ms=since_ms))
    if not records:
        return Change()
    return Change((updated(counter, next_value=counter.next_value + len(records)), *records))


def pass_over_ids(state: ClusterState, taken: SegmentId, spread: int) -> Change:
    """A node has something else under an id that was just given out (R65): the next ids begin far
    above it, where nobody has guessed them.

    Args:
        state: The cluster.
        taken: The highest such id.
        spread: Any number that nobody knows beforehand.
    """
    counter = next_of(state, "segment_id")
    next_value = taken + IDS_PASSED_OVER + spread % IDS_PASSED_OVER
    is_done = counter.next_value > taken + IDS_PASSED_OVER // 2
    if is_done or next_value > IDS_PASSED_OVER_UNTIL:
        return Change()
    return Change((updated(counter, next_value=next_value),))


def open_tail(state: ClusterState, live: Liveness, opening: Opening) -> Change:
    """PREPARED to ACTIVE in a partition that has no tail.

    Raises:
        ConflictError: the segment is not PREPARED any more, or the partition has a tail.
        NotEnoughReplicasError: fewer than min_insync_replicas confirmations are of registered
            incarnations.
        UnknownTopicError: the topic is deleted.
    """
    record = _prepared_record(state, opening.segment_id)
    partition = state.partitions[record.partition_key]
    if not state.is_live_topic(partition.topic_id):
        raise UnknownTopicError(f"topic {partition.topic_id.hex()} is deleted")
    if partition.tail_segment_id:
        raise ConflictError(f"the partition has segment {partition.tail_segment_id} as its tail")
    opened = _opened(state, live, record, opening, partition.next_base_offset, None)
    tail = updated(partition, tail_segment_id=opening.segment_id, last_epoch=opened.segment.epoch)
    return Change((opened, tail))


def start_recovery(state: ClusterState, segment_id: SegmentId, version: int) -> Change:
    """ACTIVE to RECOVERING: freezes the in-sync set, since leaders' changes fail from here on.

    Raises:
        ConflictError: the record changed since ``version`` or is not ACTIVE.
    """
    record = _at_version(state, segment_id, version)
    if record.segment.state != SegmentState.ACTIVE:
        raise ConflictError(f"segment {segment_id} is {record.segment.state.name}")
    return Change((updated_segment(record, {"state": SegmentState.RECOVERING}),))


def seal(
    state: ClusterState,
    live: Liveness,
    sealing: DecidedSeal,
    successor: Opening | None,
    now_ms: int,
) -> Change:
    """One transaction: ACTIVE or RECOVERING to SEALED, successor to ACTIVE, tail moved.

    An empty segment is dropped instead, and needs a successor: its replicas hold the only
    snapshot of the producers at that offset that is certain to exist. In a deleted topic nothing
    opens, and an empty segment goes if what precedes it has that snapshot, too.

    Args:
        state: The cluster.
        live: Who may lead the successor.
        sealing: What was decided, at which version.
        successor: None when it could not be opened; the partition has no tail then. It is not
            opened in a deleted topic.
        now_ms: Wall clock, kept in deletion records.

    Raises:
        ConflictError: the record changed since, or the successor is not PREPARED any more.
        NotEnoughReplicasError: fewer than min_insync_replicas verified replicas or valid
            confirmations.
        InvalidRequestError: the end is below the base.
    """
    record = _at_version(state, sealing.segment_id, sealing.version)
    segment = record.segment
    partition = state.partitions[record.partition_key]
    if segment.state not in (SegmentState.ACTIVE, SegmentState.RECOVERING):
        raise ConflictError(f"segment {segment.segment_id} is {segment.state.name}")
    if sealing.end_offset < segment.base_offset:
        raise InvalidRequestError(f"end {sealing.end_offset} is below base {segment.base_offset}")
    is_live = state.is_live_topic(partition.topic_id)
    successor = successor if is_live else None
    is_empty = sealing.end_offset == segment.base_offset
    if is_empty and successor is None and (is_live or awaits_topic(state, segment)):
        raise NotEnoughReplicasError("an empty segment stays until its successor can be opened")
    is_lost = sealing.is_lossy and not sealing.replicas
    needed, found = segment.settings.min_insync_replicas, len(sealing.replicas)
    if not is_empty and not is_lost and found < needed:
        raise NotEnoughReplicasError(f"{found} verified replicas, {needed} needed")
    next_base = sealing.next_base_offset
    moved = updated(partition, tail_segment_id=0, next_base_offset=next_base)
    change = Change()
    if successor is not None:
        prepared = _prepared_record(state, successor.segment_id)
        if prepared.partition_key != record.partition_key:
            raise ConflictError(f"segment {successor.segment_id} is of another partition")
        opened = _opened(state, live, prepared, successor, next_base, segment)
        moved = updated(
            partition,
            tail_segment_id=successor.segment_id,
            next_base_offset=next_base,
            last_epoch=opened.segment.epoch,
        )
        change = Change((opened,))
    abandoned = [
        each
        for each in _newest_unsealed(state, record.partition_key)
        if is_prepared(each)
        and (successor is None or each.segment.segment_id != successor.segment_id)
    ]
    sealed = _sealed(record, sealing, state.counted_ms)
    change = change + Change((moved,)) + drop(abandoned, now_ms)
    if sealing.is_lossy:
        counter = next_of(state, "segment_id")
        change = change + left_out(counter, state.counted_ms, sealed, sealing.seen_end_offset)
    return change + (drop([record], now_ms) if is_empty else Change((sealed,)))


def awaits_topic(state: ClusterState, empty: Segment) -> bool:
    """Return whether an empty segment stays until its deleted topic is back: its replicas alone
    know the producers at its base."""
    return not state.is_live_topic(empty.topic_id) and not _is_start_known(state, empty)


def _is_start_known(state: ClusterState, segment: Segment) -> bool:
    """Return whether a segment could begin at this one's base without this one: nothing was ever
    before it, or what ends there is sealed and somebody has it."""
    if segment.base_offset == 0:
        return True
    for each in newest_in(state, (segment.topic_id, segment.partition)):
        before = each.segment
        if before.state == SegmentState.SEALED:
            if before.end_offset < segment.base_offset:
                break  # those before it end earlier yet
            if before.end_offset == segment.base_offset and before.replicas:
                return True
    return False


def _newest_unsealed(state: ClusterState, key: PartitionKey) -> list[SegmentRecord]:
    """Return the segments behind the newest sealed segment of a partition, oldest first."""
    newest = takewhile(
        lambda each: each.segment.state != SegmentState.SEALED, newest_in(state, key)
    )
    return list(newest)[::-1]


def _sealed(record: SegmentRecord, sealing: DecidedSeal, counted_ms: int) -> SegmentRecord:
    fields = {
        "state": SegmentState.SEALED,
        "end_offset": sealing.end_offset,
        "seal_digest": sealing.seal_digest,
        "length_bytes": sealing.length_bytes,
        "replicas": sealing.replicas,
        "isr": (),
        "lossy": sealing.is_lossy,
    }
    return updated_segment(
        record,
        fields,
        holders=without_repeats((*record.holders, *sealing.replicas)),
        producer_digest=sealing.producer_digest,
        max_append_timestamp_ms=sealing.max_append_timestamp_ms,
        since_ms=counted_ms,
    )


def drop_prepared(state: ClusterState, segment_ids: Sequence[SegmentId], now_ms: int) -> Change:
    """Abandon those of the ids that are still PREPARED."""
    records = [state.segments[each] for each in segment_ids if each in state.segments]
    return drop([each for each in records if is_prepared(each)], now_ms)


def alter_isr(
    state: ClusterState, live: Liveness, segment_id: SegmentId, proposal: IsrProposal
) -> Change:
    """A leader's proposal of a new in-sync set.

    Raises IcecoreError: why ``accept_isr_change`` refuses it.
    """
    record = _record(state, segment_id)
    may_join = {each: state.incarnation(each) for each in proposal.isr if live.is_eligible(each)}
    segment = accept_isr_change(record.segment, proposal, may_join)
    if isinstance(segment, IcecoreError):
        raise segment
    return Change((replace(record, segment=segment),))


def check_leader(
    state: ClusterState,
    segment_id: SegmentId,
    epoch: Epoch,
    node_id: NodeId,
    incarnation: Incarnation,
) -> SegmentRecord:
    """The ACTIVE record of a segment that the asker leads.

    Raises:
        NotLeaderError: it does not, or did in an earlier incarnation or epoch.
        ConflictError: the segment is not ACTIVE.
    """
    record = _record(state, segment_id)
    segment = record.segment
    if (segment.leader, segment.leader_incarnation) != (node_id, incarnation):
        raise NotLeaderError(
            f"node {node_id} incarnation {incarnation} does not lead segment {segment_id}",
            leader_node_id=segment.leader,
        )
    if segment.epoch != epoch:
        raise FencedError(f"segment {segment_id} has epoch {segment.epoch}, not {epoch}")
    if segment.state != SegmentState.ACTIVE:
        raise ConflictError(f"segment {segment_id} is {segment.state.name}")
    return record


def add_sealed_replica(
    state: ClusterState,
    segment_id: SegmentId,
    node_id: NodeId,
    incarnation: Incarnation,
    seal_digest: bytes,
) -> Change:
    """Count a repaired copy.

    Raises:
        ConflictError: the segment is not SEALED with this digest, or the node restarted since, or
            has an order to drop its copy.
    """
    record = _record(state, segment_id)
    segment = record.segment
    if segment.state != SegmentState.SEALED or segment.seal_digest != seal_digest:
        raise ConflictError(f"segment {segment_id} is not sealed with this digest")
    if segment.is_remote_only:
        raise ConflictError(f"segment {segment_id} lies in object storage alone")
    if state.incarnation(node_id) != incarnation:
        raise ConflictError(f"node {node_id} restarted during the repair of segment {segment_id}")
    if node_id in segment.surplus:
        raise ConflictError(f"node {node_id} is dropping its copy of segment {segment_id}")
    if node_id in segment.replicas:
        return Change()
    replicas = (*segment.replicas, node_id)
    holders = without_repeats((*record.holders, node_id))
    return Change((updated_segment(record, {"replicas": replicas}, holders=holders),))


def remove_sealed_replica(
    state: ClusterState, segment_id: SegmentId, node_id: NodeId, now_ms: int = 0
) -> Change:
    """Stop counting a copy that is lost or damaged; the last one stays listed, for better or worse,
    unless object storage has all of it.

    Args:
        state: The cluster.
        segment_id: Of the segment.
        node_id: Whose copy it is.
        now_ms: Wall clock, kept in deletion records.

    Raises ConflictError when there is no such segment any more, or it is not SEALED.
    """
    record = _record(state, segment_id)
    segment = record.segment
    if segment.state != SegmentState.SEALED:
        raise ConflictError(f"segment {segment_id} is {segment.state.name}")
    replicas = tuple(each for each in segment.replicas if each != node_id)
    if replicas == segment.replicas:
        return Change()
    if not replicas:
        return without_copies(record, now_ms) if may_lose_copies(state, record) else Change()
    return Change((updated_segment(record, {"replicas": replicas}),))


def is_sealed_state(record: SegmentRecord, snapshot: bytes) -> bool:
    """Return whether these are the producers that were agreed on at the seal (segments that were
    sealed without saying so match any)."""
    return record.producer_digest in (b"", snapshot_digest(snapshot))


def _opened(
    state: ClusterState,
    live: Liveness,
    record: SegmentRecord,
    opening: Opening,
    base_offset: int,
    predecessor: Segment | None,
) -> SegmentRecord:
    """The ACTIVE record, on those candidates whose confirmation is of the registered incarnation.

    Those that are draining are left out, or at least do not lead, where others are enough.
    Everyone starts in sync, unless the leader stays: then who was outside of the predecessor's
    in-sync set or is new joins later, so that a slow node does not hold up a roll.
    """
    segment = record.segment
    members = tuple(
        each
        for each in segment.replicas
        if each in opening.confirmed and opening.confirmed[each] == state.incarnation(each) > 0
    )
    needed = segment.settings.min_insync_replicas
    if len(members) < max(needed, 1):
        raise NotEnoughReplicasError(
            f"segment {segment.segment_id}: {len(members)} nodes confirmed, {needed} needed"
        )
    stay = tuple(each for each in members if live.state_of(each) != NodeState.DRAINING)
    if len(stay) >= max(needed, 1):
        members = stay
    up = [each for each in stay if live.is_live(each)] or list(members)
    leader = segment.leader if segment.leader in up else up[0]
    incarnation = state.incarnation(leader)
    isr = members
    if predecessor and (predecessor.leader, predecessor.leader_incarnation) == (
        leader,
        incarnation,
    ):
        stayed = [each for each in members if each in predecessor.isr]
        new = [each for each in members if each not in predecessor.isr]
        isr = without_repeats((leader, *stayed, *new[: max(0, needed - len(stayed))]))
    fields = {
        "state": SegmentState.ACTIVE,
        "base_offset": base_offset,
        "leader": leader,
        "leader_incarnation": incarnation,
        "replicas": members,
        "isr": isr,
    }
    return updated_segment(record, fields, since_ms=state.counted_ms)


def _record(state: ClusterState, segment_id: SegmentId) -> SegmentRecord:
    record = state.segments.get(segment_id)
    if record is None:
        raise ConflictError(f"there is no segment {segment_id}")
    return record


def _at_version(state: ClusterState, segment_id: SegmentId, version: int) -> SegmentRecord:
    record = _record(state, segment_id)
    if record.version != version:
        raise ConflictError(
            f"segment {segment_id} is at version {record.version}, not {version}",
            version=record.version,
        )
    return record


def _prepared_record(state: ClusterState, segment_id: SegmentId) -> SegmentRecord:
    record = _record(state, segment_id)
    if not is_prepared(record):
        raise ConflictError(f"segment {segment_id} is {record.segment.state.name}, not PREPARED")
    return record
