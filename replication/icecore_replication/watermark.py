"""Ends of ``all`` and ``quorum``, and the high watermark: pure functions of durable ends.

Who is answered by them is in ``acks.py``. Ends are exclusive offsets. The leader, the model checker
and the tests use these functions alike.
Rules R4-R6 of docs/design/protocol.md.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from icecore.model import NodeId

NO_QUORUM: Final = -1
"""``quorum_end`` when the segment has fewer replicas than the quorum of its RF."""


def all_end(durable: Mapping[NodeId, int], maximal_isr: Sequence[NodeId]) -> int:
    """Everything below is durable on every member of the maximal in-sync set."""
    return min(map(durable.__getitem__, maximal_isr))


def quorum_end(
    durable: Mapping[NodeId, int], replicas: Sequence[NodeId], quorum: int, leader_end: int
) -> int:
    """Everything below is durable on ``quorum`` of the replicas, the leader among them.

    The leader's own disk is required too: after a failed local append its log may be shorter than
    what it has sent, and recovery may decide from the old leader's log alone (rule S1).
    """
    if len(replicas) < quorum:
        return NO_QUORUM
    return min(sorted(map(durable.__getitem__, replicas))[-quorum], leader_end)


def high_watermark(
    current: int, isr_end: int, quorum_end: int, committed_count: int, min_insync_replicas: int
) -> int:
    """The next high watermark; it never goes back.

    Args:
        current: Before.
        isr_end: ``all_end`` over the maximal in-sync set; counts for nothing (frozen) while the
            committed set is smaller than ``min_insync_replicas``.
        quorum_end: As above, or ``NO_QUORUM``.
        committed_count: Members of the committed in-sync set.
        min_insync_replicas: Pinned in the segment.
    """
    best = current
    if committed_count >= min_insync_replicas and isr_end > best:
        best = isr_end
    return quorum_end if quorum_end > best else best
