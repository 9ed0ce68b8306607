"""The states of a roll, and which replicas agree on the bytes that are sealed.

``rolling.py`` is the course of a roll; ``log.py`` says when one is due. A roll goes Idle ->
Preparing (the successor's files are created; appends go on) -> Draining (no offset is given out any
more, the in-sync set catches up) -> Collecting (digests) -> Sealing (sent; never append again). Up
to Collecting the leader may abort and go on appending at the same end. Rules R25-R29 of
docs/design/protocol.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from icecore.model import NodeId, SegmentId

BACKOFF_MS: Final = 1_000.0
BACKOFF_MAX_MS: Final = 30_000.0


@dataclass(frozen=True, slots=True)
class Idle:
    """No roll; none may start before ``not_before_ms``."""

    not_before_ms: float = 0.0
    backoff_ms: float = BACKOFF_MS


@dataclass(frozen=True, slots=True)
class Preparing:
    """The coordinator was asked for a successor; appends go on."""

    backoff_ms: float


@dataclass(frozen=True, slots=True)
class Draining:
    """The end is chosen; waiting until every member of the in-sync set has it."""

    successor: SegmentId
    deadline_ms: float
    backoff_ms: float
    dropped_laggards: bool = False


@dataclass(frozen=True, slots=True)
class Collecting:
    """Replicas were asked for their digests."""

    successor: SegmentId
    end_offset: int
    deadline_ms: float
    backoff_ms: float


@dataclass(frozen=True, slots=True)
class Sealing:
    """The seal was sent. Whatever comes back, this leader never appends again."""

    end_offset: int
    seal_digest: bytes


Roll: TypeAlias = Idle | Preparing | Draining | Collecting | Sealing


def roll_failed(roll: Preparing | Draining | Collecting, now_ms: float) -> Idle:
    """Back to normal; each failure doubles the wait before the next try, up to half a minute."""
    return Idle(now_ms + roll.backoff_ms, min(2 * roll.backoff_ms, BACKOFF_MAX_MS))


def gives_out_offsets(roll: Roll) -> bool:
    """Return whether the leader may append: not from the choice of an end on, unless the roll
    fails."""
    return isinstance(roll, Idle | Preparing)


def members_at_end(
    isr: Iterable[NodeId], durable: Mapping[NodeId, int], end_offset: int
) -> set[NodeId]:
    """The members that hold everything the segment will end with."""
    return {node_id for node_id in isr if durable[node_id] >= end_offset}


def agreeing_nodes(
    leader: NodeId, nodes: Iterable[NodeId], digests: Mapping[NodeId, tuple[bytes, bytes]]
) -> tuple[NodeId, ...]:
    """The asked nodes whose (seal digest, producer digest) equals the leader's own, sorted.

    Empty when the leader's own digests are missing. The leader wrote every byte, so its log is the
    one to compare with; whether enough agree is the caller's question.
    """
    own = digests.get(leader)
    if own is None:
        return ()
    return tuple(sorted(node_id for node_id in nodes if digests.get(node_id) == own))


def diverging_nodes(
    leader: NodeId, nodes: Iterable[NodeId], digests: Mapping[NodeId, tuple[bytes, bytes]]
) -> tuple[NodeId, ...]:
    """The asked nodes that answered something else than the leader, sorted.

    Each has checked every batch's CRC and place in the chain, so none of them can be wrong and one
    is (I6): nobody may choose.
    """
    own = digests.get(leader)
    return tuple(sorted(each for each in nodes if digests.get(each, own) != own))
