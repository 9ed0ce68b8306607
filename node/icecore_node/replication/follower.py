"""The follower of one segment: checks what the leader sent, feeds ``FollowerCore``, appends.

All segments followed from one leader share a stream (``replication/receiver.py``); this file
is the part that concerns one segment. Headers, chain and CRCs of received batches are verified
here, before the core is told; a batch reaches the log only in exactly the leader's order.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from icecore.codec import batch
from icecore.codec.batch import BatchHeader
from icecore.codec.chain import check_run
from icecore.errors import SHORTAGES, CorruptBatchError, IcecoreError
from icecore.model import (
    Epoch,
    Segment,
    SegmentId,
)
from icecore.process.log import (
    event,
)
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext
from icecore_node.identity.readers import Readers
from icecore_node.replica.damage import Damage
from icecore_node.replica.replica import Replica
from icecore_node.replica.replica_log import StampedBatch
from icecore_node.storage.engine import AppendRequest, LogTail
from icecore_replication import effects, inputs
from icecore_replication.follower import FollowerCore

_log = logging.getLogger(__name__)


class Link(Protocol):
    """The stream to the leader's node, ``replication/receiver.py``."""

    def attach(self, follower: "Follower") -> None:
        """Start following."""
        ...

    def detach(self, follower: "Follower") -> None:
        """Stop following."""
        ...

    def leave(self, follower: "Follower") -> None:
        """Stop following, and tell the leader so."""
        ...

    def report(
        self,
        segment_id: SegmentId,
        epoch: Epoch,
        durable_end_offset: int,
        header_crc32c: int,
        attach: bool,
    ) -> None:
        """Tell the leader how far the log is durable."""
        ...


class FollowerDelivery:
    """One message of the leader, which is in memory as long as one of its batches is.

    So its credit goes back as a whole, when its last batch is durable or dropped. It bounds the
    memory that a leader's messages hold here, not the sum of their batches.
    """

    __slots__ = ("_left_bytes", "_return_credit", "_size_bytes")

    def __init__(self, size_bytes: int, return_credit: Callable[[int], None]) -> None:
        self._size_bytes = self._left_bytes = size_bytes
        self._return_credit = return_credit

    def release(self, length_bytes: int) -> None:
        """Count bytes of its batches that became durable, or are not wanted. After the last of them
        the credit goes back."""
        self._left_bytes -= length_bytes
        assert self._left_bytes >= 0, "more is released than there was"
        if length_bytes and not self._left_bytes:
            self._return_credit(self._size_bytes)


@dataclass(slots=True)
class _Undurable:
    """A batch whose append is under way."""

    end_offset: int
    header_crc32c: int
    length_bytes: int
    """Bytes of this batch not yet returned to the delivery's credit."""
    delivery: FollowerDelivery

    def release(self) -> None:
        self.delivery.release(self.length_bytes)
        self.length_bytes = 0


