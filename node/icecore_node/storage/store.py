"""The interface of storage engines: what a replica needs from its log, whoever keeps it.

``storage/segment_store.py`` (one file per segment) is the default engine; every engine passes
``tests/conformance/test_segment_store.py``. The loop owns the *tail* of each log (``LogTail``:
next offset, chain, digest) and stamps batches; the store owns bytes and indexes. All methods
block: ``append_group`` runs on the I/O worker of the segment's partition, the others on that
worker too when they change the log, or on reader threads when they only read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from icecore.errors import IcecoreError
from icecore_node.ports import Buffer


class NotAsSealed(Exception):
    """A log is not what was sealed: it ends elsewhere, or its digest is another one.

    An outcome on this node, never an answer to anybody: the caller knows whether it is damage.
    """


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """What is fixed about a replica's file; stored in its header, checked at each open."""

    cluster_id: bytes
    topic_id: bytes
    partition: int
    segment_id: int
    generation: int
    epoch: int
    base_offset: int = -1
    """-1 while prepared; ``confirm`` writes the real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of a log: enough to append to it, compare it and resume it after a restart."""

    end_offset: int
    last_header_crc32c: int
    """Header CRC of the batch that ends there; the chain seed when the log is empty."""
    digest: bytes
    """Rolling seal digest over all headers."""
    max_append_timestamp_ms: int
    max_known_high_watermark: int
    length_bytes: int
    """Of all batches from the base to here."""


NO_TAIL = LogTail(
    end_offset=-1,
    last_header_crc32c=0,
    digest=b"",
    max_append_timestamp_ms=0,
    max_known_high_watermark=0,
    length_bytes=0,
)
"""Of a replica that is only prepared, or of which nothing is known."""


@dataclass(frozen=True, slots=True)
class BatchMark:
    """One batch of an append, as the indexes need it."""

    base_offset: int
    append_timestamp_ms: int
    length_bytes: int


@dataclass(slots=True)
class AppendRequest:
    """Contiguous stamped batches for one segment, in order, as a list of buffers."""

    segment_id: int
    buffers: list[Buffer]
    marks: list[BatchMark]
    tail: LogTail
    """The tail once these batches are in the log."""
    error: IcecoreError | None = None
    """Set by ``append_group``: these batches are not durable and not readable."""


@dataclass(slots=True)
class RecoveredReplica:
    """What start-up found of one replica."""

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


class Verification(Protocol):
    """One pass over the bytes of a sealed replica, in steps. Each step blocks."""

    digest: bytes
    """The full digest as it was found, once the last step is done; empty before."""

    def step(self, max_bytes: int) -> int:
        """Check about so many bytes more; how many it were.

        Raises: StorageError (damage), NotReplicaError (the replica is gone).
        """
        ...


class LogSalvage(Protocol):
    """What can be proved of UNKNOWN replicas. Each method blocks."""

    def tail(self, segment_id: int, cluster_id: bytes) -> LogTail | None:
        """The end of the longest part that CRCs and chain prove; None when there is none."""
        ...

    def readmit(self, segment_id: int, cluster_id: bytes) -> RecoveredReplica:
        """Make that part of a quarantined replica its log. It is reported as not intact until it
        is sealed. Raises: NotReplicaError (there is nothing), StorageError."""
        ...


