"""A leader's knowledge of its followers: registered incarnation, durable end, time of catching up.

A report counts only if it comes from the registered incarnation. The first one of an incarnation,
and each that attaches, *replaces* what was known; a durable end that went back means that the
follower lost bytes it had fsynced. Rules R7-R9 of docs/design/protocol.md.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from icecore.model import NO_INCARNATION, NodeId, NodeInfo, NodeState
from icecore_replication.inputs import FollowerProgress

REJOIN_LAG_MS: Final = 1_000.0
"""A follower that had everything at most so long ago is close enough to be waited for."""


class Progress:
    """One other replica, as its reports and the coordinator describe it.

    Invariants, with ``end`` for its durable end in ``Followers.durable`` and ``log_end`` for the
    leader's: base_offset <= end <= reported_end <= log_end, and base_offset <= seen_log_end <=
    log_end. Every time lies in the past but ``hold_after_ms``.
    """

    __slots__ = (
        "attached",
        "caught_up_ms",
        "early",
        "hold_after_ms",
        "incarnation",
        "node",
        "reported_end",
        "seen_log_end",
        "seen_ms",
        "why_out",
    )

    def __init__(self, node: NodeInfo | None, now_ms: float, base_offset: int) -> None:
        self.node = node
        """The coordinator's last word. Invariant: of ``incarnation``, or nothing is known yet."""
        self.incarnation = node.incarnation if node else NO_INCARNATION
        """The incarnation whose reports count. Invariant: never goes back."""
        self.attached = False
        """It has reported in ``incarnation``. Invariant: end == base_offset while it is False."""
        self.why_out = ""
        """Why it must leave the in-sync set, "" if it need not. Invariant: never taken back while
        it is a member, so that nothing it reports later hides that it lost something."""
        self.early: FollowerProgress | None = None
        """The last report of an incarnation that the coordinator has not told us of yet.
        Invariant: of a higher one than ``incarnation``."""
        self.reported_end = base_offset
        """Invariant: never goes back but by an attach, which then sets ``why_out``."""
        self.caught_up_ms = now_ms
        """When it had, at the latest, all that was appended until then. Invariant: never back."""
        self.seen_log_end = base_offset
        """A mark: the leader's end at ``seen_ms``. It moves on when a report reaches it."""
        self.seen_ms = now_ms
        """Invariant: caught_up_ms >= seen_ms once a report has reached the mark."""
        self.hold_after_ms = 0.0
        """Acks do not wait for it to join before then (R17)."""


class Followers:
    """All other replicas of one segment; ``durable`` holds their ends and the leader's own."""

    def __init__(
        self,
        replicas: tuple[NodeId, ...],
        leader: NodeId,
        nodes: Mapping[NodeId, NodeInfo],
        base_offset: int,
        now_ms: float,
    ) -> None:
        self._base_offset = base_offset
        self.durable: dict[NodeId, int] = dict.fromkeys(replicas, base_offset)
        """Invariant: of exactly the replicas. Only ``InSync`` writes the leader's own."""
        self.by_node = {
            node_id: Progress(nodes.get(node_id), now_ms, base_offset)
            for node_id in replicas
            if node_id != leader
        }

    def accept(self, progress: FollowerProgress) -> Progress | None:
        """Return the follower's progress if this report is from its registered incarnation, else
        None. A report of a higher incarnation is kept in ``early``."""
        follower = self.by_node.get(progress.node_id)
        if follower is None:
            return None
        if progress.incarnation != follower.incarnation:
            if progress.incarnation > follower.incarnation:
                follower.early = progress
            return None
        return follower

    def record(
        self, follower: Progress, progress: FollowerProgress, log_end: int, now_ms: float
    ) -> None:
        """Take an accepted report; ``log_end`` is the leader's, now."""
        node_id, end = progress.node_id, progress.durable_end_offset
        if progress.attach or not follower.attached:
            follower.attached = True
            # Never cleared here: a second attach at the same low end brings nothing back, nor does
            # a new incarnation. It must be out of the set first (``InSync._joining``).
            if end < follower.reported_end:
                follower.why_out = "lost bytes"
            follower.reported_end = end
            self.durable[node_id] = end
        elif end > self.durable[node_id]:
            self.durable[node_id] = follower.reported_end = end
        if end >= log_end:
            follower.caught_up_ms = now_ms
        elif end >= follower.seen_log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.seen_ms)
        else:
            return  # batches are in flight: the mark stays until a report reaches it
        follower.seen_log_end, follower.seen_ms = log_end, now_ms

    def change_node(self, node: NodeInfo) -> FollowerProgress | None:
        """Take the coordinator's word on a node; returns a report that had come too early."""
        follower = self.by_node.get(node.node_id)
        if follower is None or node.incarnation < follower.incarnation:
            return None
        follower.node = node
        if node.incarnation == follower.incarnation:
            return None
        follower.incarnation = node.incarnation
        self.forget(node.node_id)
        early, follower.early = follower.early, None
        return early if early is not None and early.incarnation == node.incarnation else None

    def settled_until_ms(self, members: Sequence[NodeId], log_end: int, lag_max_ms: float) -> float:
        """Until when time alone changes nothing: the first moment at which a member lags; whoever
        is out can't join before something else happens."""
        until_ms = inf
        for node_id, follower in self.by_node.items():
            state = follower.node.state if follower.node is not None else None
            if node_id in members:
                if state is NodeState.DOWN or follower.why_out:
                    return -inf
                if self.durable[node_id] < log_end:
                    until_ms = min(until_ms, follower.caught_up_ms + lag_max_ms)
            elif follower.attached and state is NodeState.UP:
                return -inf
        return until_ms

    def catch_up(self, log_end: int, now_ms: float) -> None:
        """Nothing has happened for a while: who has everything has had it all the time."""
        for node_id, follower in self.by_node.items():
            if self.durable[node_id] >= log_end:
                follower.caught_up_ms = now_ms

    def disqualify(self, node_id: NodeId, why: str) -> bool:
        """Nothing of it counts, and it must leave the in-sync set; False if it is no replica."""
        follower = self.by_node.get(node_id)
        if follower is None:
            return False
        self.forget(node_id)
        follower.why_out = why
        return True

    def forget(self, node_id: NodeId) -> None:
        """Nothing it has reported counts until it attaches again."""
        self.by_node[node_id].attached = False
        self.durable[node_id] = self._base_offset

    def must_leave(self, node_id: NodeId, log_end: int, now_ms: float, lag_max_ms: float) -> str:
        """Return why this member must leave the in-sync set, "" if it need not."""
        follower = self.by_node[node_id]
        if follower.node is not None and follower.node.state is NodeState.DOWN:
            return "node is down"
        if follower.why_out:
            return follower.why_out
        if self.durable[node_id] >= log_end:
            follower.caught_up_ms = now_ms
        elif now_ms - follower.caught_up_ms > lag_max_ms:
            return "lags"
        return ""
