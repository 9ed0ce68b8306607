"""Whom a leader counts on: reports of followers, and changes of the in-sync set.

The middle layer of ``LeaderCore`` (see ``leader_state.py``). It decides *when* to propose a change;
what a change means until it is answered is in ``isr.py``. Rules R7-R9 and R14-R19 of
docs/PROTOCOL.md.
"""

from dataclasses import replace
from typing import Final

from icecore.model import SegmentState
from icecore_replication import inputs as into
from icecore_replication import isr as isr_rules
from icecore_replication.isr import CommittedIsr
from icecore_replication.leader_state import LeaderState
from icecore_replication.progress import REJOIN_LAG_MS
from icecore_replication.sealing import Collecting, Draining, Sealing

_REJOIN_PAUSE_MS: Final = 10_000.0


class Membership(LeaderState):
    """Followers come and go; the maximal set always covers what may be stored."""

    # --- followers (R7-R9) -----------------------------------------------------------------------

    def _on_progress(self, item: into.FollowerProgress) -> None:
        follower = self._followers.accept(item)
        if follower is None:
            return
        if item.durable_end_offset > self._log_end:
            # Never tell the follower to cut its log: ours is the one that lost bytes.
            self._stop(
                f"node {item.node_id} is durable to {item.durable_end_offset},"
                f" our log ends at {self._log_end}",
                recover=True,
            )
            return
        self._followers.record(follower, item, self._log_end, self._now_ms)
        self._dirty = True
        if follower.damaged or item.node_id not in self._maximal:
            self._isr_due = True

    def _on_diverged(self, item: into.FollowerDiverged) -> None:
        follower = self._followers.by_node.get(item.node_id)
        if follower is not None:
            self._followers.forget(item.node_id)
            follower.damaged = True
            self._dirty = self._isr_due = True

    def _on_node_changed(self, item: into.NodeChanged) -> None:
        node = item.node
        if node.node_id == self.node_id and node.incarnation > self.incarnation:
            self._stop("a newer incarnation of this node is registered")
            return
        early = self._followers.change_node(node)
        self._dirty = self._isr_due = True
        if early is not None:
            self._on_progress(replace(early, attach=True))

    # --- in-sync set (R14-R19) -------------------------------------------------------------------

    def _on_segment_updated(self, item: into.SegmentUpdated) -> None:
        segment = item.segment
        if segment.version <= self._isr.version:
            return
        if self._is_our_seal(segment):
            self._finish_sealed()
            return
        if (
            segment.state is not SegmentState.ACTIVE
            or segment.epoch != self.segment.epoch
            or segment.leader_incarnation != self.incarnation
        ):
            self._stop(f"the segment is {segment.state.name} in epoch {segment.epoch}")
            return
        self.segment = segment
        self._set_isr(CommittedIsr(segment.isr, segment.version))
        self._isr_wait_until_ms = 0.0

    def _on_isr_refused(self, item: into.IsrChangeFailed) -> None:
        if item.version == self._isr.version:
            self._isr_wait_until_ms = self._now_ms + isr_rules.RETRY_MS
            self._set_isr(isr_rules.refused(self._isr, item.version))

    def _on_isr_unknown(self, item: into.IsrChangeUnknown) -> None:
        if item.version == self._isr.version:
            self._isr_wait_until_ms = self._now_ms + isr_rules.RETRY_MS
            self._set_isr(isr_rules.unanswered(self._isr, item.version))

    def _change_isr(self) -> None:
        """Propose at most one change; one in flight at a time."""
        state = self._isr
        if self._now_ms < self._isr_wait_until_ms:
            return
        if not isinstance(state, CommittedIsr):
            if state.uncertain:
                self._isr_wait_until_ms = self._now_ms + isr_rules.RETRY_MS
                self._effects.append(state.proposal)
            return
        if isinstance(self._roll, Collecting | Sealing):
            return
        lag_max = self.limits.replica_lag_ms_max
        stay = {
            node_id
            for node_id in state.isr
            if node_id == self.node_id
            or not self._followers.must_leave(node_id, self._log_end, self._now_ms, lag_max)
        }
        if len(stay) < len(state.isr):
            roll = self._roll
            if isinstance(roll, Draining) and len(stay) < self.segment.settings.min_insync:
                self._abort_roll(roll)
            self._propose(state, stay)
        elif not isinstance(self._roll, Draining):
            joining = self._joining(state)
            if joining:
                self._propose(state, stay | joining)

    def _joining(self, state: CommittedIsr) -> set[int]:
        """Followers that may join now; may start to wait for one that nearly can (R17)."""
        floor = isr_rules.expand_floor(self._high_watermark, self.acked_end)
        joining: set[int] = set()
        for node_id, follower in self._followers.by_node.items():
            if node_id in state.isr:
                continue
            follower.damaged = False  # it is out; what it holds now is what counts
            end = self._durable[node_id]
            lag_max = self.limits.replica_lag_ms_max
            if self._followers.must_leave(node_id, self._log_end, self._now_ms, lag_max):
                continue  # it would be dropped again at once
            if isr_rules.can_expand(self.segment, follower.node, follower.attached, end, floor):
                joining.add(node_id)
            elif (
                self._hold is None
                and isr_rules.can_expand(self.segment, follower.node, follower.attached, end, end)
                and self._now_ms - follower.caught_up_ms <= REJOIN_LAG_MS
                and self._now_ms >= follower.hold_after_ms
            ):
                follower.hold_after_ms = self._now_ms + _REJOIN_PAUSE_MS
                self._hold = (node_id, self._now_ms + self.limits.rejoin_wait_ms)
        return joining

    def _propose(self, state: CommittedIsr, members: set[int]) -> None:
        followers = self._followers.by_node
        incarnations = {node_id: followers[node_id].incarnation for node_id in followers}
        pending = isr_rules.propose(
            state, members, {**incarnations, self.node_id: self.incarnation}
        )
        self._set_isr(pending)
        self._isr_due = False
        self._effects.append(pending.proposal)
