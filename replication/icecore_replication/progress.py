"""What a leader knows of its followers: registered incarnation, durable end, when it caught up.

A report counts only if it comes from the registered incarnation. The first one of an incarnation,
and each that attaches, *replaces* what was known; a durable end that went back means that the
follower lost bytes it had fsynced. Rules R7-R9 of docs/PROTOCOL.md.
"""

from collections.abc import Mapping
from typing import Final

from icecore.model import NodeInfo, NodeState
from icecore_replication.inputs import FollowerProgress

REJOIN_LAG_MS: Final = 1_000.0
"""A follower that had everything at most so long ago is close enough to be waited for."""


class Follower:
    """One other replica, as its reports and the coordinator describe it."""

    __slots__ = (
        "attached",
        "caught_up_ms",
        "damaged",
        "early",
        "hold_after_ms",
        "incarnation",
        "node",
        "reported_end",
        "seen_log_end",
        "seen_ms",
    )

    def __init__(self, node: NodeInfo | None, now_ms: float, base_offset: int) -> None:
        self.node = node
        self.incarnation = node.incarnation if node else 0
        self.attached = False
        self.damaged = False
        """It lost or contradicts bytes; it must leave the in-sync set and catch up again."""
        self.early: FollowerProgress | None = None
        """From an incarnation that the coordinator has not told us of yet."""
        self.reported_end = base_offset
        self.caught_up_ms = now_ms
        self.seen_log_end = base_offset
        self.seen_ms = now_ms
        self.hold_after_ms = 0.0


class Followers:
    """All other replicas of one segment; ``durable`` holds their ends and the leader's own."""

    def __init__(
        self,
        replicas: tuple[int, ...],
        leader: int,
        nodes: Mapping[int, NodeInfo],
        base_offset: int,
        now_ms: float,
    ) -> None:
        self._base_offset = base_offset
        self.durable: dict[int, int] = dict.fromkeys(replicas, base_offset)
        self.by_node = {
            node_id: Follower(nodes.get(node_id), now_ms, base_offset)
            for node_id in replicas
            if node_id != leader
        }

    def accept(self, progress: FollowerProgress) -> Follower | None:
        """The follower, if this report is from its registered incarnation."""
        follower = self.by_node.get(progress.node_id)
        if follower is None:
            return None
        if progress.incarnation != follower.incarnation:
            if progress.incarnation > follower.incarnation:
                follower.early = progress
            return None
        return follower

    def record(
        self, follower: Follower, progress: FollowerProgress, log_end: int, now_ms: float
    ) -> None:
        """Take an accepted report; ``log_end`` is the leader's, now."""
        node_id, end = progress.node_id, progress.durable_end_offset
        if progress.attach or not follower.attached:
            follower.attached = True
            # Never cleared here: a second attach at the same low end brings nothing back, nor does
            # a new incarnation. It must be out of the set first (``Membership._joining``).
            follower.damaged |= end < follower.reported_end
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

    def forget(self, node_id: int) -> None:
        """Nothing it has reported counts until it attaches again."""
        self.by_node[node_id].attached = False
        self.durable[node_id] = self._base_offset

    def must_leave(self, node_id: int, log_end: int, now_ms: float, lag_max_ms: float) -> str:
        """Why this member must leave the in-sync set, "" if it need not."""
        follower = self.by_node[node_id]
        if follower.node is not None and follower.node.state is NodeState.DOWN:
            return "node is down"
        if follower.damaged:
            return "lost or contradicts bytes"
        if self.durable[node_id] >= log_end:
            follower.caught_up_ms = now_ms
        elif now_ms - follower.caught_up_ms > lag_max_ms:
            return "lags"
        return ""
