"""Everything that can happen to a segment's leader or follower, as values.

The shell (``replica/replica.py``, or the model checker) feeds these to ``LeaderCore.step`` and
``FollowerCore.step`` and performs the effects that come back.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from icecore.errors import IcecoreError
from icecore.model import Acks, NodeInfo, Segment

RECENT_INPUTS: Final = 32
"""So many of the last ones a core keeps, to tell how it came to where it is."""


@dataclass(frozen=True, slots=True)
class ProduceReceived:
    """One checked batch for this segment. ``request_id`` is the shell's and comes back."""

    request_id: int
    acks: Acks
    record_count: int
    length_bytes: int
    producer_id: int = 0
    producer_epoch: int = 0
    base_sequence: int = 0
    append_timestamp_ms: int = 0
    """What the shell stamps into the batch; never goes back within a partition."""


@dataclass(frozen=True, slots=True)
class ProduceAbandoned:
    """The caller gave up waiting: forget the waiter, keep the append."""

    request_id: int


@dataclass(frozen=True, slots=True)
class LocalDurable:
    """The I/O worker fsynced everything below ``end_offset``."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LocalFailed:
    """An append failed (no space, disk error): offsets given out can't be taken back."""

    error: IcecoreError


@dataclass(frozen=True, slots=True)
class FollowerProgress:
    """A follower's report that passed the shell's checks of epoch and chain CRC."""

    node_id: int
    incarnation: int
    durable_end_offset: int
    attach: bool = False
    """First report on a stream: replaces what was known of this follower, never max'ed."""


@dataclass(frozen=True, slots=True)
class FollowerDiverged:
    """A follower's chain differs from ours at its end."""

    node_id: int
    durable_end_offset: int


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """The coordinator pushed a node's state or incarnation."""

    node: NodeInfo


@dataclass(frozen=True, slots=True)
class SegmentUpdated:
    """The coordinator pushed (or answered with) a newer version of the segment record."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class IsrChangeFailed:
    """The proposal of ``version`` was definitely not accepted (and the record is unchanged)."""

    version: int


@dataclass(frozen=True, slots=True)
class IsrChangeUnknown:
    """No answer to the proposal: it stays pending with the maximal set until a newer record."""

    version: int


@dataclass(frozen=True, slots=True)
class RollRequested:
    """Size, age, an admin, or the coordinator wants this segment sealed."""

    why: str


@dataclass(frozen=True, slots=True)
class SuccessorPrepared:
    """Candidates have confirmed the files of the next segment."""

    segment_id: int


@dataclass(frozen=True, slots=True)
class SuccessorFailed:
    """No successor can be had now; the segment goes on."""

    error: IcecoreError


@dataclass(frozen=True, slots=True)
class SealDigests:
    """Answers to CollectSealDigests: (seal digest, producer digest) by node, ours included."""

    end_offset: int
    digests: dict[int, tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class SealCommitted:
    """The seal transaction is in the metadata store."""


@dataclass(frozen=True, slots=True)
class SealRejected:
    """The seal definitely did not happen and the record moved on: re-read, step aside."""

    error: IcecoreError


@dataclass(frozen=True, slots=True)
class SealUnknown:
    """No answer to the seal: never append again, ask for recovery."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A higher epoch was promised here, durably."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """The lease from the coordinator; it only gates ``acks=leader``."""

    valid: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; ``step`` gets ``now_ms`` with every call."""


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Follower: batches [base_offset, end_offset) arrived, their CRCs and chain hold.

    ``chained`` is False when ``prev_header_crc32c`` does not continue our log.
    """

    epoch: int
    base_offset: int
    end_offset: int
    high_watermark: int
    chained: bool = True


@dataclass(frozen=True, slots=True)
class LeaderRejected:
    """Follower: the leader does not serve us (reason of ``ReplicaDataEntry.rejected``)."""

    reason: str


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """Follower: a (new) stream to the leader stands; attach again."""


LeaderInput: TypeAlias = (
    ProduceReceived
    | ProduceAbandoned
    | LocalDurable
    | LocalFailed
    | FollowerProgress
    | FollowerDiverged
    | NodeChanged
    | SegmentUpdated
    | IsrChangeFailed
    | IsrChangeUnknown
    | RollRequested
    | SuccessorPrepared
    | SuccessorFailed
    | SealDigests
    | SealCommitted
    | SealRejected
    | SealUnknown
    | Fenced
    | LeaseChanged
    | Tick
)

FollowerInput: TypeAlias = (
    DataReceived | LocalDurable | LocalFailed | LeaderRejected | StreamOpened | Fenced
)
