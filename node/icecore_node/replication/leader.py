"""The leader of one segment: feeds ``LeaderCore``, performs its effects, owns the waiters.

Nothing is decided here. Each batch of a produce becomes a ``ProduceReceived``, and all that one
request brings are one step of the core. Each ``Append`` that comes back is stamped, handed to the
I/O worker and offered to the followers at once (a leader that crashes never resumes, so bytes may
travel before they are durable here); ``CompleteProduce`` answers the call. Requests to the
coordinator and to followers run as tasks whose outcome is the next input.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from icecore.codec import batch
from icecore.codec.batch import BatchHeader
from icecore.errors import IcecoreError
from icecore.model import Acks, Epoch, NodeId, Segment, SegmentId
from icecore.process.log import event
from icecore.topic_settings import FlushMode
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.identity.identity import Lease
from icecore_node.identity.node_report import LedLog, NodeReport
from icecore_node.identity.readers import Readers
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.replica.damage import Damage
from icecore_node.replica.life import RoleEnded
from icecore_node.replica.replica import Replica
from icecore_node.replica.replica_log import StampedBatch
from icecore_node.replication.leader_ticks import LeaderTicks
from icecore_node.replication.seal_digests import ask_digests, own_digests
from icecore_node.storage.engine import AppendRequest, LogTail
from icecore_replication import effects, inputs
from icecore_replication.leader import LeaderCore, LeaderLimits, LeaderStart

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Produced:
    """The answer to one batch."""

    base_offset: int
    segment_id: SegmentId
    epoch: Epoch
    append_timestamp_ms: int
    durable_copies: int
    duplicate: bool
    batches_kept: int
    """Number of batches per producer that the segment remembers, to recognise duplicates."""
    flush_mode: FlushMode = FlushMode.SYNC
    """Whether ``durable_copies`` counts copies on disk, or copies written but not synced yet."""


class ProduceWaiter(Protocol):
    """The caller to be told the outcome of each batch of a produce."""

    def produced(self, slot: int, result: Produced | IcecoreError) -> None:
        """Called once, on the loop; possibly before ``Leader.produce`` returns."""
        ...


class AttachedFollower(Protocol):
    """The stream to one follower's node, ``serving/replication/sender.py``."""

    def mark_data(self, segment_id: SegmentId) -> None:
        """There is a new batch."""
        ...

    def on_durable(self, segment_id: SegmentId) -> None:
        """A group is on our disk."""
        ...

    def mark_watermark(self, segment_id: SegmentId) -> None:
        """The high watermark moved."""
        ...

    def drop(self, segment_id: SegmentId) -> None:
        """The segment is led no longer."""
        ...


@dataclass(frozen=True, slots=True)
class Offered:
    """One checked batch of a request."""

    slot: int
    """Comes back with the answer."""
    data: memoryview
    """Exactly the bytes of the batch."""
    header: BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderParts:
    """Parts that all leaders of a node share."""

    context: NodeContext
    coordinator: CoordinatorLink
    report: NodeReport
    lease: Lease
    damage: Damage
    readers: Readers
    ticks: "LeaderTicks[Leader]"


@dataclass(slots=True)
class _Pending:
    waiter: ProduceWaiter
    batch: Offered
    append_timestamp_ms: int = -1
    """-1 until it is appended; a duplicate never is."""


