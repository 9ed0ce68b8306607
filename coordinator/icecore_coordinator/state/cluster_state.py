"""The metadata of the whole cluster in memory: its records, the indexes over them, the questions.

Pure. Decisions (``node_changes``, ``segment_changes``, ``topic_changes``) read a ``ClusterState``
and return a ``Change`` of its ``records``. The shell commits it, then applies it here.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from icecore.errors import InternalError, TopicExistsError, UnknownTopicError
from icecore.model import (
    NO_COORDINATOR_EPOCH,
    NO_INCARNATION,
    NO_SEGMENT,
    CoordinatorEpoch,
    Incarnation,
    NodeId,
    NodeInfo,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.tier_records import TierRecord, TierState, TierTopicRecord
from icecore_coordinator.state.counts import OpenSegments, Totals
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.record_json import decode
from icecore_coordinator.state.records import (
    Change,
    ClusterRecord,
    CounterRecord,
    DeletionRecord,
    NodeRecord,
    PartitionKey,
    PartitionRecord,
    PositionRecord,
    ProducerRecord,
    Record,
    ReportedStateRecord,
    SegmentRecord,
    TopicRecord,
    is_over_replicated,
    is_under_replicated,
    updated,
)
from icecore_coordinator.state.saved_positions import PositionIndex
from icecore_coordinator.state.tier_index import TierIndex

Decision: TypeAlias = Callable[["ClusterState"], Change]
"""A function that returns the change for the newest state, or raises IcecoreError to refuse."""


@dataclass
class ClusterState:
    """All records by key, and the indexes the coordinator asks by."""

    cluster: ClusterRecord | None = None
    metadata_revision: int = 0
    """How often the metadata store was changed, as of this state."""
    counters: dict[str, CounterRecord] = field(default_factory=dict)
    nodes: dict[NodeId, NodeRecord] = field(default_factory=dict)
    topics: dict[bytes, TopicRecord] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    """By name, of topics that are not deleted."""
    partitions: dict[PartitionKey, PartitionRecord] = field(default_factory=dict)
    segments: dict[SegmentId, SegmentRecord] = field(default_factory=dict)
    deleted: dict[SegmentId, DeletionRecord] = field(default_factory=dict)
    deleted_held: dict[SegmentId, None] = field(default_factory=dict)
    """Those of which some node may still have bytes; the others are only remembered."""
    producers: dict[str, ProducerRecord] = field(default_factory=dict)
    positions: PositionIndex[PositionRecord] = field(default_factory=PositionIndex)
    """Positions that readers saved."""
    heard: dict[int, ReportedStateRecord] = field(default_factory=dict)
    """As stored, by slot; ``icecore_coordinator.nodes.reported_state`` has what is newer."""
    unsealed: dict[SegmentId, None] = field(default_factory=dict)
    """Segments that are PREPARED, ACTIVE or RECOVERING."""
    open: OpenSegments = field(default_factory=OpenSegments)
    """The same segments by leader and node."""
    prepared: dict[SegmentId, None] = field(default_factory=dict)
    """Segments that are PREPARED."""
    short: dict[SegmentId, None] = field(default_factory=dict)
    """Unsealed segments with fewer replicas than their replication factor."""
    thin: dict[SegmentId, None] = field(default_factory=dict)
    """SEALED segments with fewer replicas than their replication factor."""
    thick: dict[SegmentId, None] = field(default_factory=dict)
    """SEALED segments with more copies than their replication factor, verified or not."""
    dropping: dict[SegmentId, None] = field(default_factory=dict)
    """SEALED segments of which some node is ordered to drop a copy."""
    segments_of_partition: dict[PartitionKey, dict[SegmentId, None]] = field(default_factory=dict)
    """In no order that counts: ``ids_in`` has one."""
    misplaced: dict[PartitionKey, None] = field(default_factory=dict)
    """Partitions whose ids are to be put in order before anybody asks for it."""
    segments_of_node: dict[NodeId, dict[SegmentId, None]] = field(default_factory=dict)
    """By replica, not by holder."""
    held: Counter[NodeId] = field(default_factory=Counter)
    """By node: segments and deletion records that name it as a holder."""
    totals: Totals = field(default_factory=Totals)
    """Counts over all of them."""
    tiers: TierIndex = field(default_factory=TierIndex)
    """Index of the segments in object storage, and of those that could go there."""
    coordinator_epoch: CoordinatorEpoch = NO_COORDINATOR_EPOCH
    """Epoch of the coordinator that reads and writes this state; 0 before it has one."""
    counted_ms: int = 0
    """How much time coordinators have counted until now; the ledger moves it before each decision.
    No wall clock moves it, and it may stand still, so ages by it are never too high (R73)."""

    def load(self, stored: Iterable[tuple[type[Record], str, int]]) -> None:
        """Fill an empty state with (type, stored form, version) of every record."""
        for cls, text, version in stored:
            record = decode(cls, text)
            if record.version != version:
                raise InternalError(f"{record.key}: version {record.version} stored as {version}")
            self._put(record)

    def apply(self, change: Change) -> None:
        """Take over a change that is committed."""
        for record in change.deletes:
            self._remove(record)
        for record in change.puts:
            self._put(record)

    def _put(self, record: Record) -> None:
        match record:
            case SegmentRecord():  # first, for nearly all are
                self._put_segment(record)
            case ClusterRecord():
                self.cluster = record
                self.tiers.note_store(record.tier_url, record.store_id, record.forgotten_store_id)
            case CounterRecord():
                self.counters[record.name] = record
            case NodeRecord():
                self.nodes[record.node_id] = record
                self.tiers.note_node(record.node_id, record.tier_url)
            case TopicRecord():
                self._put_topic(record)
            case PartitionRecord():
                if record.partition_key not in self.partitions:
                    self.totals.count_partition(record.topic_id, 1)
                self.partitions[record.partition_key] = record
                is_stale = record.table_revision < record.tier_revision
                self.tiers.note_table(record.partition_key, is_stale=is_stale)
            case DeletionRecord():
                known = self.deleted.get(record.segment_id)
                self._count_holders(known.holders if known else (), record.holders)
                self.deleted[record.segment_id] = record
                self.deleted_held.pop(record.segment_id, None)
                if record.holders:
                    self.deleted_held[record.segment_id] = None
            case ProducerRecord():
                self.producers[record.name] = record
            case ReportedStateRecord():
                self.heard[record.slot] = record
            case PositionRecord():
                self.positions.put(record)
            case TierRecord() | TierTopicRecord():
                self.tiers.put(record)

    def _put_topic(self, record: TopicRecord) -> None:
        self.topics[record.topic_id] = record
        if record.is_live:
            self.topic_ids[record.name] = record.topic_id
        elif self.topic_ids.get(record.name) == record.topic_id:
            del self.topic_ids[record.name]

    def _put_segment(self, record: SegmentRecord) -> None:
        segment = record.segment
        before = self.segments.get(segment.segment_id)
        if before is None:
            self._note_place(record)
        else:
            self._forget_copies(before.segment)
        self._count_holders(before.holders if before else (), record.holders)
        for node_id in segment.replicas:
            self.segments_of_node.setdefault(node_id, {})[segment.segment_id] = None
        self.segments[segment.segment_id] = record
        is_thin = is_under_replicated(record)
        self.totals.put(segment, is_under_replicated=is_thin)
        self.tiers.put_segment(segment)
        if segment.state != SegmentState.SEALED:
            self._note_unsealed(segment)
            return
        self.unsealed.pop(segment.segment_id, None)
        if is_thin:
            self.thin[segment.segment_id] = None
        if is_over_replicated(record):
            self.thick[segment.segment_id] = None
        if segment.surplus:
            self.dropping[segment.segment_id] = None

    def _note_unsealed(self, segment: Segment) -> None:
        self.unsealed[segment.segment_id] = None
        self.open.put(segment)
        if segment.state == SegmentState.PREPARED:
            self.prepared[segment.segment_id] = None
        if len(segment.replicas) < segment.settings.replication_factor:
            self.short[segment.segment_id] = None

    def _forget_copies(self, segment: Segment) -> None:
        """Remove the segment from the indexes that depend on its copies."""
        segment_id = segment.segment_id
        self.open.remove(segment)
        self.totals.remove(segment)
        self.tiers.remove_segment(segment)
        for node_id in segment.replicas:
            self.segments_of_node[node_id].pop(segment_id, None)
        for each in (self.prepared, self.short, self.thin, self.thick, self.dropping):
            each.pop(segment_id, None)

    def _count_holders(self, before: tuple[NodeId, ...], after: tuple[NodeId, ...]) -> None:
        if before is after:  # as in most changes
            return
        for node_id in before:
            self.held[node_id] -= 1
        for node_id in after:
            self.held[node_id] += 1

    def _note_place(self, record: SegmentRecord) -> None:
        """Behind the others of its partition, where it belongs unless it was merged or restored."""
        ids = self.segments_of_partition.setdefault(record.partition_key, {})
        if ids and _place(record) < _place(self.segments[next(reversed(ids))]):
            self.misplaced[record.partition_key] = None
        ids[record.segment.segment_id] = None

    def _remove(self, record: Record) -> None:
        match record:
            case TopicRecord():
                del self.topics[record.topic_id]
                if self.topic_ids.get(record.name) == record.topic_id:
                    del self.topic_ids[record.name]
            case PartitionRecord():
                del self.partitions[record.partition_key]
                self.totals.count_partition(record.topic_id, -1)
                self.tiers.note_table(record.partition_key, is_stale=False)
                self.segments_of_partition.pop(record.partition_key, None)
                self.misplaced.pop(record.partition_key, None)
            case NodeRecord():
                del self.nodes[record.node_id]
                self.tiers.note_node(record.node_id, "")
            case DeletionRecord():
                self._count_holders(self.deleted.pop(record.segment_id).holders, ())
                self.deleted_held.pop(record.segment_id, None)
            case SegmentRecord():
                segment_id = record.segment.segment_id
                self._count_holders(self.segments.pop(segment_id).holders, ())
                self._forget_copies(record.segment)
                self.unsealed.pop(segment_id, None)
                self.segments_of_partition[record.partition_key].pop(segment_id, None)
            case PositionRecord():
                self.positions.remove(record)
            case ProducerRecord():
                del self.producers[record.name]
            case TierRecord() | TierTopicRecord():
                self.tiers.remove(record)
            case _:
                raise InternalError(f"{record.key} can't be deleted")

    # --- questions ------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> bytes:
        """16 bytes; empty before the cluster record is written."""
        return self.cluster.cluster_id if self.cluster else b""

    def topic(self, name: str) -> TopicRecord:
        """The live topic of this name. Raises UnknownTopicError."""
        record = self.topics.get(self.topic_ids.get(name, b""))
        if record is None:
            raise UnknownTopicError(f"no topic {name!r}", topic=name)
        return record

    def is_live_topic(self, topic_id: bytes) -> bool:
        """Return whether there is such a topic, and it is not deleted."""
        record = self.topics.get(topic_id)
        return record is not None and record.is_live

    def partitions_of(self, topic: TopicRecord) -> Iterator[PartitionRecord]:
        """Those that exist already, in order."""
        for number in range(topic.partitions):
            record = self.partitions.get((topic.topic_id, number))
            if record is not None:
                yield record

    def segments_in(self, key: PartitionKey) -> list[SegmentRecord]:
        """All records of one partition, oldest first: in the order of ``ids_in``."""
        return [self.segments[each] for each in ids_in(self, key)]

    def tail(self, partition: PartitionRecord) -> SegmentRecord | None:
        """The ACTIVE or RECOVERING segment of a partition."""
        return self.segments.get(partition.tail_segment_id)

    def assignment(self, record: SegmentRecord) -> Segment:
        """The segment as others get to see it: with the log start of its partition, and with the
        name that its topic has now, which is none while it is deleted."""
        segment = record.segment
        partition = self.partitions.get(record.partition_key)
        start = partition.log_start_offset if partition else 0
        name = self.name_of(segment.topic_id)
        if (start, name) == (segment.log_start_offset, segment.topic):
            return segment
        return segment.changed(log_start_offset=start, topic=name)

    def name_of(self, topic_id: bytes) -> str:
        """Return the name by which clients know a topic; empty when it is deleted."""
        record = self.topics.get(topic_id)
        return record.name if record is not None and record.is_live else ""

    def incarnation(self, node_id: NodeId) -> Incarnation:
        """The registered one, 0 when there is none."""
        record = self.nodes.get(node_id)
        return record.incarnation if record else NO_INCARNATION

    def leader_is_live(self, segment: Segment, live: Liveness) -> bool:
        """Return whether the leader is registered with the incarnation it leads in, and up."""
        is_registered = self.incarnation(segment.leader) == segment.leader_incarnation
        return is_registered and live.is_live(segment.leader)


def ids_in(state: ClusterState, key: PartitionKey) -> dict[SegmentId, None]:
    """Return the ids of all segments of a partition in the order of their offsets, PREPARED ones
    last. The ids alone give no order: a merged segment has a younger id than those behind it."""
    ids = state.segments_of_partition.get(key, {})
    if key in state.misplaced:
        del state.misplaced[key]
        ids = dict.fromkeys(sorted(ids, key=lambda each: _place(state.segments[each])))
        state.segments_of_partition[key] = ids
    return ids


def segments_from(
    state: ClusterState, key: PartitionKey, offset: int, after: SegmentId = NO_SEGMENT
) -> Iterator[SegmentRecord]:
    """Records of one partition, oldest first, without those that end at or below an offset, and
    without all up to a segment. Found by halving: ends grow from one to the next."""

    def ends_above(segment_id: SegmentId) -> bool:
        segment = state.segments[segment_id].segment
        return segment.state != SegmentState.SEALED or segment.end_offset > offset

    known = ids_in(state, key)
    ids = list(known)
    behind = ids.index(after) + 1 if after in known else 0
    at = bisect_left(ids, True, lo=behind, key=ends_above)
    return (state.segments[each] for each in ids[at:])


def last_with_records(
    state: ClusterState, key: PartitionKey, base_offset: int
) -> tuple[SegmentRecord | None, bool]:
    """Return the sealed segment that ends at an offset, but for what readers skip behind it; and
    whether they skip something there."""
    is_skipped = False
    while True:
        ended = [
            each
            for each in segments_from(state, key, base_offset - 1)
            if each.segment.state == SegmentState.SEALED and each.segment.end_offset == base_offset
        ]
        if not ended or not ended[-1].segment.is_skipped:
            return (ended[-1] if ended else None), is_skipped
        base_offset, is_skipped = ended[-1].segment.base_offset, True


def newest_in(state: ClusterState, key: PartitionKey) -> Iterator[SegmentRecord]:
    """All records of one partition, newest first, one by one: for who needs its end."""
    return (state.segments[each] for each in reversed(ids_in(state, key)))


@dataclass(frozen=True, slots=True)
class Placement:
    """Nodes and leader of one segment; ``leader`` is one of ``nodes``. Empty when no node is
    eligible."""

    nodes: tuple[NodeId, ...]
    leader: NodeId


@dataclass
class NodeLoad:
    """Numbers of unsealed segments that a node keeps and leads."""

    replicas: int = 0
    leads: int = 0


def without_repeats(nodes: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """The same node ids, each once, in order of first mention."""
    return tuple(dict.fromkeys(nodes))


def live_topics(state: ClusterState) -> list[TopicRecord]:
    """All that are not deleted, by name."""
    live = [record for record in state.topics.values() if record.is_live]
    return sorted(live, key=lambda record: record.name)


def check_free(state: ClusterState, name: str) -> None:
    """Raises TopicExistsError. Names of deleted topics are free."""
    if name in state.topic_ids:
        raise TopicExistsError(f"topic {name!r} exists")


def _place(record: SegmentRecord) -> tuple[bool, int, SegmentId]:
    each = record.segment
    return (each.base_offset < 0, each.base_offset, each.segment_id)


def next_of(state: ClusterState, counter: str) -> CounterRecord:
    """The counter's record, new when it was never used."""
    return state.counters.get(counter, CounterRecord(counter))


