"""Copying segment bytes between replicas: write-back in a recovery, repair of sealed segments.

The copier brings the local replica to exactly ``[base, end)``: it cuts what is longer and equal,
fetches what is missing from a donor, checks chain, CRCs and (where known) the seal digest, and
reports what the coordinator needs to seal. Batches are copied bit by bit; epochs in them never
change. The donor's side is in ``serving/replication/replication_service.py``.
"""

import logging
from dataclasses import dataclass, replace

from icecore.codec import batch
from icecore.errors import (
    CorruptBatchError,
    IcecoreError,
    InternalError,
    InvalidRequestError,
    NotReplicaError,
    StorageError,
)
from icecore.model import CoordinatorEpoch, Epoch, Segment, SegmentState
from icecore.process.log import event
from icecore.rpc import framing
from icecore.rpc.methods import REPLICATION
from icecore.topic_settings import SEGMENT_ENGINE
from icecore.v1 import coordinator_pb2, replication_pb2
from icecore_node.context import NodeContext
from icecore_node.registry.finish_seal import SealFinisher
from icecore_node.registry.set_aside import SettingAside
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.damage import Damage
from icecore_node.replica.life import Begun, CopyBegun, CopyWhole, Life, Promised
from icecore_node.replica.order_checks import (
    check_identity,
    check_implemented,
    check_same,
    check_write_back,
    is_recorded,
)
from icecore_node.replica.orders import Order, Orders
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.replica.replica_log import StampedBatch, with_digest
from icecore_node.storage.engine import (
    NO_TAIL,
    AppendRequest,
    LogTail,
    NotAsSealed,
    SegmentIdentity,
)
from icecore_replication.producers import ProducerTable

_log = logging.getLogger(__name__)

