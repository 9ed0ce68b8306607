"""The follower of one segment: checks what the leader sent, feeds ``FollowerCore``, appends.

All segments followed from one leader share a stream (``roles/receiver.py``); this file
is the part that concerns one segment. Headers, chain and CRCs of received batches are verified
here, before the core is told; a batch reaches the log only in exactly the leader's order.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from icecore.codec import batch
from icecore.codec.batch import BatchHeader
from icecore.errors import SHORTAGES, CorruptBatchError, IcecoreError
from icecore.model import Segment
from icecore.rpc.ports import Clock
from icecore.v1 import replication_pb2
from icecore_node.identity.readers import Readers
from icecore_node.replica.damage import Damage
from icecore_node.replica.replica import Replica
from icecore_node.replica.replica_log import StampedBatch
from icecore_node.storage.store import LogTail
from icecore_replication import effects, inputs
from icecore_replication.follower import FollowerCore

_log = logging.getLogger(__name__)


class Link(Protocol):
    """The stream to the leader's node, ``roles/receiver.py``."""

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
        self, segment_id: int, epoch: int, durable_end_offset: int, header_crc32c: int, attach: bool
    ) -> None:
        """Tell the leader how far the log is durable."""
        ...

    def return_credit(self, length_bytes: int) -> None:
        """The leader may send so many bytes more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerParts:
    """What all followers of a node share."""

    clock: Clock
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
            parts: What all followers share.
            replica: IDLE; it becomes FOLLOWED by the caller.
            segment: The record that says whom to follow.
            link: The stream to the leader's node.
            on_shortage: Told when an append failed for lack of something: it is to follow again.
        """
        self._clock = parts.clock
        self._damage = parts.damage
        self._readers = parts.readers
        self._on_shortage = on_shortage
        self.replica = replica
        self.segment = segment
        self._link = link
        self._undurable: deque[tuple[int, int, int]] = deque()
        """(end offset, bytes, header CRC) of appends under way: their credit goes back to the
        leader when they are durable."""
        self._durable_header_crc32c = replica.tail.last_header_crc32c
        self._received: Sequence[tuple[int, BatchHeader]] = ()
        self._data = memoryview(b"")
        tail = replica.tail
        self.core = FollowerCore(segment, tail.end_offset, tail.end_offset, replica.high_watermark)
        link.attach(self)

    @property
    def leader_id(self) -> int:
        """The node followed."""
        return self.segment.leader

    @property
    def high_watermark(self) -> int:
        """Readers stop here."""
        return self.core.high_watermark

    @property
    def durable_end_offset(self) -> int:
        """How far the log is durable here."""
        return self.core.durable_end_offset

    # --- the role ends --------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop following."""
        self._link.detach(self)

    def fence(self, epoch: int) -> None:
        """The replica promised this epoch."""
        _log.debug("fenced segment_id=%d epoch=%d", self.replica.segment_id, epoch)
        self._link.detach(self)

    def give_up(self, why: str) -> None:
        """Stop following, and tell the leader so."""
        _log.debug("gave up following segment_id=%d why=%s", self.replica.segment_id, why)
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

    def on_data(self, entry: replication_pb2.ReplicaDataEntry, data: memoryview) -> None:
        """Batches (or just a new watermark) from the leader."""
        replica = self.replica
        try:
            fresh = self._check(data)
        except CorruptBatchError as error:
            # Damaged on the way: nothing was appended; the leader sends it again.
            _log.warning("bad data segment_id=%d error=%s", replica.segment_id, error)
            self._link.return_credit(len(data))
            self.feed(inputs.StreamOpened())
            return
        replica.log.note_watermark(entry.high_watermark)
        end = self.core.log_end_offset
        base, chained = end, True
        if fresh:
            base, end = fresh[0][1].base_offset, fresh[-1][1].end_offset
            chained = fresh[0][1].prev_header_crc32c == replica.tail.last_header_crc32c
        if len(data) and not fresh:
            self._link.return_credit(len(data))
        self._received, self._data = fresh, data
        self.feed(inputs.DataReceived(entry.epoch, base, end, entry.high_watermark, chained))
        self._received, self._data = (), memoryview(b"")

    def _check(self, data: memoryview) -> list[tuple[int, BatchHeader]]:
        """Headers and positions of the batches beyond our end; verifies CRCs and the chain."""
        fresh: list[tuple[int, BatchHeader]] = []
        previous: BatchHeader | None = None
        for position, header in batch.iter_batches(data):
            if header.segment_id != self.replica.segment_id or header.epoch != self.segment.epoch:
                raise CorruptBatchError("a batch of another segment or epoch")
            if previous is not None and (
                header.base_offset != previous.end_offset
                or header.prev_header_crc32c != previous.header_crc32c
            ):
                raise CorruptBatchError("batches are not a chain")
            previous = header
            if header.end_offset <= self.core.log_end_offset:
                continue
            batch.verify_producer_crc(data, position, header)
            fresh.append((position, header))
        return fresh

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        """The I/O worker finished a group."""
        if durable_tail is not None:
            self.replica.log.became_durable(durable_tail)
            durable_end_offset = durable_tail.end_offset
            credit = 0
            while self._undurable and self._undurable[0][0] <= durable_end_offset:
                _, length, self._durable_header_crc32c = self._undurable.popleft()
                credit += length
            self._link.return_credit(credit)
            self.feed(inputs.LocalDurable(durable_end_offset))
        if error is not None:
            _log.error("append failed segment_id=%d error=%s", self.replica.segment_id, error)
            self.feed(inputs.LocalFailed(error))
            if isinstance(error, SHORTAGES):
                self.give_up(str(error))
                self._on_shortage(self.replica)

    def on_broken(self, why: str) -> None:
        """What this role knows can't be trusted."""
        self._damage.condemn(self.replica, why)

    def feed(self, *happened: inputs.FollowerInput) -> None:
        """Step the core and perform what it asks."""
        for effect in self.core.step(happened, self._clock.monotonic_ms()):
            self._perform(effect)

    def _perform(self, effect: effects.FollowerEffect) -> None:
        replica = self.replica
        match effect:
            case effects.AppendReplica():
                self._append()
            case effects.ReportProgress():
                self._link.report(
                    replica.segment_id,
                    self.segment.epoch,
                    effect.durable_end_offset,
                    self._durable_header_crc32c,
                    effect.attach,
                )
            case effects.AdvanceHighWatermark():
                self._readers.wake(replica.partition_key)
            case effects.Quarantine():
                self._damage.condemn(replica, effect.why)
            case effects.StopFollowing():
                _log.info("stopped following segment_id=%d why=%s", replica.segment_id, effect.why)
                self._link.detach(self)
            case _:
                assert_never(effect)

    def _append(self) -> None:
        """Append what ``on_data`` just checked: one request per batch, one group at the worker."""
        for position, header in self._received:
            log = self.replica.log
            request = log.extend(StampedBatch.received(self._data, position, header))
            log.producers.apply_header(header)
            self._undurable.append((header.end_offset, header.batch_length, header.header_crc32c))
            log.worker.append(request, self)
