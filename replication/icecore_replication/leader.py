"""The leader of one segment, from the first append to the seal.

It is created by the node that the segment record names, in the incarnation the record names, on an
empty log; it never resumes. ``LeaderCore`` takes inputs in one ``match`` and then settles once: it
looks at what its parts have to tell each other, and moves what may move. The parts own their
fields, and only the core brings them together (``Followers`` is a part of ``InSync``):

    part           owns                                        file            rules
    LeaderLog      offsets, times and bytes given out          log.py          R1, R51
    ProducerTable  sequences of idempotent producers           producers.py    R20-R24, R48, R65
    InSync         the set and its change in flight            in_sync.py      R4, R5, R14-R18
    Followers      Progress of each follower                   progress.py     R7, R8
    PendingAcks    unanswered requests                         acks.py         R2, R3, R22
    Rolling        how far the seal has come                   rolling.py      R25-R29
    LeaderCore     record, high watermark, the end             here            R1, R6, R9

A life (``Rolling`` draws the roll in detail; every state but the last may also go straight to the
end, which answers all waiters LEADER_LOST first):

    appending  --successor prepared-->  at its end  --digests agree-->  seal sent  --stored-->  over
        ^                                   |                               |
        +------------- given up ------------+                               +-- anything else: over

What a settle does, in this order: ends or sets have moved, so watermark and acks move; something
may ask for a change of the in-sync set, so at most one is proposed; the roll goes on. One pass is
enough: what a later stage tells an earlier one (a proposal that makes the set larger, an attempt to
seal that was given up) can only make acks wait or a change possible, and counts from the next step.

Tried and rejected: a class for acks below one for membership below this one, cut by length: three
layers that shared 31 fields, in which any method could call up and down; a dict from type to
handler: an input without a handler failed at run time, and the type checker saw ``Any``; one step
for each batch: 20 us of the core per batch, 7 where eight share their steps
(``python -m benchmarks.core_step``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final, assert_never

from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    NotEnoughReplicasError,
    NotLeaderError,
    RollingError,
    ThrottledError,
)
from icecore.model import Acks, NodeId, Segment, SegmentState
from icecore_replication import effects as out
from icecore_replication import inputs as into
from icecore_replication import isr as isr_rules
from icecore_replication import leading, sealing
from icecore_replication.acks import PendingAcks, Waiter
from icecore_replication.effects import Story
from icecore_replication.in_sync import InSync
from icecore_replication.isr import CommittedIsr, IsrState
from icecore_replication.leading import LeaderLimits, LeaderStart
from icecore_replication.log import LeaderLog
from icecore_replication.producers import Duplicate
from icecore_replication.rolling import DropLaggards, Rolling
from icecore_replication.sealing import Collecting, Draining, Idle, Roll, Sealing
from icecore_replication.watermark import high_watermark

__all__ = ["LeaderCore", "LeaderLimits", "LeaderStart"]

_RESTED_MS: Final = 200.0
"""More than lies between two ticks of a leader that does not rest."""


class LeaderCore:
    """Leader of one ACTIVE segment on a fresh log.

    Raises:
        InvalidRequestError: The record does not name this incarnation of this node, or is not
            ACTIVE with a base offset.
    """

    def __init__(self, start: LeaderStart, limits: LeaderLimits | None = None) -> None:
        segment, node_id, incarnation = start.segment, start.node_id, start.incarnation
        if not leading.may_lead(segment, node_id, incarnation):
            raise InvalidRequestError(f"node {node_id} incarnation {incarnation} is not the leader")
        if segment.state is not SegmentState.ACTIVE or segment.base_offset < 0:
            raise InvalidRequestError(f"segment {segment.segment_id} is {segment.state.name}")
        self.limits = limits or LeaderLimits()
        self.node_id = node_id
        self.incarnation = incarnation
        self.segment = segment
        """Invariant: ACTIVE, in the epoch and incarnation it began with; newer versions only."""
        self.high_watermark = segment.base_offset
        """Readers may see everything below. Invariant: acked_end <= high_watermark <=
        durable_end_offset, and never back."""
        self.stopped = False
        """Invariant: never False again, and nobody waits for an answer."""
        self.rests_until_ms = -inf
        """Set by a ``Tick``: until then no further one changes anything, unless something else
        happens first. A node with thousands of leaders gives ticks to few of them."""
        self.producers = start.producers
        self._producer_fences = start.producer_fences
        self._log = LeaderLog(start)
        self._in_sync = InSync(start, self.limits)
        self._acks = PendingAcks(segment.base_offset, node_id)
        self._rolling = Rolling(node_id, self.limits.seal_wait_ms)
        self._now_ms = start.now_ms
        self._effects: list[out.LeaderEffect] = []
        self._story = Story()

    # --- what others may see ---------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The next offset to be given out."""
        return self._log.end_offset

    @property
    def durable_end_offset(self) -> int:
        """Everything below is fsynced here."""
        return self._in_sync.followers.durable[self.node_id]

    @property
    def isr(self) -> tuple[NodeId, ...]:
        """The committed in-sync set."""
        return self._in_sync.state.isr

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        """Members that acks wait for: committed ones and those of an expansion in flight."""
        return self._in_sync.maximal

    @property
    def isr_state(self) -> IsrState:
        """Committed, or with which change in flight."""
        return self._in_sync.state

    @property
    def durable_by_node(self) -> Mapping[NodeId, int]:
        """Durable end of each replica, as reported in its registered incarnation."""
        return self._in_sync.followers.durable

    @property
    def roll(self) -> Roll:
        """Return how far the seal has come."""
        return self._rolling.state

    @property
    def sealing_end_offset(self) -> int | None:
        """The end at which this leader has asked to seal the segment, after which it appends no
        more. None while it has not asked, or when it has stopped."""
        roll = self._rolling.state
        return roll.end_offset if isinstance(roll, Sealing) and not self.stopped else None

    @property
    def pending_count(self) -> int:
        """Unanswered produce requests."""
        return len(self._acks)

    @property
    def acked_end(self) -> int:
        """End of everything acked at ``all`` or ``quorum``."""
        return self._acks.acked_end

    def story(self) -> str:
        """The last inputs and effects, for error messages."""
        return str(self._story)

    # --- one step --------------------------------------------------------------------------------

    def step(self, inputs: Sequence[into.LeaderInput], now_ms: float) -> list[out.LeaderEffect]:
        """Take these inputs in order; what comes back must be done in order.

        Args:
            inputs: What happened. After the core has stopped only produce is answered (NOT_LEADER).
            now_ms: Monotonic.

        Raises:
            InternalError: The shell reported something that cannot be (a bug).
        """
        if now_ms - self._now_ms > _RESTED_MS:
            self._in_sync.followers.catch_up(self._log.end_offset, now_ms)
        self._now_ms = now_ms
        self.rests_until_ms = -inf
        effects = self._effects = []
        took = self._story.took
        for item in inputs:
            took(item)
            if not self.stopped:
                self._take(item)
            elif isinstance(item, into.ProduceReceived):
                effects.append(out.FailProduce(item.request_id, NotLeaderError("segment closed")))
        if not self.stopped:
            self._settle()
        if inputs and isinstance(inputs[-1], into.Tick):
            self.rests_until_ms = self._rest()
        self._story.asked(effects)
        return effects

    def _take(self, item: into.LeaderInput) -> None:
        now_ms = self._now_ms
        match item:
            case into.ProduceReceived():
                self._on_produce(item)
            case into.LocalDurable():
                self._on_local_durable(item)
            case into.FollowerProgress():
                self._on_progress(item)
            case into.ProduceAbandoned():
                self._acks.abandon(item.request_id)
            case into.LeaseChanged():
                self._acks.change_lease(item.valid)
            case into.Tick():
                self._in_sync.tick()
            case into.FollowerDiverged():
                self._in_sync.disqualify(item.node_id, "contradicts our bytes")
            case into.FollowerLeft():
                self._in_sync.disqualify(item.node_id, "left")
            case into.NodeChanged():
                self._on_node_changed(item)
            case into.SegmentUpdated():
                self._on_segment_updated(item.segment)
            case into.IsrChangeFailed():
                self._in_sync.answered(item.version, now_ms, is_refused=True)
            case into.IsrChangeUnknown():
                self._in_sync.answered(item.version, now_ms, is_refused=False)
            case into.RollRequested():
                self._rolling.want(item.why)
            case into.SuccessorPrepared():
                self._rolling.prepared(item.segment_id, now_ms)
            case into.SuccessorFailed():
                self._rolling.not_prepared(now_ms)
            case into.SealDigests():
                self._on_seal_digests(item)
            case into.SealCommitted():
                self._finish_sealed()
            case into.SealRejected():
                self._stop(f"seal rejected: {item.error}", recover=True)
            case into.SealUnknown():
                self._stop("nobody knows whether the seal happened", recover=True)
            case into.LocalFailed():
                self._stop(f"local append failed: {item.error}", recover=True)
            case into.Damaged():
                self._stop(f"the log here is damaged: {item.why}", recover=True)
            case into.Fenced():
                if item.epoch > self.segment.epoch:
                    self._stop(f"fenced by epoch {item.epoch}")
            case into.Stopped():
                self._stop(item.why)
            case _:
                assert_never(item)

    # --- settle: what one part's news means to another -------------------------------------------

    def _settle(self) -> None:
        moved, change_due = self._in_sync.take_news()
        if self._acks.take_due() or moved:
            self._advance()
        if self._rolling.take_given_up() or change_due:
            self._change_in_sync()
        roll = self._rolling.state
        if isinstance(roll, Idle):
            prepare = self._rolling.start(
                roll, self._log, self.segment, self._in_sync.state, self._now_ms
            )
            if prepare is not None:
                self._effects.append(prepare)
        elif isinstance(roll, Draining):
            self._drain(roll)
        elif isinstance(roll, Collecting) and self._now_ms >= roll.deadline_ms:
            self._rolling.give_up(roll, self._now_ms)

    def _rest(self) -> float:
        """Until when time alone means nothing here; answers that wait need more than time."""
        log, settings = self._log, self.segment.settings
        if self.stopped or not isinstance(self._rolling.state, Idle):
            return -inf  # of a leader that is over whoever gives ticks shall see that
        until_ms = self._set_rests_until_ms()
        if log.is_empty:
            return until_ms
        if self._rolling.is_wanted or log.why_to_roll(settings, self._now_ms):
            return -inf
        return min(until_ms, log.old_at_ms(settings))

    def _set_rests_until_ms(self) -> float:
        """Until when time alone asks for no change of the in-sync set, and holds back no ack."""
        in_sync, state = self._in_sync, self._in_sync.state
        if in_sync.hold is not None:
            return -inf
        if not isinstance(state, CommittedIsr):
            return in_sync.wait_until_ms if state.uncertain else inf
        settled_ms = in_sync.followers.settled_until_ms(
            state.isr, self._log.end_offset, self.limits.replica_lag_ms_max
        )
        return max(in_sync.wait_until_ms, settled_ms)

    def _advance(self) -> None:
        """Move the high watermark and answer what is durable where it must be (R2, R6)."""
        in_sync, min_insync_replicas = self._in_sync, self.segment.settings.min_insync_replicas
        committed = len(in_sync.state.isr)
        isr_end, quorum_end = in_sync.ends(self.segment, self._log.end_offset, self._now_ms)
        self._raise_watermark(
            high_watermark(self.high_watermark, isr_end, quorum_end, committed, min_insync_replicas)
        )
        self._acks.complete(
            isr_end,
            quorum_end,
            committed >= min_insync_replicas,
            in_sync.followers.durable,
            self._effects,
        )

    def _raise_watermark(self, end_offset: int) -> None:
        if end_offset > self.high_watermark:
            self.high_watermark = end_offset
            self._effects.append(out.AdvanceHighWatermark(end_offset))

    def _change_in_sync(self) -> None:
        """Propose at most one change of the in-sync set: none once digests were asked for, and
        only removals while the set is waited for."""
        now_ms, in_sync, roll = self._now_ms, self._in_sync, self._rolling.state
        proposal = in_sync.repeat(now_ms)
        if proposal is None and not isinstance(roll, Collecting | Sealing):
            proposal = in_sync.next_change(
                self.segment,
                self._log.end_offset,
                self._expand_floor(),
                now_ms,
                may_join=not isinstance(roll, Draining),
            )
            min_insync_replicas = self.segment.settings.min_insync_replicas
            is_short = proposal is not None and len(proposal.isr) < min_insync_replicas
            if is_short and isinstance(roll, Draining):
                self._rolling.give_up(roll, now_ms)
        if proposal is not None:
            self._effects.append(proposal)

    def _expand_floor(self) -> int:
        return isr_rules.expand_floor(self.high_watermark, self.acked_end)

    def _drain(self, roll: Draining) -> None:
        state, log_end = self._in_sync.state, self._log.end_offset
        stay = sealing.members_at_end(state.isr, self.durable_by_node, log_end)
        min_insync_replicas = self.segment.settings.min_insync_replicas
        wanted = self._rolling.drain(
            roll,
            state,
            stay,
            log_end=log_end,
            min_insync_replicas=min_insync_replicas,
            now_ms=self._now_ms,
        )
        if isinstance(wanted, DropLaggards):
            assert isinstance(state, CommittedIsr)
            self._effects.append(self._in_sync.propose(state, wanted.members))
        elif wanted is not None:
            self._effects.append(wanted)

    # --- produce (R1) ----------------------------------------------------------------------------

    def _on_produce(self, item: into.ProduceReceived) -> None:
        refusal: IcecoreError | None = None
        try:
            found = self._duplicate_of(item)
            if found is not None and len(self._acks) < self.limits.pending_requests_max:
                self._attach_duplicate(item, found)
                return
        except IcecoreError as error:
            refusal = error
        # A batch behind one that was refused here has a gap: say why *here*, not OUT_OF_ORDER.
        refusal = self._refusal(item) or refusal
        if refusal is not None:
            self._effects.append(out.FailProduce(item.request_id, refusal))
            return
        append = self._log.append(item, self._now_ms)
        self.producers.apply(
            item.producer_id,
            item.producer_epoch,
            item.base_sequence,
            item.record_count,
            append.base_offset,
            append.append_timestamp_ms,
        )
        self._acks.add(item.acks, Waiter(item.request_id, append.base_offset, append.end_offset))
        self._effects.append(append)

    def _duplicate_of(self, item: into.ProduceReceived) -> Duplicate | None:
        """The batch in the log that this one repeats (R22). Raises why its producer may not append
        it (R21, R48, R112)."""
        producer_id, epoch = item.producer_id, item.producer_epoch
        self.producers.check_epoch(producer_id, epoch, self._producer_fences.get(producer_id))
        verdict = self.producers.check(producer_id, epoch, item.base_sequence, item.record_count)
        return verdict if isinstance(verdict, Duplicate) else None

    def _attach_duplicate(self, item: into.ProduceReceived, found: Duplicate) -> None:
        if found.end_offset <= self._log.base_offset:  # of an earlier, sealed segment
            copies = len(self.segment.replicas)
            self._effects.append(
                out.CompleteProduce(item.request_id, found.base_offset, copies, duplicate=True)
            )
            return
        waiter = Waiter(item.request_id, found.base_offset, found.end_offset, duplicate=True)
        self._acks.attach(item.acks, waiter)

    def _refusal(self, item: into.ProduceReceived) -> IcecoreError | None:
        """Return why this batch must not be appended now; all these errors are definite (R1)."""
        settings, limits, committed = self.segment.settings, self.limits, self._in_sync.state.isr
        if not sealing.gives_out_offsets(self._rolling.state):
            return RollingError("the segment is being sealed")
        if item.acks is Acks.LEADER:
            if not self._acks.lease_valid:
                return NotLeaderError("acks=leader needs a valid lease")
        elif len(committed) < settings.min_insync_replicas:
            return NotEnoughReplicasError(
                f"{len(committed)} in-sync replicas, "
                f"min_insync_replicas is {settings.min_insync_replicas}"
            )
        elif item.acks is Acks.QUORUM and len(self.segment.replicas) < settings.quorum:
            return NotEnoughReplicasError(
                f"{len(self.segment.replicas)} replicas can't be a quorum of {settings.quorum}"
            )
        has_room = self._log.has_room_for(item.length_bytes, limits.pending_bytes_max)
        if len(self._acks) >= limits.pending_requests_max or not has_room:
            return ThrottledError("too much is pending", retry_after_ms=limits.throttle_ms)
        return None

    # --- disks, followers, the record ------------------------------------------------------------

    def _on_local_durable(self, item: into.LocalDurable) -> None:
        end, log_end = item.end_offset, self._log.end_offset
        if end > log_end:
            raise InternalError(f"durable to {end}, log end {log_end}\n{self.story()}")
        self._log.synced(end)
        self._in_sync.raise_own_end(end)

    def _on_progress(self, item: into.FollowerProgress) -> None:
        follower = self._in_sync.followers.accept(item)
        if follower is None:
            return
        end, log_end = item.durable_end_offset, self._log.end_offset
        if end > log_end:
            # Never tell the follower to cut its log: ours is the one that lost bytes (R9).
            why = f"node {item.node_id} is durable to {end}, our log ends at {log_end}"
            self._stop(why, recover=True)
            return
        self._in_sync.record(follower, item, log_end, self._now_ms)

    def _on_node_changed(self, item: into.NodeChanged) -> None:
        node = item.node
        if node.node_id == self.node_id and node.incarnation > self.incarnation:
            self._stop("a newer incarnation of this node is registered")
            return
        early = self._in_sync.change_node(node)
        if early is not None:
            self._on_progress(replace(early, attach=True))

    def _on_segment_updated(self, segment: Segment) -> None:
        if segment.version <= self._in_sync.state.version:
            return
        if self._rolling.is_ours(segment):
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
        self._in_sync.commit(segment)

    # --- the end ---------------------------------------------------------------------------------

    def _on_seal_digests(self, item: into.SealDigests) -> None:
        min_insync_replicas = self.segment.settings.min_insync_replicas
        self._effects += self._rolling.agree(
            item, self._in_sync.state, min_insync_replicas, self._now_ms
        )

    def _finish_sealed(self) -> None:
        """The seal is stored: all of it is visible and nobody's batch can be lost any more."""
        roll = self._rolling.state
        if not isinstance(roll, Sealing):
            return
        self._raise_watermark(roll.end_offset)
        self._acks.complete_all(self.durable_by_node, self._effects)
        self._stop("sealed")

    def _stop(self, why: str, recover: bool = False) -> None:
        """Answer everybody, then leave for ever."""
        self._acks.fail_all(why, self._effects)
        if recover:
            self._effects.append(out.RequestRecovery(why))
        self._effects.append(out.StepDown(why))
        self.stopped = True