COPY_BYTES_MAX = 4 << 20
COPY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Order to bring a local replica to an end."""

    segment: Segment
    end_offset: int
    donor_address: str
    """Address of a node that has all of the segment; empty = the local replica does."""
    expected_digest: bytes
    """Seal digest at the end; empty while it is not known."""
    seal: bool
    """Whether the replica is to be sealed at the end."""


class SegmentCopier:
    """The receiving side of a copy."""

    def __init__(
        self,
        *,
        context: NodeContext,
        table: ReplicaTable,
        orders: Orders,
        damage: Damage,
        reading: ReplicaReading,
        seals: SealFinisher,
        aside: SettingAside,
    ) -> None:
        self._context = context
        self._table = table
        self._orders = orders
        self._damage = damage
        self._reading = reading
        self._seals = seals
        self._aside = aside

    async def bring_to(
        self, asked: Copying, coordinator_epoch: CoordinatorEpoch
    ) -> coordinator_pb2.WrittenBack:
        """Make the local log end exactly where it is asked to.

        Raises NotReplicaError, InvalidRequestError (longer and different, wrong digest),
        FencedError (another order came first), UnsupportedError (of its settings), StorageError,
        or whatever the donor answered.
        """
        segment_id = asked.segment.segment_id
        check_implemented(segment_id, asked.segment.settings)
        async with self._orders.carry_out(segment_id, coordinator_epoch) as order:
            try:
                known = self._table.get(segment_id)
                if known is not None:
                    self._check_allowed(known, asked)
                replica = await self._basis(order, asked.segment, asked.donor_address)
                self._check_allowed(replica, asked)
                if not replica.sealed:
                    await self._shut_out(replica)
                    _check(order, replica)
                    replica.end_role("its end is written back")
                    await replica.log.settle()
                    _check(order, replica)
                    await self._adjust(order, replica, asked)
                    _check(order, replica)
                return await self._conclude(replica, asked)
            except IcecoreError:
                held = self._table.get(segment_id)
                if asked.donor_address and (held is None or not held.life.is_donor):
                    self._damage.report_missing(segment_id)
                raise

    def _check_allowed(self, replica: Replica, asked: Copying) -> None:
        check_write_back(replica, asked.end_offset, asked.expected_digest, seal=asked.seal)

    async def _conclude(self, replica: Replica, asked: Copying) -> coordinator_pb2.WrittenBack:
        """Report a log that is as ordered, or set it aside when it can't be made so."""
        tail, end_offset = replica.log.tail, asked.end_offset
        if tail.end_offset == end_offset and asked.expected_digest in (b"", tail.digest):
            if asked.seal:
                sealed = asked.segment.changed(end_offset=end_offset, seal_digest=tail.digest)
                try:
                    await self._seals.finish(replica, sealed)
                except NotAsSealed as error:
                    raise InvalidRequestError(str(error)) from error
                self._orders.note_copied(replica.segment_id, asked.segment.version)
            return await self._report(replica, asked.segment)
        if asked.donor_address:
            self._damage.report_divergence(replica, f"not the donor's log at {end_offset}")
            if replica.life is Life.COPYING or is_recorded(
                replica, end_offset, asked.expected_digest
            ):
                await self._aside.set_aside(replica)
        raise InvalidRequestError(
            f"segment {replica.segment_id} ends at {tail.end_offset} here or its digest differs "
            f"from the one at {end_offset}"
        )

    async def _basis(self, order: Order, segment: Segment, donor_address: str) -> Replica:
        """The replica to bring to the end: the one that is here, or a new one if it is damaged."""
        segment_id = segment.segment_id
        if self._orders.was_deleted(segment_id):
            raise NotReplicaError(f"segment {segment_id} was deleted here")
        if self._orders.was_dropped(segment_id, segment.version):
            raise NotReplicaError(
                f"segment {segment_id} was dropped here since it was to be copied"
            )
        replica = self._table.get(segment_id)
        if replica is not None and replica.sealed and replica.life.is_intact and donor_address:
            # The coordinator does not count it: it may be damaged although nobody met that here.
            await self._reading.verify(replica)
            order.check()
        if replica is not None and not replica.life.is_intact and donor_address:
            await self._aside.set_aside(replica)
            replica = None
        is_begun = replica is not None and replica.base_offset >= 0
        if replica is not None and is_begun and (replica.life.is_donor or donor_address):
            return replica
        if not donor_address:
            raise NotReplicaError(f"no intact replica of segment {segment_id} here")
        return await self._create(order, segment, replica, donor_address)

    async def _shut_out(self, replica: Replica) -> None:
        """Promise a higher epoch, because a write-back ends the role here. Without it the
        coordinator would not learn that this replica of an ACTIVE segment has no role."""
        promise = Epoch(replica.identity.epoch + 1)
        if replica.life.is_idle or replica.promised_epoch >= promise:
            return
        replica.move(Promised(promise))
        context = self._context
        promises = [(replica.segment_id, promise)]
        coordinator_epoch = context.identity.coordinator_epoch
        await context.executor.run(context.store.promises.persist, promises, coordinator_epoch)
        self._damage.note_promise(replica)

    async def _adjust(self, order: Order, replica: Replica, asked: Copying) -> None:
        """Cut what is longer (once proved equal up to the end), fetch what is missing."""
        store, segment = self._context.store, asked.segment
        end_offset, donor_address = asked.end_offset, asked.donor_address
        if replica.log.tail.end_offset > end_offset:
            self._check_allowed(replica, asked)  # it may have grown before its role ended
            at_end = await replica.log.worker.run(
                store.reader.tail_at, replica.segment_id, end_offset
            )
            _check(order, replica)
            if at_end is None:
                raise InvalidRequestError(
                    f"no batch of segment {asked.segment.segment_id} ends at {end_offset}"
                )
            if at_end.digest != asked.expected_digest:
                return
            # Beyond the sealed end nothing was acknowledged, by construction.
            event(
                _log,
                logging.INFO,
                "cutting_unacknowledged_tail",
                segment_id=replica.segment_id,
                end_offset=end_offset,
            )
            await replica.log.cut(end_offset)
        while replica.log.tail.end_offset < end_offset:
            if not donor_address:
                raise InvalidRequestError(
                    f"segment {segment.segment_id} ends at {replica.log.tail.end_offset}, not "
                    f"{end_offset}, and no donor was named"
                )
            _, data = await order.unless_overtaken(
                self._ask(donor_address, segment, replica.log.tail.end_offset, end_offset)
            )
            _check(order, replica)
            if not data:
                raise StorageError(f"the donor {donor_address} ends before {end_offset}")
            await self._append(replica, data)
            _check(order, replica)

    async def _append(self, replica: Replica, data: memoryview) -> None:
        """Verify copied batches like replicated ones, append them and wait until durable."""
        log, waiter = replica.log, _CopyWaiter(replica)
        requests: list[AppendRequest] = []
        try:
            for position, header in batch.iter_batches(data):
                batch.verify_producer_crc(data, position, header)
                _check_continues(replica, header)
                log.extend(StampedBatch.received(data, position, header), requests)
                log.producers.apply_header(header)
        finally:
            for request in requests:
                request.ends_segment = True
                log.worker.append(request, waiter)
        await self._context.pool.probe()
        if waiter.error is not None:
            await log.settle()
            raise waiter.error

    async def _ask(
        self, donor_address: str, segment: Segment, start_offset: int, end_offset: int
    ) -> tuple[replication_pb2.ReadSegmentHeader, memoryview]:
        request = replication_pb2.ReadSegmentRequest(
            cluster_id=self._context.identity.cluster_id,
            segment_id=segment.segment_id,
            generation=segment.generation,
            start_offset=start_offset,
            end_offset=end_offset,
            max_bytes=COPY_BYTES_MAX,
        )
        body = await self._context.net.call(
            donor_address,
            REPLICATION["ReadSegment"],
            request.SerializeToString(),
            timeout_s=COPY_TIMEOUT_S,
        )
        header, data = framing.split_bulk(body, replication_pb2.ReadSegmentResponse)
        return framing.parse(replication_pb2.ReadSegmentHeader, header), data

    async def _create(
        self, order: Order, segment: Segment, prepared: Replica | None, donor_address: str
    ) -> Replica:
        """A new local replica with the donor's starting state; partial until it is whole.

        Args:
            order: Works on the segment alone.
            segment: Record of the segment at the coordinator.
            prepared: The replica that is here and has no base yet, if any.
            donor_address: Address of a node that has all of the segment.
        """
        context = self._context
        identity = SegmentIdentity(
            cluster_id=context.identity.cluster_id,
            topic_id=segment.topic_id,
            partition=segment.partition,
            segment_id=segment.segment_id,
            generation=segment.generation,
            epoch=segment.epoch,
            engine=_location(segment, prepared),
        )
        check_identity(identity, segment.base_offset)
        if prepared is not None:
            check_same(prepared, identity)
        header, _ = await order.unless_overtaken(
            self._ask(donor_address, segment, segment.base_offset, segment.base_offset)
        )
        producers = ProducerTable(header.producer_snapshot)
        replica = prepared
        if replica is None:
            (error,) = await context.executor.run(
                context.store.creation.create, [identity], {}, True
            )
            if error is not None:
                raise error
            replica = Replica(context.log_io, identity, NO_TAIL, None, life=Life.PREPARED)
            self._table.add(replica)
        replica.move(CopyBegun())
        order.check()
        identity = replace(replica.identity, base_offset=segment.base_offset)
        tail = await replica.log.worker.run(
            context.store.creation.confirm,
            identity,
            header.producer_snapshot,
            header.max_append_timestamp_ms,
        )
        replica.move(Begun(identity, tail, producers))
        replica.learn(segment)
        self._table.add(replica)
        _check(order, replica)
        return replica

    async def _report(self, replica: Replica, segment: Segment) -> coordinator_pb2.WrittenBack:
        """Report the state that the coordinator needs to seal, or to go on from a sealed
        segment."""
        store, segment_id, tail = self._context.store, replica.segment_id, replica.log.tail
        if not replica.sealed:
            await replica.log.stay_synced()
        if replica.life is Life.COPYING:
            await replica.log.worker.run(store.creation.certify, segment_id)
            replica.move(CopyWhole())
        self._damage.report_whole(segment_id)
        if replica.sealed:
            snapshot, digest = await self._reading.producer_state(replica, tail.end_offset)
        else:
            snapshot, digest = with_digest(replica.log.producers)
        return coordinator_pb2.WrittenBack(
            seal_digest=tail.digest,
            producer_snapshot=snapshot,
            producer_digest=digest,
            max_append_timestamp_ms=tail.max_append_timestamp_ms,
            length_bytes=tail.length_bytes,
        )


