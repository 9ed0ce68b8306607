"""The state that a leader begins with, and its bounds: every part of ``LeaderCore`` is made from
them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from icecore.model import Incarnation, NodeId, NodeInfo, ProducerEpoch, ProducerId, Segment
from icecore_replication.producers import ProducerTable


@dataclass(frozen=True, slots=True)
class LeaderLimits:
    """Bounds of one leader; times in milliseconds."""

    replica_lag_ms_max: float = 10_000.0
    """A member that has not had everything for so long leaves the in-sync set."""
    pending_bytes_max: int = 64 << 20
    """Appended and not yet fsynced here."""
    pending_requests_max: int = 4096
    """Unanswered produce requests."""
    seal_wait_ms: float = 1_000.0
    """How long one step of a roll may keep producers waiting."""
    throttle_ms: int = 50
    """``retry_after_ms`` of ThrottledError."""
    rejoin_wait_ms: float = 200.0
    """How long acks wait for a follower that is about to join the in-sync set (R17)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderStart:
    """The state that a leader begins with."""

    segment: Segment
    """The record that names this node leader."""
    node_id: NodeId
    incarnation: Incarnation
    """Incarnation of this process, as registered."""
    producers: ProducerTable
    """State through ``segment.base_offset``; the core applies what it appends."""
    max_append_timestamp_ms: int
    """Highest append timestamp of all batches before the segment."""
    nodes: Mapping[NodeId, NodeInfo]
    """The coordinator's information about the other replicas, by node id."""
    now_ms: float
    """Monotonic."""
    producer_fences: Mapping[ProducerId, ProducerEpoch] = field(default_factory=dict)
    """Lowest epochs of named producers that may append; the shell raises them."""
