"""The input of the checker: plain values that clients and observers saw in one run."""

from dataclasses import dataclass, field
from enum import Enum

from icecore.codec.selection import Selection
from icecore.model import Acks

Partition = tuple[str, int]


class Outcome(Enum):
    """The end of a produce, as its caller knows it."""

    OK = "ok"
    FAIL = "fail"
    """Definite: it was never appended and never will be."""
    UNKNOWN = "unknown"
    """Indeterminate, or the caller died while waiting."""


@dataclass(slots=True)
class Produce:
    """One record handed to a producer; ``value`` is unique in the run."""

    producer: str
    sequence: int
    """Position among the records that this producer sent to this partition."""
    partition: Partition
    value: bytes
    acks: Acks
    began_s: float
    ended_s: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Read:
    """One record that a consumer was given; ``session`` names one consumer without a seek."""

    session: str
    partition: Partition
    offset: int
    value: bytes
    at_s: float


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """A high watermark that a process exposed for a partition."""

    observer: str
    """One life of one process."""
    partition: Partition
    high_watermark: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantee of a complete look-up for records from ``indexed_through_offset`` on."""

    to_offset: float
    """The end of the question, exclusive."""
    planned_s: float
    """The time at which its plan knew of every segment that there was."""
    led_to_offset: int
    """The offset below which the leader of this plan showed records when the question was asked,
    and still did when it was answered."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one node, or of a look-up over all its pages, to some conditions in one
    partition."""

    node: str
    partition: Partition
    selection: Selection
    searched: tuple[int, int]
    """Offsets that it says it has looked at, the end exclusive."""
    is_complete: bool
    indexed_through_offset: int
    records: tuple[tuple[int, bytes], ...]
    """(offset, value), in the order in which they came."""
    at_s: float
    """A look-up began then."""
    promise: Promise | None = None
    """The guarantee of a look-up; None = one node's answer."""


@dataclass(frozen=True, slots=True)
class SegmentSeen:
    """A segment record at the end of the run."""

    segment_id: int
    partition: Partition
    base_offset: int
    end_offset: int
    """-1: not sealed."""
    digests: tuple[tuple[str, bytes], ...] = ()
    """(node, digest over its bytes) of each listed replica of a sealed segment."""


@dataclass(slots=True)
class History:
    """Everything the checker may know."""

    produces: list[Produce] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    watermarks: list[WatermarkSeen] = field(default_factory=list)
    segments: list[SegmentSeen] = field(default_factory=list)
    final: dict[Partition, list[tuple[int, bytes]]] = field(default_factory=dict)
    """The whole of each partition, read after everything was healed: (offset, value)."""
    log_start: dict[Partition, int] = field(default_factory=dict)
    unavailable: dict[Partition, list[tuple[int, float]]] = field(default_factory=dict)
    """Offsets [from, to) that the coordinator itself says nobody can read now."""
    left_out: dict[Partition, list[tuple[int, float]]] = field(default_factory=dict)
    """Offsets [from, to) that the coordinator never gives out."""
    given_up: dict[Partition, list[tuple[int, float]]] = field(default_factory=dict)
    """From this offset on, what happened before this time may be gone: a segment was ended there
    because no copy of it was whole (R82)."""
    whole_sessions: set[str] = field(default_factory=set)
    """Read sessions that began at the log start after everything was healed, and ran to the end."""
    idempotent: bool = True
    """Whether a value may be there only once."""

    def is_given_up(self, partition: Partition, offset: int, at_s: float) -> bool:
        """Return whether what was at an offset at some time was given up since."""
        ends = self.given_up.get(partition, ())
        return any(offset >= end and at_s <= ended_s for end, ended_s in ends)

    def is_unavailable(self, partition: Partition, offset: int) -> bool:
        """Return whether an offset lies in a segment that is known to be unavailable."""
        ranges = self.unavailable.get(partition, ())
        return any(start <= offset < end for start, end in ranges)

    def is_passed_over(self, partition: Partition, offset: int) -> bool:
        """Return whether readers go on behind an offset without a record."""
        is_left_out = any(start <= offset < end for start, end in self.left_out.get(partition, ()))
        return is_left_out or self.is_unavailable(partition, offset)
