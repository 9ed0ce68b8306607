"""Judge a live seal: by what its members say themselves, not only by what one message says.

The leader's message names an end, digests and the members that agreed. Before the coordinator
stores it, each of them is asked for its own word. A message that nobody stands behind, because it
was forged, came late or is the work of a broken leader, changes nothing. Rule R64 of
docs/design/protocol.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from icecore.errors import ConflictError, NotEnoughReplicasError, StorageError
from icecore.model import NodeId, SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class SealClaim:
    """The claims of a seal message about its segment."""

    segment_id: SegmentId
    leader: NodeId
    end_offset: int
    seal_digest: bytes
    producer_digest: bytes
    length_bytes: int
    replicas: tuple[NodeId, ...]
    """Nodes that are said to hold all of it, durably."""
    min_insync_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWord:
    """A node's report about its own intact replica, in its registered incarnation."""

    durable_end_offset: int
    seal_digest: bytes
    """Through the durable end, as the next two."""
    producer_digest: bytes
    length_bytes: int
    high_watermark: int
    """The highest one it ever knew of."""
    is_sealing: bool = False
    """It leads the segment, has sent a seal for this end, and will never append to it again."""


def check_watermark(claim: SealClaim, high_watermark: int) -> None:
    """As R32. Raises StorageError: somebody has seen records beyond the claimed end."""
    if claim.end_offset < high_watermark:
        raise StorageError(
            f"a seal at {claim.end_offset} lies below a high watermark that was visible,"
            f" {high_watermark}"
        )


def agreed_replicas(claim: SealClaim, words: Mapping[NodeId, MemberWord]) -> tuple[NodeId, ...]:
    """The listed members that confirm the claim themselves, sorted.

    The leader's own word is needed: only it knows that nothing will be appended any more. Where the
    claim lists others, one of them has to confirm it too, and together ``min_insync_replicas``. A
    member that does not answer is left out; the auditor counts its copy later.

    Args:
        claim: What is to be stored.
        words: By node, of those that answered and hold an intact replica.

    Raises:
        ConflictError: The leader has not sent this seal.
        NotEnoughReplicasError: The leader or too many others did not answer; nothing is wrong.
        StorageError: Members contradict the claim. A person must look.
    """
    leader = words.get(claim.leader)
    if leader is None or claim.leader not in claim.replicas:
        raise NotEnoughReplicasError(f"the leader of segment {claim.segment_id} does not confirm")
    if not leader.is_sealing or not _confirms(leader, claim):
        raise ConflictError(
            f"node {claim.leader} has not sent a seal of segment {claim.segment_id} at "
            f"{claim.end_offset}"
        )
    check_watermark(claim, max(word.high_watermark for word in words.values()))
    answered = sorted(each for each in claim.replicas if each in words)
    diverging = [each for each in answered if not _confirms(words[each], claim)]
    if diverging:
        raise StorageError(
            f"nodes {diverging} hold something else than what is to be sealed at {claim.end_offset}"
        )
    needed = max(claim.min_insync_replicas, min(2, len(claim.replicas)))
    if len(answered) < needed:
        raise NotEnoughReplicasError(
            f"{answered} confirm the end of segment {claim.segment_id}, {needed} needed"
        )
    return tuple(answered)


def _confirms(word: MemberWord, claim: SealClaim) -> bool:
    own = (word.durable_end_offset, word.seal_digest, word.producer_digest, word.length_bytes)
    said = (claim.end_offset, claim.seal_digest, claim.producer_digest, claim.length_bytes)
    return own == said
