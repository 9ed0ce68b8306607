"""The records of the metadata store: what the coordinator writes down and finds after a restart.

Pure. A record is a frozen dataclass with a ``key`` and a ``version`` (0 = not stored yet, else the
version the store has for that key). A ``Change`` puts and deletes records in one transaction, each
conditional on the version it was derived from. ``cluster_state`` holds all of them in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from icecore.model import (
    FIRST_PRODUCER_EPOCH,
    NO_INCARNATION,
    NO_NODE,
    NO_SEGMENT,
    Epoch,
    Incarnation,
    NodeId,
    ProducerEpoch,
    ProducerId,
    Segment,
    SegmentId,
    SegmentState,
    is_named_id,
)
from icecore.tier_records import TierRecord, TierTopicRecord
from icecore.topic_settings import KEEP_ALL, NOT_TIERED, Retention, SegmentSettings, Tiering

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition number."""
RECORDS_PER_CHANGE = 100
"""etcd allows 128 operations in a transaction."""
NUMBER_JUMP_MAX = 1 << 20
"""Largest accepted jump of an incarnation or disk counter above the highest known: years of starts,
or weeks of heartbeats."""
SLOT_PARTITIONS: Final = 64
"""Partitions whose positions share a record."""
_BEFORE_ANY: Final = Epoch(-1)
"""``last_epoch`` of a partition that has had no segment."""
DELETE_GRACE_MS = 24 * 3600 * 1000
"""Default grace of topics: a mistake is noticed within a day."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The identity of the cluster, and where it keeps what is tiered."""

    prefix: ClassVar[str] = "cluster"
    cluster_id: bytes
    tier_url: str = ""
    """URL of the object store that was used first; empty = none was used."""
    store_id: bytes = b""
    """Identity of that store, as its marker says: 16 bytes; empty = not known."""
    forgotten_store_id: bytes = b""
    """Identity of the last one that a person gave up."""
    backup_at_ms: int = 0
    """When the last backup of the metadata was complete, by a wall clock; 0 = there was none."""
    backup_revision: int = 0
    """Revision of the metadata in it."""
    version: int = 0

    @property
    def key(self) -> str:
        return self.prefix


