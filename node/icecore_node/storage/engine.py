"""The port of storage engines: the bytes of segments, whoever keeps them and in whatever form.

An engine makes, extends, reads, cuts, seals and removes logs. It knows no promises, coordinator
epochs, coordinators or delete orders: those are in the control store, one for all engines, and
``replica_store.py`` joins the two. ``segment_engine.py`` (one file per segment) is the engine of
production; every engine passes ``tests/conformance/engine_suite.py``.

The order of bytes and control store is part of this port. Where something must be stored before
bytes may be used, the caller hands in ``remember``: the engine calls it once the bytes are durable,
and uses them only after it has returned. When it raises, the log is to its users what it was
before. What an engine finds wrong with a log by itself it tells ``Condemn`` before anybody else.

The loop owns the *tail* of each log (next offset, chain, digest) and stamps batches; an engine owns
bytes and indexes. All methods block. ``append_group`` and whatever changes a log run on the I/O
worker of the log's partition, reads on any thread. Each method that touches the disk may raise
OutOfSpaceError or OutOfResourcesError: a shortage, which says nothing about any log (R52).
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, TypeAlias

from icecore.codec.batch import Buffer
from icecore.codec.columns import Int64s
from icecore.errors import IcecoreError
from icecore.model import Epoch, Generation, SegmentId
from icecore.topic_settings import SEGMENT_ENGINE, FlushBounds


def io_worker(topic_id: bytes, partition: int, workers: int) -> int:
    """Return which I/O worker writes a partition: always the same one, so that a file that is
    shared by the logs of one worker has one writer.
    """
    return zlib.crc32(partition.to_bytes(4, "little"), zlib.crc32(topic_id)) % workers


Condemn: TypeAlias = Callable[[Mapping[SegmentId, str]], None]
"""Stores for each segment id why its log can't be trusted, durably, in one sync."""


class NotAsSealed(Exception):
    """A log is not what was sealed: it ends elsewhere, or its digest is another one.

    An outcome on this node, never an answer to anybody: the caller knows whether it is damage.
    """


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """The fixed properties of a replica; kept with its bytes, checked at each open."""

    cluster_id: bytes
    topic_id: bytes
    partition: int
    segment_id: SegmentId
    generation: Generation
    epoch: Epoch
    base_offset: int = -1
    """-1 while prepared; ``confirm`` writes the real one."""
    engine: str = SEGMENT_ENGINE
    """The engine that has the bytes until the seal: ``active_engine`` of the segment's settings."""
    flush: FlushBounds | None = field(default=None, compare=False)
    """None = each append is synced before it counts. Kept with the records, not with the bytes."""


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
    """Length of all batches from the base to this end."""


NO_TAIL: Final = LogTail(
    end_offset=-1,
    last_header_crc32c=0,
    digest=b"",
    max_append_timestamp_ms=0,
    max_known_high_watermark=0,
    length_bytes=0,
)
"""The tail of a log whose base is not known, or that can't be read."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log."""

    tail: LogTail
    position: int
    """In the engine's own measure; the control store keeps it for sealed logs."""


@dataclass(frozen=True, slots=True)
class BatchMark:
    """One batch of an append, as the indexes need it."""

    base_offset: int
    append_timestamp_ms: int
    length_bytes: int


@dataclass(slots=True)
class AppendRequest:
    """Contiguous stamped batches for one segment, in order, as a list of buffers."""

    segment_id: SegmentId
    buffers: list[Buffer]
    marks: list[BatchMark]
    tail: LogTail
    """The tail once these batches are in the log."""
    error: IcecoreError | None = None
    """Set by ``append_group``: these batches are not durable and not readable."""
    sync_within_ms: int | None = None
    """Set by ``append_group``: they count, but are only written, and a sync is due by then
    (``LateSyncs``). None = durable."""
    ends_segment: bool = False
    """The segment can't be sealed, and make room, without them: no bound of ours refuses them."""


@dataclass(frozen=True, slots=True)
class NewLog:
    """A log to be made: confirmed at the base of its identity, or prepared when that is -1."""

    identity: SegmentIdentity
    start_timestamp_ms: int = 0
    """``max_append_timestamp_ms`` of the empty log."""


@dataclass(frozen=True, slots=True)
class CreatedLog:
    """A log that was made, and is durable under its name."""

    segment_id: SegmentId
    replaces_data: bool
    """In its place lay bytes that may have been confirmed once; they were set aside."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A log as it is remembered; what is found of it is compared with that."""

    identity: SegmentIdentity
    """Its base offset is -1 while it is only prepared."""
    start_timestamp_ms: int = 0
    sealed: LogEnd | None = None