def eligible_nodes(state: ClusterState, live: Liveness) -> list[NodeRecord]:
    """Nodes that may get new replicas, by id."""
    found = (state.nodes[each] for each in sorted(state.nodes) if live.is_eligible(each))
    return [each for each in found if not each.is_drained]


def drained_nodes(state: ClusterState) -> list[NodeId]:
    """Nodes that a person wants empty, by id; up or not."""
    return sorted(each.node_id for each in state.nodes.values() if each.is_drained)


def node_infos(state: ClusterState, live: Liveness) -> list[NodeInfo]:
    """All registered nodes, by id."""
    return [
        NodeInfo(
            node_id=node_id,
            address=each.address,
            incarnation=each.incarnation,
            state=live.state_of(node_id),
            rack=each.rack,
            native_address=each.native_address,
        )
        for node_id, each in sorted(state.nodes.items())
        if each.incarnation
    ]


def load_of_nodes(state: ClusterState) -> dict[NodeId, NodeLoad]:
    """Unsealed replicas and leads of each node; every node has an entry."""
    replicas, leads = state.open.replicas, state.open.leads
    return {each: NodeLoad(replicas[each], leads[each]) for each in sorted(state.nodes)}


# --- what lies in object storage ------------------------------------------------------------------


def is_below_start(state: ClusterState, record: SegmentRecord) -> bool:
    """Return whether nobody may read any of it any more, so that no copy of it is worth making."""
    partition, segment = state.partitions.get(record.partition_key), record.segment
    return (
        partition is not None
        and segment.state == SegmentState.SEALED
        and segment.end_offset <= partition.log_start_offset
    )


