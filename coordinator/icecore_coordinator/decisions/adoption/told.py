"""The words of nodes for metadata that are suspended: all that each holds, and has heard. Pure.

A seal is a fact: nodes mark a copy as sealed only when a record said so, and records say so only
after the transaction. So one sealed copy proves where its segment ends. What is not sealed proves
nothing by itself; its records are what recovery decides from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from icecore.model import (
    NO_SEGMENT,
    CoordinatorEpoch,
    Epoch,
    Generation,
    NodeId,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore_coordinator.state.records import NodeRecord, PartitionKey


@dataclass(frozen=True, slots=True)
class ToldReplica:
    """One copy of a segment, as its node tells it."""

    node_id: NodeId
    segment_id: SegmentId
    topic_id: bytes
    partition: int
    generation: Generation
    base_offset: int
    """-1 = it is only prepared."""
    epoch: Epoch
    promised_epoch: Epoch
    durable_end_offset: int
    is_sealed: bool
    is_intact: bool
    digest: bytes = b""
    """Seal digest through the durable end."""
    length_bytes: int = 0
    max_append_timestamp_ms: int = 0
    record: Segment | None = None
    """The newest that the node's process heard."""

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class ToldTopic:
    """A topic as a node heard of it."""

    topic_id: bytes
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ToldBucket:
    """The highest numbers in the keys of a node's object store."""

    segment_ids_max: int = 0
    attempts_max: int = 0
    problem: str = ""
    """Why it could not be read; empty = all of it was."""


@dataclass(frozen=True, slots=True)
class ToldNode:
    """One node with all that it said."""

    node: NodeRecord
    """The node as its process is: with its disk, its addresses and its incarnation."""
    cluster_id: bytes
    disk_counter: int
    coordinator_epoch: CoordinatorEpoch
    """The highest one that it heard."""
    metadata_revision: int
    """The highest one that it heard."""
    peers: tuple[NodeId, ...] = ()
    copies: tuple[ToldReplica, ...] = ()
    topics: tuple[ToldTopic, ...] = ()
    bucket: ToldBucket | None = None
    """None = the node has no object store."""

    @property
    def node_id(self) -> NodeId:
        return self.node.node_id


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing that a person must know of, or decide."""

    why: str
    topic: str = ""
    partition: int = 0
    segment_id: SegmentId = NO_SEGMENT
    is_gap: bool = False
    """Offsets that no node has."""


@dataclass(slots=True)
class Evidence:
    """All copies of one segment, over all nodes."""

    segment_id: SegmentId
    copies: list[ToldReplica] = field(default_factory=list)

    @property
    def base_offset(self) -> int:
        """Base offset; -1 where no node was told it."""
        return max((each.base_offset for each in self.copies), default=-1)

    @property
    def record(self) -> Segment | None:
        """The newest record that any of its nodes heard."""
        heard = [each.record for each in self.copies if each.record is not None]
        return max(heard, key=lambda each: each.version, default=None)

    @property
    def sealed(self) -> list[ToldReplica]:
        """The copies that are sealed and whole."""
        return [each for each in self.copies if each.is_sealed and each.is_intact]

    @property
    def has_records(self) -> bool:
        """Return whether any copy has a record: then the segment was ACTIVE once."""
        return any(each.durable_end_offset > each.base_offset >= 0 for each in self.copies)

    @property
    def was_opened(self) -> bool:
        """Return whether it was part of its log, and not only prepared for that."""
        record = self.record
        is_known = record is not None and record.state != SegmentState.PREPARED
        return bool(self.base_offset >= 0 and (self.has_records or self.sealed or is_known))

    def contradiction(self) -> str:
        """Return why its copies can't be copies of one segment; empty when they can."""
        places = {(each.key, each.generation, each.epoch) for each in self.copies}
        bases = {each.base_offset for each in self.copies if each.base_offset >= 0}
        if len(places) > 1 or len(bases) > 1:
            return "nodes tell different partitions, epochs or bases of it"
        ends = {(each.durable_end_offset, each.digest) for each in self.sealed}
        if len(ends) > 1:
            return "its sealed copies differ"
        return ""


def by_segment(nodes: Iterable[ToldNode]) -> dict[SegmentId, Evidence]:
    """All copies that nodes hold, by segment."""
    found: dict[SegmentId, Evidence] = {}
    for node in nodes:
        for copy in node.copies:
            found.setdefault(copy.segment_id, Evidence(copy.segment_id)).copies.append(copy)
    return found


def names_of(evidence: Sequence[ToldReplica]) -> str:
    """Node ids, for a message."""
    return ", ".join(str(each) for each in sorted({copy.node_id for copy in evidence}))