@dataclass(slots=True)
class FoundLog:
    """A log as its engine has judged it."""

    tail: LogTail
    why: str
    """For people: how it was judged (``clean``, ``torn tail cut at …``, ``lost durable tail``)."""
    damage: str = ""
    """Why it is UNKNOWN: missing, damaged, or not provably complete. Empty when it is none."""
    headers: list[bytes] = field(default_factory=list)
    """152-byte headers of all batches of an *unsealed* log."""


# --- finding records ------------------------------------------------------------------------------

OffsetRange: TypeAlias = tuple[int, int]
"""From the first offset to the exclusive end."""

SEALED_INDEX: Final = "sealed"
"""A file of its own, made after the seal."""
ACTIVE_INDEX: Final = "active"
"""Entries that were written with the appends, in a few sorted runs."""
NO_INDEX: Final = "none"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The places where records with certain hashes may be, in a range of offsets of one log.

    No record of such a hash is missing outside of ``gaps``; others, whose hash is the same by
    chance, may be among them.
    """

    searched: OffsetRange
    """The searched part of the asked range: less than all when a limit was reached. It starts at
    the range's beginning, or with ``newest_first`` ends at its end."""
    offsets: tuple[Int64s, ...]
    """For each hash that was asked for, ascending and without duplicates; within ``searched``."""
    gaps: tuple[OffsetRange, ...]
    """In ``searched``, ascending: no index covers these."""
    bytes_read: int
    """Bytes of the index that were read."""


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Kind and size of the index of one log."""

    kind: str
    """``SEALED_INDEX``, ``ACTIVE_INDEX`` or ``NO_INDEX``."""
    length_bytes: int = 0
    entries: int = 0
    runs: int = 0
    """How many places a look-up touches."""
    timestamps_ms: OffsetRange | None = None
    """Smallest event time and the largest, inclusive; None where that is not known."""


# --- the port -------------------------------------------------------------------------------------


class Verification(Protocol):
    """One pass over the bytes of a sealed log, in steps. Each step blocks."""

    @property
    def digest(self) -> bytes:
        """The full digest as it was found, once the last step is done; empty before."""
        ...

    def step(self, max_bytes: int) -> int:
        """Check about ``max_bytes`` more.

        Returns:
            How many bytes were checked.

        Raises:
            StorageError: Damage. A step may be repeated: nothing has moved.
            NotReplicaError: The log is gone.
        """
        ...


class LogReader(Protocol):
    """Reads of logs, by segment id. Each method raises NotReplicaError when there is no such log,
    and StorageError when it is damaged."""

    def holds(self, segment_id: SegmentId) -> bool:
        """Return whether there is such a log, in use."""
        ...

    def tail(self, segment_id: SegmentId) -> LogTail:
        """The durable tail."""
        ...

    def read(
        self, segment_id: SegmentId, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """Whole batches from the one that holds ``offset``, at least one and about ``max_bytes``,
        none beyond ``end_offset``; and the offset after them. Every byte is CRC-checked.

        Nothing below ``end_offset`` yet: no bytes, and ``offset``.

        Raises:
            InvalidRequestError: The log begins after ``offset``.
        """
        ...

    def offset_for_time(
        self, segment_id: SegmentId, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """(base offset, append time) of the first batch below ``end_offset`` with append time
        >= ``timestamp_ms``; None when there is none. Exact."""
        ...

    def tail_at(self, segment_id: SegmentId, end_offset: int) -> LogTail | None:
        """The tail as it was when the log ended there; None when no batch ends there."""
        ...

    def headers(self, segment_id: SegmentId, end_offset: int) -> list[bytes]:
        """152-byte headers of all batches below ``end_offset``."""
        ...

    def full_digest(self, segment_id: SegmentId) -> bytes:
        """SHA-256 tree (1 MiB leaves) over the batch bytes of a sealed log, read from disk and
        CRC-checked."""
        ...

    def verification(self, segment_id: SegmentId) -> Verification:
        """Start to read a sealed log back, to see whether it is still what was sealed.

        Raises:
            InvalidRequestError: It is not sealed.
        """
        ...


class LogIndex(Protocol):
    """The index that an engine derives from its logs, to find records without reading all of them.

    It may be absent, lag behind, or be lost, and never leads the log. A range of offsets that it
    lacks is a *gap*: the caller reads the log there, so that no record is missed. Queries raise
    NotReplicaError when there is no such log; damage of an index only makes a gap.
    """

    def candidates(
        self,
        segment_id: SegmentId,
        hashes: Sequence[int],
        asked: OffsetRange,
        *,
        limit: int,
        newest_first: bool = False,
    ) -> Candidates:
        """Return where records with these hashes may be.

        Args:
            segment_id: Of the log.
            hashes: Any number, without duplicates.
            asked: Offsets; what is beyond the durable end of the log is a gap like any other.
            limit: So many offsets of any one hash are enough: ``searched`` ends with them, so that
                no answer is large. At least one comes, so that who goes on from there arrives.
            newest_first: Begin at the end of what is asked for.
        """
        ...

    def summary(self, segment_id: SegmentId) -> IndexSummary:
        """Return kind and size of this log's index."""
        ...

    def verify(self, segment_id: SegmentId) -> int:
        """Read back what is on disk of one log's index, to find bit rot before somebody looks
        there. What is damaged is dropped, and built again by ``maintain``.

        Returns:
            How many bytes were read.
        """
        ...

    def sealed_part(self, segment_id: SegmentId, length: int, position: int) -> bytes:
        """Bytes of a sealed log's index file, as it lies beside the log: fewer where it ends, none
        where there is none (yet) or it is damaged."""
        ...

    def maintain(self) -> bool:
        """Do one bounded step of background work: merge, build, rebuild, drop. Never waits for an
        append, nor makes one wait. One caller at a time.

        Returns:
            Whether there is more to do now.
        """
        ...

    def flush(self) -> None:
        """Make it durable; called about once a second. A shortage is only logged."""
        ...


