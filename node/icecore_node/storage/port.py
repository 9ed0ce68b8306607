"""The port of the store: what the node asks of all that it keeps, whoever does it.

``ReplicaStore`` (``replica_store.py``) fulfils it; callers need nothing below this port. All
methods block. ``append_group`` and what changes a log run on the I/O worker of its partition, the
others on any thread. Each method that touches the disk may raise OutOfSpaceError or
OutOfResourcesError: a shortage, which says nothing about any replica (R52).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from icecore.errors import IcecoreError
from icecore.model import CoordinatorEpoch, Epoch, SegmentId
from icecore_node.storage.engine import AppendRequest, LogIndex, LogReader, LogTail, SegmentIdentity


@dataclass(slots=True)
class FoundReplica:
    """A replica as start-up has judged it."""

    identity: SegmentIdentity
    intact: bool
    """False = UNKNOWN: missing, damaged, or not provably complete; it counts for nothing."""
    why: str
    """For people: how it was judged (``clean``, ``torn tail cut at …``, ``lost durable tail``)."""
    tail: LogTail
    sealed_end_offset: int | None = None
    seal_digest: bytes = b""
    full_digest: bytes = b""
    producer_snapshot: bytes = b""
    """State through ``base_offset``, as stored by ``confirm``."""
    headers: list[bytes] = field(default_factory=list)
    """152-byte headers of all batches of an *unsealed* log (to rebuild the producer state)."""
    is_vanished: bool = False
    """Not intact, and nothing of it is left anywhere on this node: it was in memory."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """One disk of the node."""

    name: str
    """Its id in hexadecimal; empty for the first one."""
    path: str
    used_bytes: int
    free_bytes: int
    problem: str = ""
    """Why it does not count; empty while it does."""


class HeldMemory(Protocol):
    """Memory that logs of the engine ``memory`` take. Any thread; numbers may be a moment old."""

    @property
    def used_bytes(self) -> int:
        """Memory of all these logs."""
        ...

    @property
    def bytes_max(self) -> int:
        """``memory_engine_bytes``: what producers may fill; copies may take as much again."""
        ...

    def sealed_bytes(self) -> int:
        """Return the bytes of sealed logs, which go as soon as they are on disk."""
        ...


class _NoMemory:
    used_bytes: Final = 0
    bytes_max: Final = 0

    def sealed_bytes(self) -> int:
        return 0


NO_MEMORY: Final[HeldMemory] = _NoMemory()
"""The memory of a store whose engines all have a disk."""


class StoredDisks(Protocol):
    """The disks that replicas lie on."""

    @property
    def memory(self) -> HeldMemory:
        """The memory of engines that have no disk."""
        ...

    def usage(self) -> list[DiskSpace]:
        """Each of them, the first one first. Raises StorageError for that one."""
        ...

    def space(self) -> tuple[int, int]:
        """(used, free) bytes of all that count; shared space once. Raises StorageError."""
        ...

    def on(self, segment_id: SegmentId) -> str:
        """The name of the disk that a replica lies on."""
        ...

    def tell(self, on_lost: Callable[[Sequence[SegmentId], str], object]) -> None:
        """Call ``on_lost`` when a disk is lost, on any thread, with what lay there and why: it is
        UNKNOWN already, durably."""
        ...


class StoredReplicas(LogReader, Protocol):
    """Reads of replicas, each from the engine that keeps it, and what is known of them."""

    def appends_block(self, segment_id: SegmentId) -> bool:
        """Return whether an append to this replica may wait for a disk."""
        ...

    def starting_state(self, segment_id: SegmentId) -> tuple[bytes, int]:
        """The producer snapshot and ``max_append_timestamp_ms`` that ``confirm`` stored.

        Raises:
            NotReplicaError: There is no such replica.
        """
        ...


class StoredPromises(Protocol):
    """The epochs that may append."""

    def epoch_of(self, segment_id: SegmentId) -> Epoch:
        """The highest epoch promised for a segment, 0 when none was."""
        ...

    def persist(
        self, promises: Sequence[tuple[SegmentId, Epoch]], coordinator_epoch: CoordinatorEpoch
    ) -> None:
        """Remember promises (segment id, epoch) and the coordinator's epoch, durably, in one sync.

        Raises:
            FencedError: The coordinator epoch is old; then nothing is changed.
        """
        ...


class StoredRemains(Protocol):
    """The replicas that are UNKNOWN, and what can be proved of them (R46)."""

    def condemn(self, segment_ids: Sequence[SegmentId], why: str) -> None:
        """Replicas are UNKNOWN from now on, durably; their bytes stay."""
        ...

    def tail(self, segment_id: SegmentId) -> LogTail | None:
        """The end of the longest part that CRCs and chain prove; None when nothing of this replica
        can be proved, which is no empty log."""
        ...

    def readmit(self, segment_id: SegmentId) -> FoundReplica:
        """Make that part of a quarantined replica its log, durably. To this start and the next it
        is not intact all the same, until it is sealed.

        Raises:
            NotReplicaError: Nothing can be proved.
            StorageError: It could not be read or written.
        """
        ...


class StoredCreation(Protocol):
    """The calls that create a replica."""

    def create(
        self,
        identities: Sequence[SegmentIdentity],
        starts: Mapping[SegmentId, tuple[bytes, int]],
        is_copy: bool = False,
    ) -> list[IcecoreError | None]:
        """Make replicas: bytes and records are durable on return. Idempotent.

        Args:
            identities: What to make.
            starts: Segment id to producer snapshot and ``max_append_timestamp_ms``. Those in it are
                confirmed at the base of their identity in the same stroke, others only prepared.
            is_copy: They are not intact until ``certify`` or ``seal``.

        Returns:
            For each why it could not be made.
        """
        ...

    def confirm(
        self, identity: SegmentIdentity, producer_snapshot: bytes, max_append_timestamp_ms: int
    ) -> LogTail:
        """Fix base offset and starting state of a created replica, durably. Idempotent.

        Raises:
            NotReplicaError: It was not created here.
            InvalidRequestError: It holds data under another base.
        """
        ...

    def certify(self, segment_id: SegmentId) -> None:
        """A copy is complete now, durably."""
        ...


class StoredRemoval(Protocol):
    """The calls that remove a replica."""

    def quarantine(self, segment_id: SegmentId, why: str) -> None:
        """Keep the bytes aside under another name and forget the replica; it is UNKNOWN.

        Raises:
            NotReplicaError: There is no such replica.
        """
        ...

    def delete(self, segment_ids: Sequence[SegmentId], coordinator_epoch: CoordinatorEpoch) -> None:
        """Remove replicas on the coordinator's order, durably. Idempotent.

        Raises:
            FencedError: The coordinator epoch is old; then nothing is changed.
            StorageError: A file is in the way; the order stays.
        """
        ...


class Store(Protocol):
    """All replicas of one node. Call ``start_up`` once, before anything else."""

    @property
    def reader(self) -> StoredReplicas:
        """For reads."""
        ...

    @property
    def promises(self) -> StoredPromises:
        """For epochs."""
        ...

    @property
    def salvage(self) -> StoredRemains:
        """For what is not trusted."""
        ...

    @property
    def creation(self) -> StoredCreation:
        """For what comes."""
        ...

    @property
    def removal(self) -> StoredRemoval:
        """For what goes."""
        ...

    @property
    def index(self) -> LogIndex:
        """The index of all logs; ``flush`` also keeps the control store's reserve."""
        ...

    def start_up(self) -> list[FoundReplica]:
        """Finish what was ordered, judge and repair every known replica; once."""
        ...

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        """As ``Engine.append_group``, for replicas of all engines. Returns ``requests``."""
        ...

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """Cut an unsealed log at a batch border, durably.

        Raises:
            InvalidRequestError: No batch ends there, or the replica is sealed or only prepared.
        """
        ...

    def seal(self, segment_id: SegmentId, end_offset: int, seal_digest: bytes) -> None:
        """Mark sealed, durably: from now on bytes never change. Idempotent.

        Raises:
            InvalidRequestError: The log does not end there with this digest.
        """
        ...

    def sync(self, segment_ids: Sequence[SegmentId], *, from_now_on: bool = False) -> None:
        """As ``LateSyncs.sync``, for replicas of all engines. With ``from_now_on`` it is remembered
        durably, so that an unclean stop costs nothing of these."""
        ...

    def close(self) -> None:
        """Sync what was put off, close all logs, and remember that this was a clean stop."""
        ...
