"""Decides where a segment ends when its leader is gone, from the reports of fenced replicas.

Pure functions for the coordinator and the model checker. A reply counts only after its node has
promised the higher epoch durably, so no reply can be outdated by a later append. Rules R30-R33 of
docs/design/protocol.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from icecore.model import NO_INCARNATION, Incarnation, NodeId, Segment


@dataclass(frozen=True, slots=True)
class FenceReply:
    """The report of one replica, made after its promise was durable."""

    intact: bool
    """False = UNKNOWN: missing, damaged, not provably complete; unless ``salvageable``, all else
    then says nothing."""
    durable_end_offset: int = 0
    last_header_crc32c: int = 0
    digest: bytes = b""
    """Rolling seal digest through ``durable_end_offset``."""
    incarnation: Incarnation = NO_INCARNATION
    max_known_high_watermark: int = 0
    salvageable: bool = False
    """Not intact, but all up to this end is provably of this segment: CRCs and chain hold. What
    may be missing behind it nobody knows, so only an admin's word lets it count."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Enough replicas have answered to know the end, by this rule and from these members."""

    rule: Literal["S1", "S3"]
    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class EndDecision:
    """The end of the segment and a node whose log reaches it."""

    end_offset: int
    donor: NodeId
    last_header_crc32c: int


@dataclass(frozen=True, slots=True)
class Undecidable:
    """The replies contradict each other or what was seen: a person must look (R50)."""

    why: str


def may_decide(replies: Mapping[NodeId, FenceReply], segment: Segment) -> Decision | None:
    """Return the end of the segment that these replies prove; None = wait for more.

    S1: the leader itself answers, in the incarnation that led: nobody else ever wrote.
    S3: so many members that every quorum (of the *pinned* replication factor) meets them, and, when
    ``min_insync_replicas`` is smaller than that quorum, one member of the frozen in-sync set, which
    holds everything acked by ``all``.

    Args:
        replies: By node id; those of other nodes, and those that are not intact, do not count.
        segment: The record as frozen by the move to RECOVERING, with its pinned settings.
    """
    members = _members(replies, segment.replicas)
    if (
        segment.leader in members
        and replies[segment.leader].incarnation == segment.leader_incarnation
    ):
        return Decision("S1", members)
    quorum = segment.settings.quorum
    if len(members) < max(1, len(segment.replicas) - quorum + 1):
        return None
    if segment.settings.min_insync_replicas < quorum and not set(members) & set(segment.isr):
        return None
    return Decision("S3", members)


def decide_end(
    replies: Mapping[NodeId, FenceReply], tripwire_high_watermark: int = 0
) -> EndDecision | Undecidable:
    """The longest durable log among intact replies; call it only after ``may_decide`` said yes.

    Shorter logs must be prefixes of the donor's: whoever writes back compares the chain there.

    Args:
        replies: Of replicas of the segment, by node id.
        tripwire_high_watermark: Highest one the coordinator ever heard of for this segment.

    Returns:
        ``Undecidable`` when no reply is intact, the end would lie below a high watermark that
        somebody has seen, or two logs of equal length differ.
    """
    intact = {node: reply for node, reply in replies.items() if reply.intact}
    if not intact:
        return Undecidable("no intact replica to decide from")
    end_offset = max(reply.durable_end_offset for reply in intact.values())
    longest = {n: r for n, r in sorted(intact.items()) if r.durable_end_offset == end_offset}
    if len({(reply.last_header_crc32c, reply.digest) for reply in longest.values()}) > 1:
        return Undecidable(f"replicas {sorted(longest)} differ at the same end {end_offset}")
    seen = max(reply.max_known_high_watermark for reply in intact.values())
    if end_offset < max(seen, tripwire_high_watermark):
        return Undecidable(
            f"end {end_offset} is below a high watermark that was visible,"
            f" {max(seen, tripwire_high_watermark)}"
        )
    donor = next(iter(longest))
    return EndDecision(end_offset, donor, longest[donor].last_header_crc32c)


def is_total_loss(replies: Mapping[NodeId, FenceReply], segment: Segment) -> bool:
    """Return whether every replica has said that it is UNKNOWN (R82).

    One that has not answered may hold everything. What is UNKNOWN stays so until the segment is
    sealed, so no later answer can make this untrue.

    Args:
        replies: By node id, each of the registered incarnation.
        segment: The record as frozen by the move to RECOVERING.
    """
    answers = [replies.get(node_id) for node_id in segment.replicas]
    return all(reply is not None and not reply.intact for reply in answers)


def decide_unclean(replies: Mapping[NodeId, FenceReply]) -> EndDecision | None:
    """The choice when nothing decides and the loss is accepted (R46, R82): the longest log of those
    that are intact or salvageable, whatever it lacks.

    Records that were acknowledged may be missing; who calls this records that. None when there is
    no such reply. Of equally long logs an intact one is taken, and of the lowest node.
    """
    usable = sorted(
        (-reply.durable_end_offset, not reply.intact, node)
        for node, reply in replies.items()
        if reply.intact or reply.salvageable
    )
    if not usable:
        return None
    donor = usable[0][2]
    reply = replies[donor]
    return EndDecision(reply.durable_end_offset, donor, reply.last_header_crc32c)


def _members(
    replies: Mapping[NodeId, FenceReply], replicas: tuple[NodeId, ...]
) -> tuple[NodeId, ...]:
    return tuple(sorted(n for n, reply in replies.items() if n in replicas and reply.intact))
