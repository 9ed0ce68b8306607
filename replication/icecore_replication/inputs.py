"""Everything that can happen to a segment's leader or follower, as values.

The shells (``replication/leader.py``, ``replication/follower.py``) hand these to ``Checked.step``,
which steps a ``LeaderCore`` or a ``FollowerCore``, and perform the effects that come back; the
package says what they owe.
"""

from dataclasses import dataclass
from typing import TypeAlias

from icecore.errors import IcecoreError
from icecore.model import (
    FIRST_PRODUCER_EPOCH,
    NO_PRODUCER,
    Acks,
    Epoch,
    Incarnation,
    NodeId,
    NodeInfo,
    ProducerEpoch,
    ProducerId,
    Segment,
    SegmentId,
)


@dataclass(frozen=True, slots=True)
class ProduceReceived:
    """One checked batch for this segment. ``request_id`` is the shell's and comes back."""

    request_id: int
    acks: Acks
    record_count: int
    length_bytes: int
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: ProducerEpoch = FIRST_PRODUCER_EPOCH
    base_sequence: int = 0
    clock_ms: int = 0
    """The wall clock when the batch came; the core derives its append time from it (R51)."""


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
class Damaged:
    """The log here turned out to be unreadable or wrong: it is UNKNOWN from now on."""

    why: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """This node ends the leadership by itself: its replica is deleted, sealed or replaced."""

    why: str


@dataclass(frozen=True, slots=True)
class FollowerProgress:
    """A follower's report that passed the shell's checks of epoch and chain CRC."""

    node_id: NodeId
    incarnation: Incarnation
    durable_end_offset: int
    attach: bool = False
    """First report on a stream: replaces what was known of this follower, never max'ed."""


@dataclass(frozen=True, slots=True)
class FollowerDiverged:
    """A follower's chain differs from ours at its end."""

    node_id: NodeId
    durable_end_offset: int


@dataclass(frozen=True, slots=True)
class FollowerLeft:
    """A follower says that it follows no longer: its disk is full, or its log is damaged."""

    node_id: NodeId


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

    segment_id: SegmentId


@dataclass(frozen=True, slots=True)
class SuccessorFailed:
    """No successor can be had now; the segment goes on."""

    error: IcecoreError


@dataclass(frozen=True, slots=True)
class SealDigests:
    """Answers to CollectSealDigests: (seal digest, producer digest) by node, ours included."""

    end_offset: int
    digests: dict[NodeId, tuple[bytes, bytes]]


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
    """A higher epoch is promised here; who asked for it is answered once that is durable."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """The lease from the coordinator; it only gates ``acks=leader``."""

    valid: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; ``step`` gets ``now_ms`` with every call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReceived:
    """Follower: batches [base_offset, end_offset) arrived; CRCs hold, and they are one chain."""

    delivery_id: int
    """The shell's name for these batches; comes back with what becomes of them."""
    epoch: Epoch
    base_offset: int
    end_offset: int
    prev_header_crc32c: int
    """The header CRC of the batch before the first one, as the first one says."""
    last_header_crc32c: int
    """The header CRC of the last batch."""
    high_watermark: int


@dataclass(frozen=True, slots=True)
class WatermarkReceived:
    """Follower: the leader told its high watermark, and sent nothing that is new here."""

    epoch: Epoch
    high_watermark: int


@dataclass(frozen=True, slots=True)
class DataCorrupt:
    """Follower: what arrived was damaged on the way, and nothing of it was kept."""

    why: str


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
    | Damaged
    | Stopped
    | FollowerProgress
    | FollowerDiverged
    | FollowerLeft
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
    DataReceived
    | WatermarkReceived
    | DataCorrupt
    | LocalDurable
    | LocalFailed
    | LeaderRejected
    | StreamOpened
    | Fenced
)
