"""The records of the cluster as plain values: segments, their settings, nodes, partitions.

Pure data, shared by clients, nodes, the coordinator and the protocol cores.
``icecore/rpc/convert.py`` turns them into protobuf messages and back. Offsets count records, ends
are exclusive.

Numbers that name something have a type each, so that mypy tells a node id from a segment id. At
run time they are ints. A plain number becomes one where it enters: where a message, a row or a
setting is read, and where a new one is given out. Offsets, counts, versions and times stay ints:
sums and differences of them are ints to mypy, so it would ask for a conversion at every step.
Clients use plain ints, because their callers do.
"""

import re
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NewType, Self

from icecore.errors import InvalidRequestError, InvalidTopicNameError

SegmentId = NewType("SegmentId", int)
NodeId = NewType("NodeId", int)
Incarnation = NewType("Incarnation", int)
"""Of a node."""
Epoch = NewType("Epoch", int)
"""Of a segment."""
Generation = NewType("Generation", int)
"""Of a segment's bytes."""
Token = NewType("Token", int)
"""Of a coordinator."""
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
"""Of a producer; it has nothing to do with that of a segment."""

NO_SEGMENT: Final = SegmentId(0)
NO_NODE: Final = NodeId(0)
NO_INCARNATION: Final = Incarnation(0)
NO_EPOCH: Final = Epoch(0)
NO_TOKEN: Final = Token(0)
NO_PRODUCER: Final = ProducerId(0)
FIRST_GENERATION: Final = Generation(0)
FIRST_PRODUCER_EPOCH: Final = ProducerEpoch(0)
EPOCH_STEP: Final = 2
"""From a segment to its successor: a recovery promises epoch + 1, the successor is above that."""

PROTOCOL_VERSION = 3
"""What nodes and coordinators speak with each other. 3: producer states that say how many batches
they keep (R72)."""
INDEXED_HEADERS_MAX: Final = 16
HEADER_NAME_BYTES_MAX: Final = 249
"""Of a header that is indexed."""
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicNameError."""
    if name in (".", "..") or not TOPIC_NAME.fullmatch(name):
        raise InvalidTopicNameError(
            f"topic name {name[:300]!r}: 1 to 249 characters of A-Z a-z 0-9 . _ -, "
            "and neither . nor .."
        )


def check_indexed_headers(names: tuple[str, ...]) -> None:
    """Whether a topic may index these headers. Raises InvalidRequestError."""
    if len(names) > INDEXED_HEADERS_MAX:
        raise InvalidRequestError(
            f"indexed_headers names {len(names)} headers, at most {INDEXED_HEADERS_MAX} are allowed"
        )
    if len(set(names)) < len(names):
        raise InvalidRequestError("indexed_headers names a header twice")
    for name in names:
        try:
            length = len(name.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"header name {name!r} has no UTF-8 form") from error
        if not 1 <= length <= HEADER_NAME_BYTES_MAX:
            raise InvalidRequestError(
                f"an indexed header's name has 1 to {HEADER_NAME_BYTES_MAX} bytes, not {length}"
            )


class Acks(IntEnum):
    """When a produce is answered; values as in ``common.proto``."""

    ALL = 1
    QUORUM = 2
    LEADER = 3


class FlushMode(IntEnum):
    """What an append waits for before it counts as durable."""

    SYNC = 1
    ASYNC = 2


SEGMENT_ENGINE: Final = "segment"
"""Batches in files: one for each segment, or those of the shared file model."""
ROCKSDB_ENGINE: Final = "rocksdb"
"""Batches of the active segment in a RocksDB database, of sealed ones in files."""
MEMORY_ENGINE: Final = "memory"
"""Batches of the active segment in memory: replicated, not durable; of sealed ones in files."""
ENGINES: Final = (SEGMENT_ENGINE, ROCKSDB_ENGINE, MEMORY_ENGINE)

OWN_FILE: Final = "partition"
"""Each active segment has a file of its own."""
SHARED_FILE: Final = "shared"
"""The active segments of an I/O worker share one append file, and its sync."""
FILE_MODELS: Final = (OWN_FILE, SHARED_FILE)

UNAVAILABLE_ON_LOSS: Final = "unavailable"
"""A segment whose every copy is lost waits for a person."""
RESTART_EMPTY: Final = "restart_empty"
"""It ends where it can be proved to, recorded as lossy, and the partition goes on."""
ON_TOTAL_LOSS: Final = (UNAVAILABLE_ON_LOSS, RESTART_EMPTY)

NO_LIMIT: Final = -1
REFUSE: Final = "refuse"
"""A full disk takes no more; what is kept stays."""
DELETE_OLDEST: Final = "delete_oldest"
"""When a disk is nearly full, the oldest sealed segments go, expired or not."""
ON_FULL: Final = (REFUSE, DELETE_OLDEST)


class SegmentState(IntEnum):
    """Life of a segment; values as in ``common.proto``."""

    PREPARED = 1
    ACTIVE = 2
    RECOVERING = 3
    SEALED = 4


class NodeState(IntEnum):
    """What the coordinator thinks of a node; values as in ``common.proto``."""

    UP = 1
    DOWN = 2
    DRAINING = 3
    READ_ONLY = 4


@dataclass(frozen=True, slots=True)
class FlushBounds:
    """What a log may leave unsynced."""

    interval_ms: int
    """Longest time from a write to its sync."""
    length_bytes: int
    """Once so many are not synced, a sync is due at once."""


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Pinned in the segment record when it opens: nobody decides by newer settings."""

    replication_factor: int = 1
    min_insync: int = 1
    flush_mode: FlushMode = FlushMode.SYNC
    segment_bytes: int = 1 << 30
    segment_age_ms: int = 24 * 3600 * 1000
    flush_interval_ms: int = 1_000
    """ASYNC: bytes are synced at the latest so long after they were written,"""
    flush_bytes: int = 16 << 20
    """or once so many of a segment are not."""
    engine: str = SEGMENT_ENGINE
    file_model: str = OWN_FILE
    on_total_loss: str = UNAVAILABLE_ON_LOSS
    recovery_rule: str = "quorum"
    partitioner: str = "xxh64"
    record_bytes_max: int = 1 << 20
    batch_bytes_max: int = 4 << 20
    uncompressed_bytes_max: int = 32 << 20
    indexed_headers: tuple[str, ...] = ()

    @property
    def active_engine(self) -> str:
        """Who keeps the bytes of an active segment: the engine, and its file model if it is not
        the usual one. All are sealed into files of the segment engine."""
        return self.engine if self.file_model == OWN_FILE else f"{self.engine}/{self.file_model}"

    @property
    def acked_mode(self) -> FlushMode:
        """What an ack means: SYNC = replicas have it on disk, ASYNC = they hold it."""
        return FlushMode.ASYNC if self.engine == MEMORY_ENGINE else self.flush_mode

    @property
    def flush(self) -> FlushBounds | None:
        """What a replica may leave unsynced; None = it syncs each append before it counts."""
        if self.flush_mode is FlushMode.SYNC:
            return None
        return FlushBounds(self.flush_interval_ms, self.flush_bytes)

    @property
    def quorum(self) -> int:
        """Majority of the *replication factor*, never of the in-sync set or of fewer replicas."""
        return self.replication_factor // 2 + 1