@dataclass(frozen=True, slots=True)
class CounterRecord:
    """Identifiers that are never handed out twice."""

    prefix: ClassVar[str] = "counter/"
    name: str
    next_value: int = 1
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.name}"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A storage node as registered."""

    prefix: ClassVar[str] = "node/"
    node_id: NodeId
    disk_id: bytes
    address: str
    rack: str = ""
    issued_incarnation: Incarnation = NO_INCARNATION
    """The newest one handed out by Register."""
    incarnation: Incarnation = NO_INCARNATION
    """The registered one: activated by the first heartbeat; 0 before that."""
    disk_since_segment_id: SegmentId = NO_SEGMENT
    """Its disk came, empty or old, when this id was next: it has no older unsealed segment."""
    is_disk_accepted: bool = False
    """A person said that it may come with another disk, whatever that costs; for one time."""
    native_address: str = ""
    """Empty in records of before there was one: gRPC is all that the node is known to speak."""
    protocol_version: int = 0
    """Protocol version of the registered process; 0 in older records, which lack it."""
    tier_url: str = ""
    """URL of the node's object store; empty = it has none."""
    host: str = ""
    """Name of its machine; empty in older records: of one that no other node is on."""
    is_drained: bool = False
    """A person wants it empty: it gets nothing new, and what it has goes to other nodes (R115)."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.node_id:08d}"


@dataclass(frozen=True, slots=True)
class StoredHold:
    """Somebody reads a topic as of one moment: nothing that is there goes by itself (R92)."""

    lease_id: bytes
    until_ms: int
    """In counted time."""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic. Its settings are pinned into each segment that is prepared from now on."""

    prefix: ClassVar[str] = "topic/"
    topic_id: bytes
    name: str
    partitions: int
    settings: SegmentSettings
    is_deleting: bool = False
    """For good: its segments become deletion records, then it goes itself."""
    delete_grace_ms: int = DELETE_GRACE_MS
    """How long it is kept once it is deleted."""
    is_deleted: bool = False
    """Nobody sees it and its name is free; its records are kept while there is grace left."""
    deleted_at_ms: int = 0
    """By the wall clock, for people. A topic that is hidden without it is being imported."""
    grace_left_ms: int = 0
    partition_counts: tuple[int, ...] = ()
    """All numbers of partitions so far, oldest first; 0 = those of before they were written down.
    Empty in records of that time."""
    retention: Retention = KEEP_ALL
    tiering: Tiering = NOT_TIERED
    holds: tuple[StoredHold, ...] = ()
    """Those that have ended stay until another one comes."""
    settings_version: int = 0
    """How often they were altered, and it was deleted or brought back: part of the version of what
    object storage says of it (``stored_version``)."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.topic_id.hex()}"

    @property
    def known_counts(self) -> tuple[int, ...]:
        """As ``partition_counts``, in older records, too."""
        return self.partition_counts or (0, self.partitions)

    @property
    def held_until_ms(self) -> int:
        """Until when, in counted time, nothing of it goes by itself; 0 = nobody holds it."""
        return max((each.until_ms for each in self.holds), default=0)

    @property
    def is_live(self) -> bool:
        """Return whether clients see it, and its partitions have tails."""
        return not (self.is_deleted or self.is_deleting)

    @property
    def is_kept(self) -> bool:
        """Deleted, but not yet for good."""
        return self.is_deleted and not (self.is_deleting or self.is_import)

    @property
    def is_import(self) -> bool:
        """Return whether it is being made of copies in object storage. Its objects are not its own
        before it is shown: when it goes, they stay."""
        return self.is_deleted and not self.deleted_at_ms


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A producer with a name: whoever takes the name gets a higher epoch of the same id."""

    prefix: ClassVar[str] = "producer/"
    name: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch = FIRST_PRODUCER_EPOCH
    instance: int = 0
    """Instance of the client that took the name last; only that client may renew the epoch."""
    taken_at_ms: int = 0
    """When it was taken or renewed last, by the wall clock of a coordinator; 0 in records of
    before. It is for people."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.name}"

    @property
    def is_known_to_nodes(self) -> bool:
        """Return whether leaders must know it: some epoch is shut out, or all unknown ids are."""
        return bool(self.producer_epoch) or is_named_id(self.producer_id)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """The start of a partition's log, and the segment that takes its appends."""

    prefix: ClassVar[str] = "partition/"
    topic_id: bytes
    partition: int
    log_start_offset: int = 0
    tail_segment_id: SegmentId = NO_SEGMENT
    """The ACTIVE or RECOVERING segment; 0 = none, one has to be opened."""
    next_base_offset: int = 0
    """Base of the tail, or of the one to open."""
    last_epoch: Epoch = _BEFORE_ANY
    """Epoch of the newest segment opened; a recovery promises the number above it."""
    tier_revision: int = 0
    """Number of publications and retirements of its segments."""
    table_revision: int = 0
    """The ``tier_revision`` that its table is known to have."""
    start_version: int = 0
    """How often its log start moved to where no published copy begins. Then only the settings in
    object storage can tell it, so this counts into their version (``stored_version``)."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.topic_id.hex()}/{self.partition:08d}"

    @property
    def partition_key(self) -> PartitionKey:
        return (self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment with what only the coordinator keeps of it."""

    prefix: ClassVar[str] = "segment/"
    segment: Segment
    """PREPARED: ``replicas`` are the candidates and ``leader`` the one meant to lead."""
    holders: tuple[NodeId, ...] = ()
    """Every node that was ever asked to keep bytes of it: who gets the delete intent."""
    producer_digest: bytes = b""
    max_append_timestamp_ms: int = 0
    is_unclean_allowed: bool = False
    """RECOVERING: an admin said to end it at the longest log left, if its end can't be proved."""
    is_unclean_begun: bool = False
    """True once the unclean end was tried: copies may end there, so the segment is lossy however it
    ends."""
    digest_nodes: tuple[NodeId, ...] = ()
    """SEALED: nodes that have reported a full digest, while no two replicas agree on one."""
    digests: tuple[bytes, ...] = ()
    """Full digests that ``digest_nodes`` reported, in the same order."""
    since_ms: int = 0
    """When it became what it is, PREPARED, ACTIVE or SEALED, in time that coordinators have counted
    (R73, R97). 0 in records of before it was counted."""

    @property
    def version(self) -> int:
        return self.segment.version

    @property
    def key(self) -> str:
        each = self.segment
        return f"{self.prefix}{each.topic_id.hex()}/{each.partition:08d}/{each.segment_id:020d}"

    @property
    def partition_key(self) -> PartitionKey:
        return (self.segment.topic_id, self.segment.partition)


