"""The in-sync set: what is committed, what is proposed, and which changes are allowed.

The leader proposes, the coordinator compares and sets on the segment's version. Between proposal
and answer both sets may be the stored one, so acks and high watermark wait for their union, the
*maximal* set. ``accept_isr_change`` is the coordinator's whole decision; the rest is the leader's.
Rules R14-R19 of docs/design/protocol.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from icecore.errors import ConflictError, FencedError, IcecoreError, InvalidRequestError
from icecore.model import (
    NO_INCARNATION,
    Epoch,
    Incarnation,
    NodeId,
    NodeInfo,
    NodeState,
    Segment,
    SegmentState,
)
from icecore_replication.effects import ProposeIsr

RETRY_MS: Final = 500.0
"""Wait after a refused proposal, and between repeats of one without an answer."""


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """No change in flight."""

    isr: tuple[NodeId, ...]
    version: int


@dataclass(frozen=True, slots=True)
class PendingExpand:
    """Proposed members count at once: acks wait for them before the coordinator has answered."""

    isr: tuple[NodeId, ...]
    version: int
    maximal: tuple[NodeId, ...]
    proposal: ProposeIsr
    uncertain: bool = False
    """No answer came: the change may still be applied until a higher version is seen."""


@dataclass(frozen=True, slots=True)
class PendingShrink:
    """Members proposed for removal count until the coordinator has removed them."""

    isr: tuple[NodeId, ...]
    version: int
    proposal: ProposeIsr
    uncertain: bool = False


IsrState: TypeAlias = CommittedIsr | PendingExpand | PendingShrink


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A leader's request to the coordinator, with everything that proves that the leader may make
    it."""

    node_id: NodeId
    incarnation: Incarnation
    epoch: Epoch
    version: int
    isr: tuple[NodeId, ...]
    isr_incarnations: tuple[Incarnation, ...]
    """Incarnation of each member as the leader knows it; parallel to ``isr``."""


def maximal_isr(state: IsrState) -> tuple[NodeId, ...]:
    """Every set that may be the stored one, united."""
    return state.maximal if isinstance(state, PendingExpand) else state.isr


def propose(
    state: CommittedIsr, members: set[NodeId], incarnations: Mapping[NodeId, Incarnation]
) -> PendingExpand | PendingShrink:
    """The state once ``members`` are proposed; its ``proposal`` is what to send."""
    proposal = _proposal(members, state.version, incarnations)
    if members - set(state.isr):
        maximal = tuple(sorted({*state.isr, *members}))
        return PendingExpand(state.isr, state.version, maximal, proposal)
    return PendingShrink(state.isr, state.version, proposal)


def refused(state: IsrState, version: int) -> IsrState:
    """The proposal made at ``version`` was definitely not applied.

    When an earlier sending of it is unaccounted for, that one may be applied yet: the committed
    set itself is then the next proposal. It changes nothing but the version, which ends the doubt.
    """
    if isinstance(state, CommittedIsr) or version != state.version:
        return state
    if not state.uncertain:
        return CommittedIsr(state.isr, state.version)
    return replace(state, proposal=_proposal(set(state.isr), version, {}))


def unanswered(state: IsrState, version: int) -> IsrState:
    """Nobody knows whether the proposal made at ``version`` was applied."""
    if isinstance(state, CommittedIsr) or version != state.version:
        return state
    return replace(state, uncertain=True)


def can_expand(
    segment: Segment, node: NodeInfo | None, attached: bool, durable_end: int, floor: int
) -> bool:
    """May the leader propose this follower for the in-sync set?

    Args:
        segment: The record.
        node: What the coordinator last said of it; only UP nodes join.
        attached: It has reported in this epoch, in its registered incarnation.
        durable_end: What it reported.
        floor: The high watermark or the end of everything acked, whichever is higher: a member
            must hold every record that a later recovery may have to find on it.
    """
    return (
        node is not None
        and node.state is NodeState.UP
        and node.node_id in segment.replicas
        and attached
        and durable_end >= floor
    )


def expand_floor(high_watermark: int, acked_end: int) -> int:
    """Return the offset up to which a follower must be durable before it may join the in-sync set,
    or be certified."""
    return max(high_watermark, acked_end)


def accept_isr_change(
    segment: Segment, proposal: IsrProposal, registered_incarnations: Mapping[NodeId, Incarnation]
) -> Segment | IcecoreError:
    """The coordinator's answer: the next record, or why there is none (then nothing changes).

    Args:
        segment: As stored.
        proposal: From a node that claims to lead it.
        registered_incarnations: Of the nodes that may join now (UP, activated), by node id.
    """
    who = (proposal.node_id, proposal.incarnation)
    if segment.state is not SegmentState.ACTIVE or proposal.epoch != segment.epoch:
        return FencedError(
            f"segment {segment.segment_id} is {segment.state.name} in epoch {segment.epoch}"
        )
    if who != (segment.leader, segment.leader_incarnation):
        return FencedError(f"node {who[0]} incarnation {who[1]} does not lead the segment")
    if proposal.version != segment.version:
        return ConflictError(
            f"version {proposal.version} is not {segment.version}", version=segment.version
        )
    members = set(proposal.isr)
    if (
        len(members) != len(proposal.isr)
        or len(proposal.isr_incarnations) != len(proposal.isr)
        or segment.leader not in members
        or not members <= set(segment.replicas)
    ):
        return InvalidRequestError(
            f"in-sync set {proposal.isr} of replicas {segment.replicas}, leader {segment.leader}"
        )
    for node_id, incarnation in zip(proposal.isr, proposal.isr_incarnations, strict=True):
        if node_id not in segment.isr and registered_incarnations.get(node_id) != incarnation:
            return FencedError(f"node {node_id} incarnation {incarnation} may not join")
    return segment.changed(isr=proposal.isr, version=segment.version + 1)


def _proposal(
    members: set[NodeId], version: int, incarnations: Mapping[NodeId, Incarnation]
) -> ProposeIsr:
    isr = tuple(sorted(members))
    return ProposeIsr(
        isr, version, tuple(incarnations.get(node_id, NO_INCARNATION) for node_id in isr)
    )