@dataclass(frozen=True, slots=True)
class Retention:
    """What a topic keeps. It holds at once for all its segments; a sealed one that is expired goes.
    -1 = no limit."""

    retention_ms: int = NO_LIMIT
    """A segment is expired so long after its last record."""
    retention_bytes: int = NO_LIMIT
    """The newest so many bytes of each partition stay, of one copy; what lies before is expired."""
    on_full: str = REFUSE

    @property
    def has_limits(self) -> bool:
        """Whether anything expires."""
        return self.retention_ms != NO_LIMIT or self.retention_bytes != NO_LIMIT


KEEP_ALL: Final = Retention()
"""Of topics that say nothing else."""

PARQUET_FORMAT: Final = "parquet"
"""Rows, which other programs read as a table."""
SEGMENT_FORMAT: Final = "segment"
"""Batches as they lie on nodes."""
TIER_FORMATS: Final = (PARQUET_FORMAT, SEGMENT_FORMAT)


@dataclass(frozen=True, slots=True)
class Tiering:
    """What of a topic moves into object storage. It holds at once for all its segments. -1 = no
    limit."""

    is_on: bool = False
    tier_format: str = PARQUET_FORMAT
    tier_after_ms: int = 0
    """A segment is copied so long after its seal."""
    local_retention_ms: int = NO_LIMIT
    """A copied segment loses its copies on nodes so long after its seal."""
    local_retention_bytes: int = NO_LIMIT
    """The newest so many bytes of each partition keep them, of one copy."""

    @property
    def has_local_limits(self) -> bool:
        """Whether nodes are to drop what is copied."""
        return self.local_retention_ms != NO_LIMIT or self.local_retention_bytes != NO_LIMIT


NOT_TIERED: Final = Tiering()
"""Of topics that say nothing else."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment record as stored by the coordinator and assigned to nodes."""

    segment_id: SegmentId
    topic_id: bytes
    topic: str
    partition: int
    state: SegmentState
    epoch: Epoch
    settings: SegmentSettings = field(default_factory=SegmentSettings)
    generation: Generation = FIRST_GENERATION
    base_offset: int = -1
    """-1 while PREPARED: known only when the predecessor's end is decided."""
    end_offset: int = -1
    """-1 until SEALED."""
    length_bytes: int = 0
    """Of all batches; 0 until SEALED."""
    seal_digest: bytes = b""
    full_digest: bytes = b""
    leader: NodeId = NO_NODE
    leader_incarnation: Incarnation = NO_INCARNATION
    replicas: tuple[NodeId, ...] = ()
    """Node ids. SEALED: only those verified to hold [base_offset, end_offset)."""
    isr: tuple[NodeId, ...] = ()
    version: int = 0
    """Grows with each change of the record; the compare-and-set guard."""
    log_start_offset: int = 0
    """Of the partition, for convenience of replicas."""
    lossy: bool = False
    """An admin accepted that acknowledged records are missing; see ``is_lost``."""
    is_tiered: bool = False
    """A copy is published in object storage."""
    surplus: tuple[NodeId, ...] = ()
    """SEALED: who is to drop a copy, for there are enough without it; none of ``replicas``."""
    readers: tuple[NodeId, ...] = ()
    """Who reads that copy for clients, the best one first, where nobody holds a replica; only in a
    list of segments."""

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """Who may be asked for a sealed segment: its replicas, else who reads its copy."""
        return self.replicas or self.readers

    @property
    def is_lost(self) -> bool:
        """Declared lost as a whole: sealed, and nobody holds it. Readers skip it."""
        is_held = bool(self.replicas) or self.is_tiered
        return self.lossy and self.state is SegmentState.SEALED and not is_held

    @property
    def is_remote_only(self) -> bool:
        """It lies in object storage, and no node keeps a copy or will ever have one again."""
        return self.is_tiered and self.state is SegmentState.SEALED and not self.replicas

    def changed(self, **changes: object) -> Self:
        """A copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as others need to know it."""

    node_id: NodeId
    address: str
    incarnation: Incarnation
    state: NodeState = NodeState.UP
    rack: str = ""
    native_address: str = ""
    """Of the native transport; empty = the node speaks gRPC only."""