class SegmentStore(Protocol):
    """All replicas of one node's data folder.

    Each method that touches the disk may raise OutOfSpaceError or OutOfResourcesError: a shortage,
    which says nothing about any replica (R52).
    """

    @property
    def salvage(self) -> LogSalvage:
        """For what is UNKNOWN."""
        ...

    def recover(self) -> list[RecoveredReplica]:
        """Judge and repair every known replica; once, before anything else.

        Torn tails are cut, mid-log damage is never truncated (reported as not intact), the index
        is rebuilt by scan where it lags, leads or is damaged.
        """
        ...

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind an empty store, made before the first registration, to its cluster."""
        ...

    def create(
        self,
        identities: Sequence[SegmentIdentity],
        starts: Mapping[int, tuple[bytes, int]] = ...,
        is_copy: bool = ...,
    ) -> list[IcecoreError | None]:
        """Create files, headers and control records for replicas; durable on return.

        Those in ``starts`` (segment id to producer snapshot and max_append_timestamp_ms) are
        confirmed at the base of their identity in the same stroke, the others are only prepared.
        With ``is_copy`` they are not intact until ``certify`` or ``seal``: what they are to hold is
        elsewhere. Idempotent. One control-store sync for the whole list. Per item
        OutOfSpaceError etc.
        """
        ...

    def confirm(
        self, identity: SegmentIdentity, producer_snapshot: bytes, max_append_timestamp_ms: int
    ) -> LogTail:
        """Fix base offset and starting state of a created replica, durably. Idempotent."""
        ...

    def starting_state(self, segment_id: int) -> tuple[bytes, int]:
        """The producer snapshot and max_append_timestamp_ms that ``confirm`` stored."""
        ...

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        """Write all, sync each touched file once, index all in one batch; then return them.

        Sets ``error`` on requests that did not become durable for lack of space; nothing of them
        is readable, and later requests of the same segment fail too until it is truncated or
        deleted. Any other failure to sync raises: the process must end (fail-stop).
        """
        ...

    def read(
        self, segment_id: int, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """Whole batches from the one that holds ``offset``, at least one, none beyond
        ``end_offset``; and the offset after them. CRC-checked headers.

        Raises: NotReplicaError (no such replica), StorageError (damage).
        """
        ...

    def offset_for_time(
        self, segment_id: int, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """(base offset, append time) of the first batch below ``end_offset`` with append time
        >= ``timestamp_ms``; None when there is none. Exact."""
        ...

    def tail_at(self, segment_id: int, end_offset: int) -> LogTail | None:
        """The chain CRC and rolling digest as they were when the log ended at ``end_offset``; None
        when no batch ends there."""
        ...

    def headers(self, segment_id: int, end_offset: int) -> list[bytes]:
        """152-byte headers of all batches below ``end_offset``."""
        ...

    def truncate(self, segment_id: int, end_offset: int) -> LogTail:
        """Cut an unsealed log at a batch border, durably."""
        ...

    def seal(self, segment_id: int, end_offset: int, seal_digest: bytes) -> None:
        """Mark sealed, durably: from now on bytes never change. The log ends there already.

        Returns unused preallocated space to the file system. Raises NotAsSealed when the log ends
        elsewhere or has another digest; then nothing is changed.
        """
        ...

    def full_digest(self, segment_id: int) -> bytes:
        """SHA-256 tree (1 MiB leaves) over the batch bytes of a sealed segment, read from disk
        and CRC-checked; remembered in the control store."""
        ...

    def verification(self, segment_id: int) -> Verification:
        """Start to read a sealed replica back, to see whether it is still what was sealed.

        Raises: NotReplicaError, InvalidRequestError (not sealed).
        """
        ...

    def certify(self, segment_id: int) -> None:
        """A replica created again after a loss is complete now, durably; until then (or until it
        is sealed) ``recover`` reports it as not intact."""
        ...

    def condemn(self, segment_ids: Sequence[int], why: str) -> None:
        """Replicas are UNKNOWN from now on, durably; their bytes stay. One control-store sync."""
        ...

    def quarantine(self, segment_id: int, why: str) -> None:
        """Keep the bytes aside under another name and forget the replica; it is UNKNOWN."""
        ...

    def delete(self, segment_ids: Sequence[int], token: int) -> None:
        """Remove replicas on the coordinator's order: intents are persisted first, with one
        control-store sync for all of them. What is not here counts as removed. Idempotent.

        Raises FencedError for an old token; then nothing is changed.
        """
        ...

    def set_promises(self, promises: Sequence[tuple[int, int]], token: int) -> None:
        """Persist (segment_id, promised_epoch) pairs and the coordinator token in one sync.

        Raises FencedError when a higher promise or token is stored; then nothing is changed.
        """
        ...

    def promised_epoch(self, segment_id: int) -> int:
        """The highest epoch promised for this segment, 0 when none."""
        ...

    def sync_index(self) -> None:
        """Make the index durable; called about once a second."""
        ...

    def close(self) -> None:
        """Flush the index, close all files."""
        ...