def _location(segment: Segment, prepared: Replica | None) -> str:
    """Return the engine of a copy. A copy of a sealed segment uses the one where sealed logs end up
    anyway."""
    if prepared is not None:
        return prepared.identity.engine
    is_sealed = segment.state is SegmentState.SEALED
    return SEGMENT_ENGINE if is_sealed else segment.settings.active_engine


def _check_continues(replica: Replica, header: batch.BatchHeader) -> None:
    """Raises CorruptBatchError when a donor's batch is not the next one of this log."""
    tail = replica.log.tail
    if (
        header.segment_id != replica.segment_id
        or header.base_offset != tail.end_offset
        or header.prev_header_crc32c != tail.last_header_crc32c
    ):
        raise CorruptBatchError("the donor's batches do not continue our log")


def _check(order: Order, replica: Replica) -> None:
    """Check after an await that the order and the replica still hold."""
    order.check()
    if not replica.life.is_intact:
        raise NotReplicaError(f"segment {replica.segment_id} was found damaged here meanwhile")


class _CopyWaiter:
    """Collects the outcome of a copied chunk's appends."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.error: IcecoreError | None = None

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        if durable_tail is not None:
            self._replica.log.became_durable(durable_tail)
        self.error = self.error or error

    def on_broken(self, why: str) -> None:
        self.error = self.error or InternalError(why)