@dataclass(frozen=True, slots=True)
class _Arrived:
    """Batches of one message that lie beyond our end, checked, on their way through the core."""

    delivery: FollowerDelivery
    data: memoryview
    batches: list[tuple[int, BatchHeader]]
    """Position in ``data`` and header of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerParts:
    """Parts that all followers of a node share."""

    context: NodeContext
    damage: Damage
    readers: Readers


class Follower:
    """Shell of one ``FollowerCore``."""

    def __init__(
        self,
        parts: FollowerParts,
        replica: Replica,
        segment: Segment,
        link: Link,
        on_shortage: Callable[[Replica], None],
    ) -> None:
        """
        Args:
            parts: Parts that all followers share.
            replica: IDLE; it becomes FOLLOWED by the caller.
            segment: The record that names the leader to follow.
            link: The stream to the leader's node.
            on_shortage: Called when an append failed for lack of space, memory or descriptors. The
                replica follows again later.
        """
        self._context = context = parts.context
        self._damage = parts.damage
        self._readers = parts.readers
        self._on_shortage = on_shortage
        self.replica = replica
        self.segment = segment
        self._link = link
        self._undurable: deque[_Undurable] = deque()
        """Appends under way: their credit goes back to the leader when they are durable."""
        self._durable_header_crc32c = replica.log.tail.last_header_crc32c
        self._arrived: dict[int, _Arrived] = {}
        self._last_delivery_id = 0
        tail = replica.log.tail
        assert tail.end_offset == replica.log.durable_tail.end_offset, (
            "first what is there is settled"
        )
        self.core = FollowerCore(
            segment,
            tail.end_offset,
            tail.end_offset,
            replica.high_watermark,
            last_header_crc32c=tail.last_header_crc32c,
        )
        self._checked = context.checked(self.core)
        link.attach(self)

    @property
    def high_watermark(self) -> int:
        """Readers stop here."""
        return self.core.high_watermark

    @property
    def durable_end_offset(self) -> int:
        """End offset of the durable part of the log here."""
        return self.core.durable_end_offset

    # --- the role ends --------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """Stop following."""
        self._link.detach(self)

    def fence(self, epoch: Epoch) -> None:
        """The replica promised this epoch."""
        event(_log, logging.DEBUG, "fenced", segment_id=self.replica.segment_id, epoch=epoch)
        self._link.detach(self)

    def give_up(self, why: str) -> None:
        """Stop following, and tell the leader so."""
        event(_log, logging.DEBUG, "gave_up_following", segment_id=self.replica.segment_id, why=why)
        self._link.leave(self)

    def update(self, segment: Segment) -> None:
        """A newer record, by which this node still follows."""
        self.segment = segment

    # --- what happens ---------------------------------------------------------------------------

    def on_stream_opened(self) -> None:
        """The link has a fresh stream."""
        self.feed(inputs.StreamOpened())

    def on_rejected(self, reason: str) -> None:
        """The leader does not serve this segment."""
        self.feed(inputs.LeaderRejected(reason))

    def on_data(
        self, entry: replication_pb2.ReplicaDataEntry, data: memoryview, delivery: FollowerDelivery
    ) -> None:
        """Batches (or just a new watermark) from the leader; ``data`` is part of ``delivery``."""
        replica = self.replica
        if not data:  # with single records half of all entries
            self._hear(entry)
            return
        try:
            batches = self._fresh(data)
        except CorruptBatchError as error:
            # Damaged on the way: nothing was appended; the leader sends it again.
            event(_log, logging.WARNING, "data_corrupt", segment_id=replica.segment_id, error=error)
            delivery.release(len(data))
            self.feed(inputs.DataCorrupt(str(error)))
            return
        delivery.release(len(data) - sum(each.batch_length for _, each in batches))
        if not batches:
            self._hear(entry)
            return
        replica.log.note_watermark(entry.high_watermark)
        first, last = batches[0][1], batches[-1][1]
        self._last_delivery_id = delivery_id = self._last_delivery_id + 1
        self._arrived[delivery_id] = _Arrived(delivery, data, batches)
        self.feed(
            inputs.DataReceived(
                delivery_id=delivery_id,
                epoch=Epoch(entry.epoch),
                base_offset=first.base_offset,
                end_offset=last.end_offset,
                prev_header_crc32c=first.prev_header_crc32c,
                last_header_crc32c=last.header_crc32c,
                high_watermark=entry.high_watermark,
            )
        )

    def _hear(self, entry: replication_pb2.ReplicaDataEntry) -> None:
        """A watermark without anything new to append."""
        self.replica.log.note_watermark(entry.high_watermark)
        self.feed(inputs.WatermarkReceived(Epoch(entry.epoch), entry.high_watermark))

    def _fresh(self, data: memoryview) -> list[tuple[int, BatchHeader]]:
        """Positions and headers of the batches beyond our end.

        Raises:
            CorruptBatchError: A CRC is wrong, or the batches are not one chain of this segment.
        """
        batches = list(batch.iter_batches(data))
        headers = [header for _, header in batches]
        check_run(headers, self.replica.segment_id, self.segment.epoch)
        log_end_offset = self.core.log_end_offset
        fresh = [each for each in batches if each[1].end_offset > log_end_offset]
        for position, header in fresh:
            batch.verify_producer_crc(data, position, header)
        return fresh

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        """The I/O worker finished a group."""
        if durable_tail is not None:
            self.replica.log.became_durable(durable_tail)
            durable_end_offset = durable_tail.end_offset
            while self._undurable and self._undurable[0].end_offset <= durable_end_offset:
                durable = self._undurable.popleft()
                self._durable_header_crc32c = durable.header_crc32c
                durable.release()
            self.feed(inputs.LocalDurable(durable_end_offset))
        if error is not None:
            event(
                _log,
                logging.ERROR,
                "append_failed",
                segment_id=self.replica.segment_id,
                error=error,
            )
            for each in self._undurable:
                each.release()
            self.feed(inputs.LocalFailed(error))
            if isinstance(error, SHORTAGES):
                self.give_up(str(error))
                self._on_shortage(self.replica)

    def on_broken(self, why: str) -> None:
        """Mark the replica UNKNOWN: what this role knows of its log can't be trusted."""
        self._damage.condemn(self.replica, why)

    def feed(self, *happened: inputs.FollowerInput) -> None:
        """Step the core and perform what it asks."""
        try:
            for effect in self._checked.step(happened, self._context.clock.monotonic_ms()):
                self._perform(effect)
        except AssertionError as broken:
            self._context.fail_stop(self._checked, broken)

    def _perform(self, effect: effects.FollowerEffect) -> None:
        replica = self.replica
        match effect:
            case effects.AppendReplica():
                self._append(effect)
            case effects.DiscardReplica(delivery_id):
                dropped = self._arrived.pop(delivery_id)
                dropped.delivery.release(sum(each.batch_length for _, each in dropped.batches))
            case effects.ReportProgress():
                durable_tail = replica.log.durable_tail
                assert effect.durable_end_offset <= durable_tail.end_offset, "not durable here"
                is_its_end = self._durable_header_crc32c == durable_tail.last_header_crc32c
                assert is_its_end, "reported with the chain of another end"
                self._link.report(
                    replica.segment_id,
                    self.segment.epoch,
                    effect.durable_end_offset,
                    self._durable_header_crc32c,
                    effect.attach,
                )
            case effects.AdvanceHighWatermark():
                is_durable = effect.high_watermark <= replica.log.durable_tail.end_offset
                assert is_durable, "visible before it is durable here"
                self._readers.wake(replica.partition_key)
            case effects.Quarantine():
                self._damage.condemn(replica, effect.why)
            case effects.StopFollowing():
                event(
                    _log,
                    logging.INFO,
                    "stopped_following",
                    segment_id=replica.segment_id,
                    why=effect.why,
                )
                self._link.detach(self)
            case _:
                assert_never(effect)

    def _append(self, effect: effects.AppendReplica) -> None:
        """Append what ``on_data`` has checked."""
        arrived = self._arrived.pop(effect.delivery_id)
        log, requests = self.replica.log, list[AppendRequest]()
        assert effect.base_offset == log.tail.end_offset, "not where our log ends"
        for position, header in arrived.batches:
            log.extend(StampedBatch.received(arrived.data, position, header), requests)
            log.producers.apply_header(header)
            self._undurable.append(
                _Undurable(
                    header.end_offset,
                    header.header_crc32c,
                    header.batch_length,
                    arrived.delivery,
                )
            )
        for request in requests:
            log.worker.append(request, self)
        assert effect.end_offset == log.tail.end_offset, "not what the core was told of"
