"""Everything a core may want done, as values, and the story of the last ones; what the shell owes
is in the package's text."""

from collections import deque
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

from icecore.errors import IcecoreError
from icecore.model import Incarnation, NodeId, SegmentId


@dataclass(frozen=True, slots=True)
class Append:
    """Leader: stamp the request's batch with these numbers and give it to the I/O worker."""

    request_id: int
    base_offset: int
    end_offset: int
    append_timestamp_ms: int
    """Never below that of any batch before it in the partition (R51)."""


@dataclass(frozen=True, slots=True)
class CompleteProduce:
    """Answer the producer. A duplicate carries the original ``base_offset``."""

    request_id: int
    base_offset: int
    durable_copies: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class FailProduce:
    """Answer the producer with an error; its class says definite or indeterminate."""

    request_id: int
    error: IcecoreError


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Readers may see everything below ``high_watermark``; followers get told."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the coordinator to compare-and-set the in-sync set at ``version``."""

    isr: tuple[NodeId, ...]
    version: int
    incarnations: tuple[Incarnation, ...]
    """Incarnation of each member as this leader knows it; parallel to ``isr``."""


@dataclass(frozen=True, slots=True)
class PrepareSuccessor:
    """Ask the coordinator to prepare and confirm the next segment."""

    why: str


@dataclass(frozen=True, slots=True)
class CollectSealDigests:
    """Ask these nodes (we are one) for their digests through ``end_offset``."""

    end_offset: int
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class SendSeal:
    """Report the agreed end to the coordinator. After this the core never appends again."""

    end_offset: int
    version: int
    seal_digest: bytes
    producer_digest: bytes
    replicas: tuple[NodeId, ...]
    successor_segment_id: SegmentId


@dataclass(frozen=True, slots=True)
class ReportDivergence:
    """Replicas differ that can't (R28): tell a person. The segment goes on without a seal."""

    end_offset: int
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class RequestRecovery:
    """This leader can't go on; the coordinator must fence, decide and seal."""

    why: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """Leadership of this segment has ended here (all waiters were failed before)."""

    why: str


@dataclass(frozen=True, slots=True)
class AppendReplica:
    """Follower: give the batches received under ``delivery_id``, which are exactly
    [base_offset, end_offset), to the I/O worker."""

    delivery_id: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DiscardReplica:
    """Follower: forget the batches received under ``delivery_id``; they are not appended."""

    delivery_id: int


@dataclass(frozen=True, slots=True)
class ReportProgress:
    """Follower: tell the leader what is durable here."""

    durable_end_offset: int
    attach: bool = False


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Follower: this log contradicts the leader's; keep the bytes, count as UNKNOWN."""

    why: str


@dataclass(frozen=True, slots=True)
class StopFollowing:
    """Follower: wait for a newer assignment before asking this leader again."""

    why: str


LeaderEffect: TypeAlias = (
    Append
    | CompleteProduce
    | FailProduce
    | AdvanceHighWatermark
    | ProposeIsr
    | PrepareSuccessor
    | CollectSealDigests
    | SendSeal
    | ReportDivergence
    | RequestRecovery
    | StepDown
)

FollowerEffect: TypeAlias = (
    AppendReplica
    | DiscardReplica
    | ReportProgress
    | AdvanceHighWatermark
    | Quarantine
    | StopFollowing
)


# --- the last of them -----------------------------------------------------------------------------

# A ring of the very objects that went through a core: keeping them costs two calls a step, and
# text is made of them only when somebody asks.


_KEPT: Final = 64
_EFFECTS: Final = (*get_args(LeaderEffect), *get_args(FollowerEffect))


class Story:
    """The last inputs and effects of one core; ``str`` of it has one line for each."""

    def __init__(self) -> None:
        recent: deque[object] = deque(maxlen=_KEPT)
        self._recent = recent
        self.took = recent.append
        """Call it with each input, before it is handled."""
        self.asked = recent.extend
        """Call it with the effects of a step."""

    def __str__(self) -> str:
        return "\n".join(
            f"asked {each}" if isinstance(each, _EFFECTS) else f"took {each}"
            for each in self._recent
        )
