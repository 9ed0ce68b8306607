"""The records of the cluster as plain values: segments, nodes, partitions.

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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NewType, Self, TypeAlias

from icecore.errors import InvalidTopicNameError
from icecore.topic_settings import SegmentSettings

SegmentId = NewType("SegmentId", int)
NodeId = NewType("NodeId", int)
Incarnation = NewType("Incarnation", int)
"""Number of one process life of a node."""
Epoch = NewType("Epoch", int)
"""Fencing number of a segment: a higher one fences the lower."""
Generation = NewType("Generation", int)
"""Number of a rewrite of a sealed segment's bytes."""
CoordinatorEpoch = NewType("CoordinatorEpoch", int)
"""Number of the active coordinator: nodes and the metadata store refuse a lower one."""
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
"""Epoch of a producer, unrelated to the epoch of a segment."""

SEGMENT_ID_MAX: Final = (1 << 48) - 1
GENERATION_MAX: Final = (1 << 16) - 1
"""Both are in one number of 64 bits, with which keys of indexes begin."""
NO_SEGMENT: Final = SegmentId(0)
NO_NODE: Final = NodeId(0)
NO_INCARNATION: Final = Incarnation(0)
NO_EPOCH: Final = Epoch(0)
NO_COORDINATOR_EPOCH: Final = CoordinatorEpoch(0)
NO_PRODUCER: Final = ProducerId(0)
FIRST_GENERATION: Final = Generation(0)
FIRST_PRODUCER_EPOCH: Final = ProducerEpoch(0)
EPOCH_STEP: Final = 2
"""From a segment to its successor: a recovery promises epoch + 1, the successor is above that."""

NAMED_IDS_FIRST: Final = ProducerId(1 << 47)
NAMED_IDS_END: Final = ProducerId(1 << 48)
"""Ids of producers' names that can be deleted lie between: leaders refuse those that they do not
know (R112). Tasks of Spark have ids above, and those that are counted out are below."""


def is_named_id(producer_id: ProducerId) -> bool:
    """Return whether only producers with a name have such an id."""
    return NAMED_IDS_FIRST <= producer_id < NAMED_IDS_END


PROTOCOL_VERSION = 5
"""Version of the protocol between nodes and coordinators. 3: producer states tell how many batches
they keep (R72). 4: they have marks (R97). 5: leaders refuse names that they do not know (R112)."""
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

INVENTORY_WANTED: Final = "inventory_wanted"
"""Key in the metadata of an error: a coordinator whose metadata are suspended wants to be told all
that a node holds. The value names its process."""


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicNameError."""
    if name in (".", "..") or not TOPIC_NAME.fullmatch(name):
        raise InvalidTopicNameError(
            f"topic name {name[:300]!r}: 1 to 249 characters of A-Z a-z 0-9 . _ -, "
            "and neither . nor .."
        )


OffsetSpans: TypeAlias = Sequence[tuple[int, int]]
"""Offsets from a base to below an end, in order and apart from each other."""


def records_between(start: int, end: int, left_out: OffsetSpans = ()) -> int:
    """Return how many records a log can have from ``start`` to below ``end``, without offsets that
    were left out."""
    missing = sum(max(0, min(end, high) - max(start, low)) for low, high in left_out)
    return max(0, end - start) - missing


def offset_behind(start: int, count: int, left_out: OffsetSpans = ()) -> int:
    """Return the offset behind the next ``count`` records from ``start`` on."""
    at = start
    for low, high in left_out:
        before = max(0, low - at)
        if count <= before:
            break
        if high > at:
            at, count = high, count - before
    return at + count


class Acks(IntEnum):
    """The moment when a produce is answered; values as in ``common.proto``."""

    ALL = 1
    QUORUM = 2
    LEADER = 3


class SegmentState(IntEnum):
    """Life of a segment; values as in ``common.proto``."""

    PREPARED = 1
    ACTIVE = 2
    RECOVERING = 3
    SEALED = 4


class NodeState(IntEnum):
    """State of a node as the coordinator sees it; values as in ``common.proto``."""

    UP = 1
    DOWN = 2
    DRAINING = 3
    READ_ONLY = 4


OFFSETS_LEFT_OUT: Final = 1 << 32
"""Offsets that a partition leaves out behind an end that nothing proves, above all that anybody is
known to have read. More than anybody can have read of what no coordinator has heard of: an hour of
a million records a second. No segment has so many records."""


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
    """Size of all batches; 0 until SEALED."""
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
    """Log start of the partition, repeated here for replicas."""
    lossy: bool = False
    """An admin accepted that acknowledged records are missing; see ``is_lost``."""
    is_tiered: bool = False
    """A copy is published in object storage."""
    surplus: tuple[NodeId, ...] = ()
    """SEALED: nodes that must drop their copy because ``replicas`` are enough; none of
    ``replicas``."""
    readers: tuple[NodeId, ...] = ()
    """Nodes that read the published copy for clients, best first, where no node holds a replica.
    Only lists of segments fill it."""

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """Nodes that serve a sealed segment: its replicas, else the readers of its published
        copy."""
        return self.replicas or self.readers

    @property
    def is_skipped(self) -> bool:
        """Readers skip it: sealed, and nobody holds it. Either its records are lost, or it never
        had any: it keeps its offsets from being given out. A coordinator has to say so: a segment
        without a number stands for records of which nobody has said anything."""
        is_listed = self.segment_id != NO_SEGMENT
        is_held = bool(self.replicas) or self.is_tiered
        has_records = not self.lossy and bool(self.seal_digest)
        is_sealed = self.state is SegmentState.SEALED
        return is_sealed and is_listed and not is_held and not has_records

    @property
    def is_lost(self) -> bool:
        """Skipped, and its records were declared lost."""
        return self.lossy and self.is_skipped

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
    """Address of the native transport; empty = the node speaks gRPC only."""
