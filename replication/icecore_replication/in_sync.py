"""The replicas that a leader counts on: reports of followers, and changes of the in-sync set.

A part of ``LeaderCore``; it owns the committed set, the change in flight, and what is known of each
follower (``progress.py``). It decides *when* to propose a change; what a change means until it is
answered is in ``isr.py``. The maximal set always covers what may be stored. Rules R4, R5, R7, R8
and R14-R18 of docs/design/protocol.md.
"""

from typing import Final

from icecore.model import NodeId, NodeInfo, Segment
from icecore_replication import isr as isr_rules
from icecore_replication.effects import ProposeIsr
from icecore_replication.inputs import FollowerProgress
from icecore_replication.isr import CommittedIsr, IsrState
from icecore_replication.leading import LeaderLimits, LeaderStart
from icecore_replication.progress import REJOIN_LAG_MS, Followers, Progress
from icecore_replication.watermark import all_end, quorum_end

_REJOIN_PAUSE_MS: Final = 10_000.0


class InSync:
    """The in-sync set of one segment, and the followers in and outside it."""

    def __init__(self, start: LeaderStart, limits: LeaderLimits) -> None:
        segment = start.segment
        self._node_id, self._incarnation = start.node_id, start.incarnation
        self._lag_ms_max, self._rejoin_wait_ms = limits.replica_lag_ms_max, limits.rejoin_wait_ms
        self.followers = Followers(
            segment.replicas, start.node_id, start.nodes, segment.base_offset, start.now_ms
        )
        self.state: IsrState = CommittedIsr(segment.isr, segment.version)
        """Committed, or with which change in flight. Invariant: the version never goes back."""
        self.maximal = segment.isr
        """Members that acks wait for: committed ones and those of an expansion in flight.
        Invariant: ``maximal_isr(state)``, so the leader and every member that may be stored is in
        it (I7)."""
        self._moved = True
        self._change_due = True
        self.wait_until_ms = 0.0
        """No change is proposed, and none in doubt repeated, before this moment (R18)."""
        self.hold: tuple[NodeId, float] | None = None
        """Acks wait for a node that is about to join, until this moment (R17)."""

    # --- news for the leader ---------------------------------------------------------------------

    def take_news(self) -> tuple[bool, bool]:
        """Since the last call: has some end, or the set that counts, changed; and has something
        happened that may ask for a change of the set?"""
        news = (self._moved, self._change_due)
        self._moved = self._change_due = False
        return news

    def tick(self) -> None:
        """Time passed: members may lag, a wait may be over."""
        self._change_due = True
        if self.hold is not None:
            self._moved = True

    def ends(self, segment: Segment, log_end: int, now_ms: float) -> tuple[int, int]:
        """Return how far ``all`` and ``quorum`` are reached (R4, R5), no further than a hold
        allows.
        """
        durable = self.followers.durable
        isr_end = all_end(durable, self.maximal)
        of_quorum = quorum_end(
            durable, segment.replicas, segment.settings.quorum, durable[self._node_id]
        )
        if self.hold is not None:
            limit = self._hold_limit(self.hold, log_end, now_ms)
            return min(isr_end, limit), min(of_quorum, limit)
        return isr_end, of_quorum

    def _hold_limit(self, hold: tuple[NodeId, float], log_end: int, now_ms: float) -> int:
        node_id, deadline_ms = hold
        if (
            now_ms >= deadline_ms
            or node_id in self.maximal
            or not self.followers.by_node[node_id].attached
        ):
            self.hold = None
            return log_end
        return self.followers.durable[node_id]

    # --- followers (R7-R9) -----------------------------------------------------------------------

    def raise_own_end(self, end_offset: int) -> None:
        """The leader's own disk has everything below."""
        durable = self.followers.durable
        if end_offset > durable[self._node_id]:
            durable[self._node_id] = end_offset
            self._moved = True

    def record(
        self, follower: Progress, item: FollowerProgress, log_end: int, now_ms: float
    ) -> None:
        """Take a report that ``followers`` has accepted and that does not exceed our log."""
        self.followers.record(follower, item, log_end, now_ms)
        self._moved = True
        if follower.why_out or item.node_id not in self.maximal:
            self._change_due = True

    def disqualify(self, node_id: NodeId, why: str) -> None:
        """Nothing of this follower counts any more, and it leaves the set at once (R15)."""
        if self.followers.disqualify(node_id, why):
            self._moved = self._change_due = True

    def change_node(self, node: NodeInfo) -> FollowerProgress | None:
        """Take the coordinator's word on a node; returns a report that had come too early."""
        self._moved = self._change_due = True
        return self.followers.change_node(node)

    # --- the set (R14-R18) -----------------------------------------------------------------------

    def commit(self, segment: Segment) -> None:
        """The stored set is known: no change is in flight, and none in doubt."""
        self._set(CommittedIsr(segment.isr, segment.version))
        self.wait_until_ms = 0.0

    def answered(self, version: int, now_ms: float, *, is_refused: bool) -> None:
        """The proposal of this version was refused, or nobody knows what became of it (R18)."""
        if version == self.state.version:
            self.wait_until_ms = now_ms + isr_rules.RETRY_MS
            answer = isr_rules.refused if is_refused else isr_rules.unanswered
            self._set(answer(self.state, version))

    def repeat(self, now_ms: float) -> ProposeIsr | None:
        """The proposal in flight once more, if nobody knows what became of it."""
        state = self.state
        if isinstance(state, CommittedIsr) or not state.uncertain or now_ms < self.wait_until_ms:
            return None
        self.wait_until_ms = now_ms + isr_rules.RETRY_MS
        return state.proposal

    def next_change(
        self, segment: Segment, log_end: int, floor: int, now_ms: float, *, may_join: bool
    ) -> ProposeIsr | None:
        """Propose at most one change; one in flight at a time.

        Args:
            segment: The record.
            log_end: Of the leader's log.
            floor: What a new member must have (R16).
            now_ms: Monotonic.
            may_join: False while only removals are wanted.
        """
        state = self.state
        if not isinstance(state, CommittedIsr) or now_ms < self.wait_until_ms:
            return None
        stay = {
            node_id
            for node_id in state.isr
            if node_id == self._node_id or not self._must_leave(node_id, log_end, now_ms)
        }
        if len(stay) < len(state.isr):
            return self.propose(state, stay)
        joining = self._joining(state, segment, log_end, floor, now_ms) if may_join else set()
        return self.propose(state, stay | joining) if joining else None

    def propose(self, state: CommittedIsr, members: set[NodeId]) -> ProposeIsr:
        """Put this change in flight."""
        known = self.followers.by_node
        incarnations = {node_id: each.incarnation for node_id, each in known.items()}
        pending = isr_rules.propose(
            state, members, {**incarnations, self._node_id: self._incarnation}
        )
        self._set(pending)
        self._change_due = False
        return pending.proposal

    def _set(self, state: IsrState) -> None:
        self.state = state
        self.maximal = isr_rules.maximal_isr(state)
        self._moved = self._change_due = True

    def _must_leave(self, node_id: NodeId, log_end: int, now_ms: float) -> str:
        return self.followers.must_leave(node_id, log_end, now_ms, self._lag_ms_max)

    def _joining(
        self, state: CommittedIsr, segment: Segment, log_end: int, floor: int, now_ms: float
    ) -> set[NodeId]:
        """Followers that may join now; may start to wait for one that nearly can (R17)."""
        joining: set[NodeId] = set()
        for node_id, follower in self.followers.by_node.items():
            if node_id in state.isr:
                continue
            follower.why_out = ""  # it is out; what it holds now is what counts
            end = self.followers.durable[node_id]
            if self._must_leave(node_id, log_end, now_ms):
                continue  # it would be dropped again at once
            if isr_rules.can_expand(segment, follower.node, follower.attached, end, floor):
                joining.add(node_id)
            elif (
                self.hold is None
                and isr_rules.can_expand(segment, follower.node, follower.attached, end, end)
                and now_ms - follower.caught_up_ms <= REJOIN_LAG_MS
                and now_ms >= follower.hold_after_ms
            ):
                follower.hold_after_ms = now_ms + _REJOIN_PAUSE_MS
                self.hold = (node_id, now_ms + self._rejoin_wait_ms)
        return joining
