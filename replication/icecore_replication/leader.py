"""The leader of one segment, from the first append to the seal.

It is created by the node that the segment record names, in the incarnation the record names, on an
empty log; it never resumes. Theory of operation: each input handler changes plain state; then
``_settle`` looks once at the whole and moves what may move: high watermark and acks
(``leader_state.py``), in-sync set (``membership.py``), roll (here). Rule numbers R… are those of
docs/PROTOCOL.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    NotEnoughReplicasError,
    NotLeaderError,
    ProducerFencedError,
    RollingError,
    ThrottledError,
)
from icecore.model import Acks, NodeInfo, Segment
from icecore_replication import effects as out
from icecore_replication import inputs as into
from icecore_replication import sealing
from icecore_replication.acks import Waiter
from icecore_replication.isr import CommittedIsr
from icecore_replication.leader_state import LeaderLimits
from icecore_replication.membership import Membership
from icecore_replication.producers import EPOCH_JUMP_MAX, Duplicate, ProducerTable
from icecore_replication.sealing import Collecting, Draining, Idle, Preparing, Sealing

__all__ = ["LeaderCore", "LeaderLimits"]


class LeaderCore(Membership):
    """Leader of one ACTIVE segment on a fresh log.

    Args:
        segment: The record that names this node leader.
        node_id: This node.
        incarnation: Of this process, as registered.
        producers: State through ``segment.base_offset``; the core applies what it appends.
        nodes: What is known of the other replicas.
        now_ms: Monotonic.
        limits: Bounds.
        producer_fences: Lowest epochs of named producers that may append; the shell raises them.

    Raises:
        InvalidRequestError: The record does not name this incarnation of this node, or is not
            ACTIVE with a base offset.
    """

    def __init__(
        self,
        segment: Segment,
        node_id: int,
        incarnation: int,
        producers: ProducerTable,
        nodes: Mapping[int, NodeInfo],
        now_ms: float,
        limits: LeaderLimits | None = None,
        producer_fences: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(
            segment, node_id, incarnation, producers, nodes, now_ms, limits, producer_fences
        )
        self._handlers = self._input_handlers()

    @property
    def sealing_end_offset(self) -> int | None:
        """Where this leader has asked to seal the segment, after which it appends no more; None
        while it has not asked, or when it has ended."""
        roll = self._roll
        return roll.end_offset if isinstance(roll, Sealing) and not self.stopped else None

    # --- one step --------------------------------------------------------------------------------

    def step(self, inputs: Sequence[into.LeaderInput], now_ms: float) -> list[out.LeaderEffect]:
        """Take these inputs in order; what comes back must be done in order.

        Args:
            inputs: What happened. After the core has stopped only produce is answered (NOT_LEADER).
            now_ms: Monotonic.

        Raises:
            InternalError: The shell reported something that cannot be (a bug).
        """
        self._now_ms = now_ms
        effects = self._effects = []
        handlers, took = self._handlers, self._story.took
        for item in inputs:
            took(item)
            if not self.stopped:
                handlers[item.__class__](item)
            elif isinstance(item, into.ProduceReceived):
                effects.append(out.FailProduce(item.request_id, NotLeaderError("segment closed")))
        if not self.stopped:
            self._settle()
        self._story.asked(effects)
        return effects

    def _input_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            into.ProduceReceived: self._on_produce,
            into.ProduceAbandoned: self._on_abandoned,
            into.LocalDurable: self._on_local_durable,
            into.LocalFailed: self._on_local_failed,
            into.FollowerProgress: self._on_progress,
            into.FollowerDiverged: self._on_diverged,
            into.NodeChanged: self._on_node_changed,
            into.SegmentUpdated: self._on_segment_updated,
            into.IsrChangeFailed: self._on_isr_refused,
            into.IsrChangeUnknown: self._on_isr_unknown,
            into.RollRequested: self._on_roll_requested,
            into.SuccessorPrepared: self._on_successor_prepared,
            into.SuccessorFailed: self._on_successor_failed,
            into.SealDigests: self._on_seal_digests,
            into.SealCommitted: self._on_seal_committed,
            into.SealRejected: self._on_seal_rejected,
            into.SealUnknown: self._on_seal_unknown,
            into.Fenced: self._on_fenced,
            into.LeaseChanged: self._on_lease_changed,
            into.Tick: self._on_tick,
        }

    def _settle(self) -> None:
        if self._dirty:
            self._dirty = False
            self._advance()
        if self._isr_due:
            self._isr_due = False
            self._change_isr()
        roll = self._roll
        if isinstance(roll, Idle):
            if (
                self._bytes >= self.segment.settings.segment_bytes
                or self._now_ms >= self._age_due_ms
                or self._roll_wanted
            ):
                self._start_roll(roll)
        elif isinstance(roll, Draining):
            self._drain(roll)
        elif isinstance(roll, Collecting) and self._now_ms >= roll.deadline_ms:
            self._abort_roll(roll)

    # --- produce (R1-R6) -------------------------------------------------------------------------

    def _on_produce(self, item: into.ProduceReceived) -> None:
        refusal: IcecoreError | None = None
        try:
            self._check_epoch(item.producer_id, item.producer_epoch)
            verdict = self.producers.check(
                item.producer_id, item.producer_epoch, item.base_sequence, item.record_count
            )
            if (
                isinstance(verdict, Duplicate)
                and len(self._acks) < self.limits.pending_requests_max
            ):
                self._attach_duplicate(item, verdict)
                return
        except IcecoreError as error:
            refusal = error
        # A batch behind one that was refused here has a gap: say why *here*, not OUT_OF_ORDER.
        refusal = self._refusal(item) or refusal
        if refusal is not None:
            self._effects.append(out.FailProduce(item.request_id, refusal))
            return
        base = self._log_end
        end = self._log_end = base + item.record_count
        self.producers.apply(
            item.producer_id,
            item.producer_epoch,
            item.base_sequence,
            item.record_count,
            base,
            item.append_timestamp_ms,
        )
        if base == self._base:
            self._age_due_ms = self._now_ms + self.segment.settings.segment_age_ms
        self._bytes += item.length_bytes
        self._unsynced_bytes += item.length_bytes
        self._unsynced.append((end, item.length_bytes))
        self._acks.add(item.acks, Waiter(item.request_id, base, end))
        self._effects.append(out.Append(item.request_id, base, end))

    def _check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Neither below that of a name's new owner (R48), nor one that would shut out every epoch
        its owner can ever get (R65)."""
        fence = self._producer_fences.get(producer_id, 0)
        if producer_epoch < fence:
            raise ProducerFencedError(f"producer {producer_id}: its name was taken over")
        if producer_epoch <= fence + EPOCH_JUMP_MAX or not producer_id:
            return
        last = self.producers.last_sequence(producer_id)
        known = max(fence, last[0]) if last else fence
        if producer_epoch > known + EPOCH_JUMP_MAX:
            raise InvalidRequestError(
                f"producer {producer_id}: epoch {producer_epoch} is too far beyond {known}"
            )

    def _attach_duplicate(self, item: into.ProduceReceived, found: Duplicate) -> None:
        waiter = Waiter(item.request_id, found.base_offset, found.end_offset, duplicate=True)
        if found.end_offset <= self._base:  # of an earlier, sealed segment
            copies = len(self.segment.replicas)
            self._effects.append(
                out.CompleteProduce(item.request_id, found.base_offset, copies, duplicate=True)
            )
            return
        self._acks.attach(item.acks, waiter)
        self._dirty = True

    def _refusal(self, item: into.ProduceReceived) -> IcecoreError | None:
        """Why this batch must not be appended now; all these errors are definite (R1)."""
        settings, limits = self.segment.settings, self.limits
        if self.rolling:
            return RollingError("the segment is being sealed")
        if item.acks is Acks.LEADER:
            if not self._lease_valid:
                return NotLeaderError("acks=leader needs a valid lease")
        elif len(self._isr.isr) < settings.min_insync:
            return NotEnoughReplicasError(
                f"{len(self._isr.isr)} in-sync replicas, min_insync is {settings.min_insync}"
            )
        elif item.acks is Acks.QUORUM and len(self.segment.replicas) < settings.quorum:
            return NotEnoughReplicasError(
                f"{len(self.segment.replicas)} replicas can't be a quorum of {settings.quorum}"
            )
        if len(self._acks) >= limits.pending_requests_max or (
            self._unsynced_bytes
            and self._unsynced_bytes + item.length_bytes > limits.pending_bytes_max
        ):
            return ThrottledError("too much is pending", retry_after_ms=limits.throttle_ms)
        return None

    def _on_abandoned(self, item: into.ProduceAbandoned) -> None:
        self._acks.abandon(item.request_id)

    def _on_local_durable(self, item: into.LocalDurable) -> None:
        end = item.end_offset
        if end > self._log_end:
            raise InternalError(f"durable to {end}, log end {self._log_end}\n{self.story()}")
        if end <= self._durable[self.node_id]:
            return
        self._durable[self.node_id] = end
        self._dirty = True
        unsynced = self._unsynced
        while unsynced and unsynced[0][0] <= end:
            self._unsynced_bytes -= unsynced.popleft()[1]

    def _on_local_failed(self, item: into.LocalFailed) -> None:
        self._stop(f"local append failed: {item.error}", recover=True)

    def _on_lease_changed(self, item: into.LeaseChanged) -> None:
        self._lease_valid = item.valid
        self._dirty = True

    # --- roll and seal (R25-R29) -----------------------------------------------------------------

    def _on_tick(self, _: into.Tick) -> None:
        self._isr_due = True
        if self._hold is not None:
            self._dirty = True

    def _on_roll_requested(self, item: into.RollRequested) -> None:
        self._roll_wanted = self._roll_wanted or item.why

    def _start_roll(self, idle: Idle) -> None:
        if (
            self._log_end == self._base
            or self._now_ms < idle.not_before_ms
            or len(self._isr.isr) < self.segment.settings.min_insync
        ):
            return
        full = self._bytes >= self.segment.settings.segment_bytes
        why = self._roll_wanted or ("size" if full else "age")
        self._roll = Preparing(idle.backoff_ms)
        self._effects.append(out.PrepareSuccessor(why))

    def _on_successor_prepared(self, item: into.SuccessorPrepared) -> None:
        roll = self._roll
        if isinstance(roll, Preparing):
            deadline = self._now_ms + self.limits.seal_wait_ms
            self._roll = Draining(item.segment_id, deadline, roll.backoff_ms)

    def _on_successor_failed(self, _: into.SuccessorFailed) -> None:
        if isinstance(self._roll, Preparing):
            self._abort_roll(self._roll)

    def _drain(self, roll: Draining) -> None:
        """Collect digests once the in-sync set has everything; drop laggards once, then give up."""
        state, late = self._isr, self._now_ms >= roll.deadline_ms
        if not isinstance(state, CommittedIsr):
            if late:
                self._abort_roll(roll)
            return
        min_insync = self.segment.settings.min_insync
        stay = sealing.members_at_end(state.isr, self._durable, self._log_end)
        if len(stay) == len(state.isr) >= min_insync:
            deadline = self._now_ms + self.limits.seal_wait_ms
            self._roll = Collecting(roll.successor, self._log_end, deadline, roll.backoff_ms)
            self._effects.append(out.CollectSealDigests(self._log_end, state.isr))
        elif late or len(state.isr) < min_insync:
            may_drop = self.node_id in stay and len(stay) >= min_insync
            if roll.dropped_laggards or not may_drop:
                self._abort_roll(roll)
                return
            deadline = self._now_ms + self.limits.seal_wait_ms
            self._roll = replace(roll, deadline_ms=deadline, dropped_laggards=True)
            self._propose(state, stay)

    def _on_seal_digests(self, item: into.SealDigests) -> None:
        roll = self._roll
        if not isinstance(roll, Collecting) or item.end_offset != roll.end_offset:
            return
        agreeing = sealing.agreeing_nodes(self.node_id, self._isr.isr, item.digests)
        disputing = sealing.disputing_nodes(self.node_id, self._isr.isr, item.digests)
        if disputing:
            self._effects.append(out.ReportDispute(roll.end_offset, disputing))
        if disputing or len(agreeing) < self.segment.settings.min_insync or not agreeing:
            self._abort_roll(roll)
            return
        seal_digest, producer_digest = item.digests[self.node_id]
        self._roll = Sealing(roll.end_offset, seal_digest)
        self._effects.append(
            out.SendSeal(
                roll.end_offset,
                self._isr.version,
                seal_digest,
                producer_digest,
                agreeing,
                roll.successor,
            )
        )

    def _on_seal_committed(self, _: into.SealCommitted) -> None:
        self._finish_sealed()

    def _on_seal_rejected(self, item: into.SealRejected) -> None:
        self._stop(f"seal rejected: {item.error}", recover=True)

    def _on_seal_unknown(self, _: into.SealUnknown) -> None:
        self._stop("nobody knows whether the seal happened", recover=True)

    # --- the end ---------------------------------------------------------------------------------

    def _on_fenced(self, item: into.Fenced) -> None:
        if item.epoch > self.segment.epoch:
            self._stop(f"fenced by epoch {item.epoch}")