class Leader:
    """Shell of one ``LeaderCore``."""

    def __init__(
        self,
        parts: LeaderParts,
        replica: Replica,
        segment: Segment,
        on_record: Callable[[Segment], None],
    ) -> None:
        """
        Args:
            parts: Parts that all leaders share.
            replica: IDLE; it becomes LED by the caller.
            segment: The record that makes this node the leader.
            on_record: Told of each record that the coordinator answers with.
        """
        self._context = context = parts.context
        self._coordinator = parts.coordinator
        self._report = parts.report
        self._damage = parts.damage
        self._readers = parts.readers
        self._lease = parts.lease
        self._ticks = parts.ticks
        self._on_record = on_record
        self.replica = replica
        self.segment = segment
        self.streams: dict[NodeId, AttachedFollower] = {}
        """Attached followers by node id."""
        self._pending: dict[int, _Pending] = {}
        self._last_request_id = 0
        self._stamped: list[AppendRequest] = []
        """Batches stamped in this step, on their way to the I/O worker."""
        self._tasks: set[asyncio.Task[None]] = set()
        assert replica.log.tail.end_offset == segment.base_offset, "a leader begins on an empty log"
        self.core = LeaderCore(
            LeaderStart(
                segment=segment,
                node_id=context.identity.node_id,
                incarnation=context.identity.incarnation,
                producers=replica.log.producers,
                max_append_timestamp_ms=replica.log.tail.max_append_timestamp_ms,
                nodes=context.peers.nodes,
                now_ms=context.clock.monotonic_ms(),
                producer_fences=context.producer_fences.min_epochs,
            ),
            LeaderLimits(replica_lag_ms_max=context.settings.replica_lag_ms_max),
        )
        self._checked = context.checked(self.core)
        self._lease_valid = parts.lease.is_valid
        """Validity of the lease as the core was last told."""
        self.feed(inputs.LeaseChanged(self._lease_valid))

    @property
    def high_watermark(self) -> int:
        """Readers stop here."""
        return self.core.high_watermark

    @property
    def durable_end_offset(self) -> int:
        """End offset of the durable part of the log here."""
        return self.core.durable_end_offset

    @property
    def log(self) -> LedLog:
        """High watermark and durable length of the log, for heartbeats."""
        return LedLog(self.core.high_watermark, self.replica.log.durable_tail.length_bytes)

    # --- what happens ---------------------------------------------------------------------------

    def produce(self, waiter: ProduceWaiter, acks: Acks, group: Sequence[Offered]) -> None:
        """Append these batches, in this order and with nothing in between; each is answered."""
        clock_ms = self._context.clock.now_ms()
        happened: list[inputs.LeaderInput] = []
        for each in group:
            self._last_request_id = request_id = self._last_request_id + 1
            self._pending[request_id] = _Pending(waiter, each)
            header = each.header
            happened.append(
                inputs.ProduceReceived(
                    request_id=request_id,
                    acks=acks,
                    record_count=header.record_count,
                    length_bytes=header.batch_length,
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    base_sequence=header.base_sequence,
                    clock_ms=clock_ms,
                )
            )
        try:
            self.feed(*happened)
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        """Hand stamped batches to the followers, then to the I/O worker. In this order the
        followers have them even if the event loop itself does the sync."""
        stamped, self._stamped = self._stamped, []
        if stamped:
            for stream in self.streams.values():
                stream.mark_data(self.replica.segment_id)
            for request in stamped:
                self.replica.log.worker.append(request, self)

    def tick(self) -> None:
        """Time has passed."""
        self.feed(*self._lease_news(), inputs.Tick())

    def _lease_news(self) -> list[inputs.LeaderInput]:
        is_valid = self._lease.is_valid
        if is_valid == self._lease_valid:
            return []
        self._lease_valid = is_valid
        return [inputs.LeaseChanged(is_valid)]

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        """The I/O worker finished a group."""
        if durable_tail is not None:
            self.replica.log.became_durable(durable_tail)
            # The loop may have stood still for this sync, and for longer than a lease.
            self.feed(*self._lease_news(), inputs.LocalDurable(durable_tail.end_offset))
            for stream in self.streams.values():
                stream.on_durable(self.replica.segment_id)
        if error is not None:
            self.feed(inputs.LocalFailed(error))

    def on_broken(self, why: str) -> None:
        """Mark the replica UNKNOWN: what this role knows of its log can't be trusted."""
        self._damage.condemn(self.replica, why)

    # --- the role ends --------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """Lead no longer."""
        self.feed(inputs.Stopped(why))

    def fence(self, epoch: Epoch) -> None:
        """The replica promised this epoch."""
        self.feed(inputs.Fenced(epoch))

    def give_up(self, why: str) -> None:
        """The log is damaged here."""
        self.feed(inputs.Damaged(why))

    # --- the core -------------------------------------------------------------------------------

    def update(self, segment: Segment) -> None:
        """A newer record, by which this node still leads."""
        self.segment = segment
        self.feed(inputs.SegmentUpdated(segment))

    def feed(self, *happened: inputs.LeaderInput) -> None:
        """Step the core once and perform what it asks."""
        self._ticks.wake(self)
        try:
            for effect in self._checked.step(happened, self._context.clock.monotonic_ms()):
                self._perform(effect)
        except AssertionError as broken:
            self._context.fail_stop(self._checked, broken)

    def _perform(self, effect: effects.LeaderEffect) -> None:
        match effect:
            case effects.Append():
                self._append(effect)
            case effects.CompleteProduce():
                self._complete(effect)
            case effects.FailProduce():
                pending = self._pending.pop(effect.request_id)
                pending.waiter.produced(pending.batch.slot, effect.error)
            case effects.AdvanceHighWatermark():
                self._advance(effect.high_watermark)
            case effects.ProposeIsr():
                self._start(self._propose_isr(effect))
            case effects.PrepareSuccessor():
                self._start(self._prepare_successor(effect))
            case effects.CollectSealDigests():
                self._start(self._collect_digests(effect))
            case effects.SendSeal():
                ends = {self.replica.log.tail.end_offset, self.replica.log.durable_tail.end_offset}
                assert ends == {effect.end_offset}, "what is sealed is all of the log, durable"
                self._start(self._send_seal(effect))
            case effects.ReportDivergence():
                why = f"nodes {effect.nodes} disagree with their leader at {effect.end_offset}"
                self._damage.report_divergence(self.replica, why)
            case effects.RequestRecovery():
                self._start(self._request_recovery(effect.why))
            case effects.StepDown():
                self._step_down(effect.why)
            case _:
                assert_never(effect)

    def _append(self, effect: effects.Append) -> None:
        pending = self._pending[effect.request_id]
        pending.append_timestamp_ms = effect.append_timestamp_ms
        replica, data, header = self.replica, pending.batch.data, pending.batch.header
        end_offset = effect.base_offset + header.record_count
        assert effect.end_offset == end_offset, "offsets for another batch"
        replica.log.note_watermark(self.core.high_watermark)
        header_bytes, crc = batch.stamp(
            data,
            0,
            header,
            segment_id=replica.segment_id,
            epoch=self.segment.epoch,
            base_offset=effect.base_offset,
            append_timestamp_ms=effect.append_timestamp_ms,
            high_watermark=self.core.high_watermark,
            prev_header_crc32c=replica.log.tail.last_header_crc32c,
        )
        stamped = StampedBatch(
            header_bytes=header_bytes,
            header=header,
            body=data[batch.HEADER_LENGTH :],
            base_offset=effect.base_offset,
            end_offset=effect.end_offset,
            append_timestamp_ms=effect.append_timestamp_ms,
            header_crc32c=crc,
        )
        replica.log.extend(stamped, self._stamped)
        assert replica.log.tail.end_offset <= self.core.log_end_offset, "log and core differ"

    def _complete(self, effect: effects.CompleteProduce) -> None:
        pending = self._pending.pop(effect.request_id)
        end_offset = effect.base_offset + pending.batch.header.record_count
        is_durable = end_offset <= self.replica.log.durable_tail.end_offset
        assert is_durable, "an ack for what is not durable here"
        is_visible = self.core.acked_end <= self.core.high_watermark
        assert is_visible, "an ack for what readers can't see"
        pending.waiter.produced(
            pending.batch.slot,
            Produced(
                base_offset=effect.base_offset,
                segment_id=self.replica.segment_id,
                epoch=self.segment.epoch,
                append_timestamp_ms=pending.append_timestamp_ms,
                durable_copies=effect.durable_copies,
                duplicate=effect.duplicate,
                batches_kept=self.core.producers.batches_kept,
                flush_mode=self.segment.settings.acked_mode,
            ),
        )

    def _advance(self, high_watermark: int) -> None:
        durable_end_offset = self.replica.log.durable_tail.end_offset
        assert high_watermark <= durable_end_offset, "visible before it is durable here"
        self._readers.wake(self.replica.partition_key)
        for stream in self.streams.values():
            stream.mark_watermark(self.replica.segment_id)
        self._report.watermark_moved(self.replica.segment_id, self.log)

    def _step_down(self, why: str) -> None:
        event(_log, logging.INFO, "leadership_ended", segment_id=self.replica.segment_id, why=why)
        for stream in list(self.streams.values()):
            stream.drop(self.replica.segment_id)
        self.streams.clear()
        self.replica.log.note_watermark(self.core.high_watermark)
        if self.replica.role is self:
            self.replica.move(RoleEnded(why))
        self._readers.wake(self.replica.partition_key)

    # --- conversations --------------------------------------------------------------------------

    def _start(self, conversation: Coroutine[object, object, None]) -> None:
        task = self._context.tasks.start(conversation)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _propose_isr(self, effect: effects.ProposeIsr) -> None:
        change = coordinator_pb2.IsrChange(
            segment_id=self.replica.segment_id,
            epoch=self.segment.epoch,
            version=effect.version,
            isr=effect.isr,
            isr_incarnations=effect.incarnations,
        )
        try:
            segment = await self._coordinator.alter_isr(change)
        except IcecoreError as error:
            if error.indeterminate:
                self.feed(inputs.IsrChangeUnknown(effect.version))
            else:
                self.feed(inputs.IsrChangeFailed(effect.version))
            return
        metrics = self._context.metrics
        before, after = len(self.segment.isr), len(segment.isr)
        (metrics.isr_shrinks if after < before else metrics.isr_expands).inc(abs(after - before))
        self._on_record(segment)

    async def _prepare_successor(self, effect: effects.PrepareSuccessor) -> None:
        try:
            successor = await self._coordinator.prepare_successor(
                self.replica.segment_id, self.segment.epoch
            )
        except IcecoreError as error:
            event(
                _log,
                logging.INFO,
                "no_successor",
                segment_id=self.replica.segment_id,
                why=effect.why,
                error=error,
            )
            self.feed(inputs.SuccessorFailed(error))
        else:
            self.feed(inputs.SuccessorPrepared(successor))

    async def _collect_digests(self, effect: effects.CollectSealDigests) -> None:
        node_id = self._context.identity.node_id
        own = await own_digests(self.replica, self)
        digests = {} if own is None else {node_id: own}  # without its own no leader seals
        others = [each for each in effect.nodes if each != node_id]
        digests |= await ask_digests(self._context, self.segment, effect.end_offset, others)
        self.feed(inputs.SealDigests(effect.end_offset, digests))

    async def _send_seal(self, effect: effects.SendSeal) -> None:
        segment, replica = self.segment, self.replica
        seal = coordinator_pb2.SegmentSeal(
            segment_id=replica.segment_id,
            epoch=segment.epoch,
            version=effect.version,
            end_offset=effect.end_offset,
            seal_digest=effect.seal_digest,
            replicas=effect.replicas,
            successor_segment_id=effect.successor_segment_id,
            producer_snapshot=replica.log.producers.snapshot(),
            producer_digest=effect.producer_digest,
            max_append_timestamp_ms=replica.log.tail.max_append_timestamp_ms,
            length_bytes=replica.log.tail.length_bytes,
        )
        try:
            sealed, successor = await self._coordinator.seal(seal)
        except IcecoreError as error:
            if error.indeterminate:
                self.feed(inputs.SealUnknown())
            else:
                self.feed(inputs.SealRejected(error))
            return
        self.feed(inputs.SealCommitted())
        for record in (successor, sealed):
            if record is not None:
                self._on_record(record)

    async def _request_recovery(self, why: str) -> None:
        await self._coordinator.request_recovery(self.replica.segment_id, self.segment.epoch, why)