class LogSalvage(Protocol):
    """Finds and restores the provable part of untrusted logs, in their place or set aside."""

    def strays(self) -> list[SegmentId]:
        """Logs of which there are bytes here although ``start_up`` was not told of them, as far as
        that is known without looking for them. Most were handed over by a process that died before
        it dropped them."""
        ...

    def tail(self, log: KnownLog) -> LogTail | None:
        """The end of the longest part that CRCs and chain prove; None when nothing can be proved.
        Changes nothing."""
        ...

    def restore(self, log: KnownLog, remember: Callable[[], object]) -> FoundLog:
        """Make that part of a log that was set aside the log in its place, durably, and use it.

        Raises:
            NotReplicaError: Nothing can be proved.
        """
        ...


class Engine(Protocol):
    """All logs of one node that this engine keeps."""

    appends_block: ClassVar[bool]
    """Whether ``append_group`` waits for a disk. One that doesn't may run on the loop."""

    @property
    def reader(self) -> LogReader:
        """For reads."""
        ...

    @property
    def salvage(self) -> LogSalvage:
        """For what is not trusted."""
        ...

    @property
    def index(self) -> LogIndex:
        """The index of this engine's logs."""
        ...

    def start_up(
        self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]
    ) -> list[FoundLog]:
        """Judge and repair the logs of earlier processes; once. Only ``drop`` may come before it.

        A torn tail is cut. Damage in the middle never is: such a log is condemned before this
        returns, not used, and costs no other log anything. Derived data is brought up to date.

        Args:
            logs: What should be here.
            untrusted: Logs whose bytes are to stay as they are.

        Returns:
            One for each of ``logs``, in their order.
        """
        ...

    def create(
        self, logs: Sequence[NewLog], remember: Callable[[Sequence[CreatedLog]], None]
    ) -> dict[SegmentId, IcecoreError]:
        """Make logs that this engine does not hold. ``remember`` gets those that were made; when it
        raises, they go again.

        Returns:
            By segment id, why some could not be made; nothing of those stays.
        """
        ...

    def confirm(
        self, identity: SegmentIdentity, start_timestamp_ms: int, remember: Callable[[], object]
    ) -> LogTail:
        """Fix the base offset of a log without batches, durably. Not trusted to be whole before
        ``remember``: a crash may tear what is written here."""
        ...

    def append_group(self, requests: Sequence[AppendRequest]) -> None:
        """Write all, sync each touched log once, index all in one batch.

        Sets ``error`` on requests that did not become durable; nothing of them is readable, and
        later requests of the same log fail too until it is truncated or dropped. A sync that fails
        raises DiskFailedError: the process must end (fail-stop).

        """
        ...

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """Cut an unsealed log at a batch border, durably. The largest high watermark that was known
        stays known.

        Raises:
            InvalidRequestError: No batch ends there, or the log is sealed or only prepared.
        """
        ...

    def seal(
        self,
        segment_id: SegmentId,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[LogEnd], None],
    ) -> None:
        """Make a log final, durably: its bytes never change again. Space it does not need goes back
        to the file system. Does nothing when it is final already.

        Raises:
            NotAsSealed: The log does not end there with this digest; nothing is changed.
        """
        ...

    def set_aside(self, identity: SegmentIdentity) -> None:
        """Keep the bytes of a log under another name, durably, and use it no more."""
        ...

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        """Remove logs and what was set aside of them, durably. What is not here counts as removed,
        so this may be repeated after a crash at any point.

        Raises:
            StorageError: Something of them is in the way; some may be gone.
        """
        ...

    def close(self) -> None:
        """Flush, and let go of all logs."""
        ...