def is_published(state: ClusterState, record: SegmentRecord) -> bool:
    """Return whether object storage has all of a sealed segment, by both of its records."""
    tier = state.tiers.segments.get(record.segment.segment_id)
    is_stored = tier is not None and tier.state is TierState.PUBLISHED
    return is_stored and record.segment.is_tiered and record.segment.state == SegmentState.SEALED


def may_lose_copies(state: ClusterState, record: SegmentRecord) -> bool:
    """Return whether nodes need not keep it: it is published, and no tail has to begin with what
    its replicas know of producers (the newest sealed segment, while no ACTIVE tail is behind
    it)."""
    partition = state.partitions.get(record.partition_key)
    if partition is None or not is_published(state, record):
        return False
    tail = state.tail(partition)
    if tail is not None and tail.segment.state == SegmentState.ACTIVE:
        return True
    last, _ = last_with_records(state, record.partition_key, partition.next_base_offset)
    return last is not record


def next_revision(state: ClusterState, key: PartitionKey) -> tuple[PartitionRecord, ...]:
    """Count a change of a partition's published segments; change nothing where the partition is
    gone."""
    partition = state.partitions.get(key)
    if partition is None:
        return ()
    return (updated(partition, tier_revision=partition.tier_revision + 1),)


def stored_version(state: ClusterState, topic: TopicRecord) -> int:
    """Return the version of what object storage says of a topic: its settings, whether it is
    deleted, and its log starts. All of it comes from one state, and whatever changes raises the
    version; so of two forms the later one counts."""
    return topic.settings_version + sum(each.start_version for each in state.partitions_of(topic))
