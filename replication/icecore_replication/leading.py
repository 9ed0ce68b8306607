"""Decides which role a record gives to the replica of one node: lead, follow, seal, or none; and
holds what a leader begins with.

A record may arrive in any order and any number of times, and a replica may be in no state to take a
role now; so the question is asked again whenever either changes. Leadership belongs to an
incarnation and begins once, on an empty log. Pure functions for the node's shell and the model
checker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from icecore.model import (
    Epoch,
    Incarnation,
    NodeId,
    NodeInfo,
    ProducerEpoch,
    ProducerId,
    Segment,
    SegmentState,
)
from icecore_replication.producers import ProducerTable


class Role(Enum):
    """The role that a record gives to a replica that leads nothing."""

    LEAD = auto()
    FOLLOW = auto()
    SEAL = auto()
    """Bring its log to the sealed end and mark it."""
    LEFT_OUT = auto()
    """The segment is sealed without this copy, or here already: following it has ended."""
    NONE = auto()
    """No role begins; one that it plays goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """Facts about a node's own replica that matter for its role."""

    node_id: NodeId
    incarnation: Incarnation
    """Incarnation of this process, as registered."""
    base_offset: int
    """-1 while prepared."""
    promised_epoch: Epoch
    is_intact: bool
    is_sealed: bool
    is_all_durable: bool
    """Nothing of the log is still on its way to the disk, nor failed to get there."""
    has_led: bool
    """Whether it has led in this process: a leader that stepped down never leads the segment
    again."""


def may_lead(segment: Segment, node_id: NodeId, incarnation: Incarnation) -> bool:
    """Leadership belongs to an incarnation: a process that was started again never resumes it."""
    return (segment.leader, segment.leader_incarnation) == (node_id, incarnation)


def role_of(segment: Segment, facts: ReplicaFacts) -> Role:
    """Return the role that this record gives to a replica that does not lead."""
    is_listed = facts.node_id in segment.replicas
    if segment.state is SegmentState.SEALED:
        return Role.SEAL if is_listed and not facts.is_sealed else Role.LEFT_OUT
    if segment.state is not SegmentState.ACTIVE or not _may_begin(segment, facts):
        return Role.NONE
    if segment.leader == facts.node_id:
        leads = may_lead(segment, facts.node_id, facts.incarnation) and not facts.has_led
        return Role.LEAD if leads else Role.NONE
    return Role.FOLLOW if is_listed else Role.NONE


def _may_begin(segment: Segment, facts: ReplicaFacts) -> bool:
    """Return whether the log can have a role at all: it is the one the record means, whole, not
    promised to a higher epoch, and nothing in it is in doubt."""
    return (
        facts.is_intact
        and not facts.is_sealed
        and facts.promised_epoch <= segment.epoch
        and facts.is_all_durable
        and facts.base_offset >= 0
        and facts.base_offset == segment.base_offset
    )


# --- what a leader begins with --------------------------------------------------------------------

# Every part of ``LeaderCore`` is made from these.


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