@dataclass(frozen=True, slots=True)
class DeletionRecord:
    """An id that was deleted on purpose, so its bytes may go wherever they turn up."""

    prefix: ClassVar[str] = "deleted/"
    segment_id: SegmentId
    holders: tuple[NodeId, ...]
    """Nodes whose inventory has not yet shown that the bytes are gone."""
    deleted_at_ms: int
    length_bytes: int = 0
    """Length of its batches in bytes, if it was sealed: each holder gains these bytes."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.segment_id:020d}"


@dataclass(frozen=True, slots=True)
class ReportedStateRecord:
    """The last reports of nodes about their disks and unsealed segments (R58, R59), many in one
    row. A row has the segments of one id modulo ``icecore_coordinator.nodes.reported_state.SLOTS``;
    the disk counters have a slot of their own."""

    prefix: ClassVar[str] = "heard/"
    slot: int
    disk_counters: tuple[tuple[NodeId, int], ...] = ()
    """(node id, counter)."""
    high_watermarks: tuple[tuple[SegmentId, int], ...] = ()
    """(segment id, the highest one a leader told)."""
    durable_ends: tuple[tuple[SegmentId, NodeId, int], ...] = ()
    """(segment id, node id, durable end offset)."""
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.slot:03d}"


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of a reader in one partition."""

    partition: int
    offset: int
    """Offset of the next record to read."""
    version: int
    """Grows with each save; what was deleted and saved again goes on above (``first_version``)."""
    instance: int
    """Instance of the reader that saved it."""
    saved_at_ms: int
    """By the wall clock, for people."""


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The positions of one name in ``SLOT_PARTITIONS`` partitions of a topic, by partition: a
    reader of a thousand partitions saves with a few puts. Another topic of the same name has
    another id, and no positions."""

    prefix: ClassVar[str] = "position/"
    topic_id: bytes
    name: str
    slot: int
    positions: tuple[StoredPosition, ...] = ()
    version: int = 0

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.topic_id.hex()}/{self.name}/{self.slot:08d}"


Record: TypeAlias = (
    ClusterRecord
    | CounterRecord
    | NodeRecord
    | TopicRecord
    | PartitionRecord
    | SegmentRecord
    | DeletionRecord
    | ProducerRecord
    | ReportedStateRecord
    | PositionRecord
    | TierRecord
    | TierTopicRecord
)
RECORD_TYPES: tuple[type[Record], ...] = (
    ClusterRecord,
    CounterRecord,
    NodeRecord,
    TopicRecord,
    PartitionRecord,
    SegmentRecord,
    DeletionRecord,
    ProducerRecord,
    ReportedStateRecord,
    PositionRecord,
    TierRecord,
    TierTopicRecord,
)


@dataclass(frozen=True, slots=True)
class Change:
    """One transaction: holds only if each record is still at the version it was derived from."""

    puts: tuple[Record, ...] = ()
    """With the version they will have: one more than the stored one."""
    deletes: tuple[Record, ...] = ()
    """As they are stored now."""

    def __add__(self, other: "Change") -> "Change":
        return Change(self.puts + other.puts, self.deletes + other.deletes)

    def keys(self) -> list[str]:
        """Return the keys of all records that change."""
        return [record.key for record in (*self.puts, *self.deletes)]


R = TypeVar(
    "R",
    ClusterRecord,
    NodeRecord,
    TopicRecord,
    PartitionRecord,
    CounterRecord,
    DeletionRecord,
    ProducerRecord,
    ReportedStateRecord,
    TierRecord,
    TierTopicRecord,
)


def updated(record: R, **changes: Any) -> R:
    """The record's next version with some fields replaced."""
    return replace(record, version=record.version + 1, **changes)


def updated_segment(
    record: SegmentRecord, changes: Mapping[str, object], **record_changes: Any
) -> SegmentRecord:
    """The next version with some fields of the segment and of the record replaced."""
    segment = record.segment.changed(version=record.version + 1, **changes)
    return replace(record, segment=segment, **record_changes)


def drop(records: Sequence[SegmentRecord], now_ms: int) -> Change:
    """Remove segments and leave deletion records: intents to delete for who holds bytes. Of a
    segment that only lies in object storage there is one already."""
    deletions = tuple(
        DeletionRecord(
            each.segment.segment_id, each.holders, now_ms, each.segment.length_bytes, version=1
        )
        for each in records
        if each.holders and not each.segment.is_remote_only
    )
    return Change(deletions, tuple(records))


def without_copies(record: SegmentRecord, now_ms: int) -> Change:
    """The record without replicas, and the order to all its holders."""
    segment = record.segment
    remote = updated_segment(
        record,
        {"replicas": (), "surplus": (), "isr": (), "leader": NO_NODE},
        holders=(),
        digest_nodes=(),
        digests=(),
    )
    deletion = DeletionRecord(
        segment.segment_id, record.holders, now_ms, segment.length_bytes, version=1
    )
    return Change((remote, deletion))


def is_prepared(record: SegmentRecord) -> bool:
    """Return whether the segment is only meant to open."""
    return record.segment.state == SegmentState.PREPARED


def is_under_replicated(record: SegmentRecord) -> bool:
    """Fewer verified (sealed) or in-sync (unsealed) copies than the replication factor."""
    segment = record.segment
    copies = segment.replicas if segment.state == SegmentState.SEALED else segment.isr
    is_short = len(copies) < segment.settings.replication_factor
    is_kept_here = not (is_prepared(record) or segment.is_skipped or segment.is_remote_only)
    return is_short and is_kept_here


def is_over_replicated(record: SegmentRecord) -> bool:
    """Sealed, with more copies than the replication factor, of which that many are verified."""
    segment = record.segment
    if segment.state != SegmentState.SEALED:
        return False
    over = len(segment.replicas) - segment.settings.replication_factor
    return over > 0 or (over == 0 and bool(strays(record)))


def strays(record: SegmentRecord) -> list[NodeId]:
    """Return the nodes that may have bytes of a sealed segment which do not count. They belong to a
    follower that was behind, or to a copy that failed. A lossy segment has none: all its bytes are
    worth having."""
    segment = record.segment
    counted = (*segment.replicas, *segment.surplus)
    return [] if segment.lossy else [each for each in record.holders if each not in counted]
