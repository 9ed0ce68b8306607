"""Copying segment bytes between replicas: write-back in a recovery, repair of sealed segments.

The copier brings the local replica to exactly ``[base, end)``: it cuts what is longer and equal,
fetches what is missing from a donor, checks chain, CRCs and (where known) the seal digest, and
reports what the coordinator needs to seal. Batches are copied bit by bit; epochs in them never
change. It also answers the donor's side (``read_segment``) and a leader's ``seal_prepare``.
"""

import logging
from dataclasses import replace

from icecore.codec import batch
from icecore.errors import (
    CorruptBatchError,
    FencedError,
    IcecoreError,
    InternalError,
    InvalidRequestError,
    NotReplicaError,
    StorageError,
)
from icecore.model import Segment, SegmentState
from icecore.rpc import framing
from icecore.rpc.methods import REPLICATION
from icecore.rpc.ports import CallContext, UnaryHandler
from icecore.v1 import coordinator_pb2, replication_pb2
from icecore_node.context import NodeContext
from icecore_node.registry.replicas import Replicas
from icecore_node.replica.order_checks import (
    check_identity,
    check_implemented,
    check_same,
    check_write_back,
    is_recorded,
)
from icecore_node.replica.orders import Order
from icecore_node.replica.producer_state import state_at, with_digest
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import NO_TAIL, LogTail, NotAsSealed, SegmentIdentity
from icecore_node.upkeep.scrub import verify
from icecore_replication.producers import ProducerTable

_log = logging.getLogger(__name__)

COPY_BYTES_MAX = 4 << 20
COPY_TIMEOUT_S = 10.0


class SegmentCopier:
    """Both sides of a copy."""

    def __init__(self, context: NodeContext, replicas: Replicas) -> None:
        self._context = context
        self._replicas = replicas

    def handlers(self) -> dict[str, UnaryHandler]:
        """The donor's handlers, method name to handler."""
        return {
            REPLICATION["ReadSegment"]: self.read_segment,
            REPLICATION["SealPrepare"]: self.seal_prepare,
        }

    # --- the donor ------------------------------------------------------------------------------

    async def read_segment(self, body: bytes, _: CallContext) -> bytes:
        """Raw batches of one replica; with the starting state when read from the base."""
        request = framing.parse(replication_pb2.ReadSegmentRequest, body)
        self._context.check_cluster(request.cluster_id)
        replica = self._intact(request.segment_id)
        if replica.identity.generation != request.generation:
            raise NotReplicaError(
                f"segment {request.segment_id} is here in generation {replica.identity.generation}"
            )
        store = self._context.store
        start, end = request.start_offset, min(request.end_offset, replica.tail.end_offset)
        header = replication_pb2.ReadSegmentHeader()
        if start == replica.base_offset:
            snapshot, max_append_timestamp_ms = await self._context.executor.run(
                store.reader.starting_state, replica.segment_id
            )
            header.producer_snapshot = snapshot
            header.max_append_timestamp_ms = max_append_timestamp_ms
        data = b""
        if start < end:
            data, _next_offset = await self._replicas.read(
                replica,
                store.reader.read,
                *(replica.segment_id, start, request.max_bytes or COPY_BYTES_MAX, end),
            )
        return framing.frame_bulk(header.SerializeToString(), [data])

    async def seal_prepare(self, body: bytes, _: CallContext) -> bytes:
        """An in-sync follower's digests through the leader's end."""
        request = framing.parse(replication_pb2.SealPrepareRequest, body)
        self._context.check_cluster(request.cluster_id)
        replica = self._intact(request.segment_id)
        if replica.promised_epoch > request.epoch or replica.follower is None:
            raise FencedError(f"segment {request.segment_id} is not followed here any more")
        durable_end_offset = replica.follower.core.durable_end_offset
        if not durable_end_offset == replica.tail.end_offset == request.end_offset:
            raise InvalidRequestError(
                f"durable through {durable_end_offset} here, not {request.end_offset}"
            )
        return replication_pb2.SealPrepareResponse(
            seal_digest=replica.tail.digest, producer_digest=replica.producers.digest()
        ).SerializeToString()

    def _intact(self, segment_id: int) -> Replica:
        replica = self._replicas.get(segment_id)
        if replica is None or not replica.is_donor:
            raise NotReplicaError(f"no intact replica of segment {segment_id} here")
        return replica

    # --- the receiver ---------------------------------------------------------------------------

    async def bring_to(
        self,
        segment: Segment,
        end_offset: int,
        donor_address: str,
        *,
        expected_digest: bytes,
        seal: bool,
        token: int,
    ) -> coordinator_pb2.WrittenBack:
        """Make the local log end exactly at ``end_offset``; ``donor_address`` empty = it does.

        Raises NotReplicaError, InvalidRequestError (longer and different, wrong digest),
        FencedError (another order came first), UnsupportedError (of its settings), StorageError,
        or whatever the donor answered.
        """
        check_implemented(segment.segment_id, segment.settings)
        async with self._replicas.orders.carry_out(segment.segment_id, token) as order:
            try:
                known = self._replicas.get(segment.segment_id)
                if known is not None:
                    check_write_back(known, segment, end_offset, expected_digest)
                replica = await self._basis(order, segment, donor_address)
                check_write_back(replica, segment, end_offset, expected_digest)
                if not replica.sealed:
                    await self._shut_out(replica)
                    _check(order, replica)
                    replica.end_role("its end is written back")
                    await replica.settle()
                    _check(order, replica)
                    await self._adjust(
                        order, replica, segment, end_offset, donor_address, expected_digest
                    )
                    _check(order, replica)
                return await self._conclude(
                    replica, segment, end_offset, donor_address, expected_digest, seal=seal
                )
            except IcecoreError:
                held = self._replicas.get(segment.segment_id)
                if donor_address and (held is None or not held.is_donor):
                    self._replicas.report_missing(segment.segment_id)
                raise

    async def _conclude(
        self,
        replica: Replica,
        segment: Segment,
        end_offset: int,
        donor_address: str,
        expected_digest: bytes,
        *,
        seal: bool,
    ) -> coordinator_pb2.WrittenBack:
        """Report a log that is what was ordered; set one aside that can't be made so."""
        tail = replica.tail
        if tail.end_offset == end_offset and expected_digest in (b"", tail.digest):
            if seal:
                sealed = segment.changed(end_offset=end_offset, seal_digest=tail.digest)
                try:
                    await self._replicas.finish_sealed(replica, sealed)
                except NotAsSealed as error:
                    raise InvalidRequestError(str(error)) from error
            return await self._report(replica, segment)
        if donor_address:
            self._replicas.report_dispute(replica, f"not the donor's log at {end_offset}")
            if replica.is_partial or is_recorded(replica, end_offset, expected_digest):
                await self._replicas.set_aside(replica)
        raise InvalidRequestError(
            f"segment {segment.segment_id} ends at {tail.end_offset} here or its digest differs "
            f"from the one at {end_offset}"
        )

    async def _basis(self, order: Order, segment: Segment, donor_address: str) -> Replica:
        """The replica to bring to the end: the one that is here, or a new one if it is damaged."""
        segment_id = segment.segment_id
        if self._replicas.orders.was_deleted(segment_id):
            raise NotReplicaError(f"segment {segment_id} was deleted here")
        replica = self._replicas.get(segment_id)
        if replica is not None and replica.sealed and replica.intact and donor_address:
            # The coordinator counts it not, so it may be damaged although nobody met it here.
            await verify(self._context, self._replicas, replica)
            order.check()
        if replica is not None and not replica.intact and donor_address:
            await self._replicas.set_aside(replica)
            replica = None
        is_begun = replica is not None and replica.base_offset >= 0
        if replica is not None and is_begun and (replica.is_donor or donor_address):
            return replica
        if not donor_address:
            raise NotReplicaError(f"no intact replica of segment {segment_id} here")
        return await self._create(order, segment, replica, donor_address)

    async def _shut_out(self, replica: Replica) -> None:
        """A write-back ends the role here, so it is a promise, too: else nobody would find out that
        this replica of an ACTIVE segment plays none."""
        promise = replica.identity.epoch + 1
        if replica.idle or replica.promised_epoch >= promise:
            return
        replica.promised_epoch = promise
        context = self._context
        promises = [(replica.segment_id, promise)]
        await context.executor.run(context.store.promises.persist, promises, context.token)
        self._replicas.note_promise(replica)

    async def _adjust(
        self,
        order: Order,
        replica: Replica,
        segment: Segment,
        end_offset: int,
        donor_address: str,
        expected_digest: bytes,
    ) -> None:
        """Cut what is longer (once proved equal up to the end), fetch what is missing."""
        store = self._context.store
        if replica.tail.end_offset > end_offset:
            if segment.state is not SegmentState.SEALED and end_offset < replica.told_end_offset:
                # An order of an earlier round: a later one may have decided by what we told.
                raise FencedError(
                    f"segment {segment.segment_id}: a coordinator was told of "
                    f"{replica.told_end_offset}, it is not cut at {end_offset} until it is sealed"
                )
            at_end = await replica.worker.run(store.reader.tail_at, replica.segment_id, end_offset)
            _check(order, replica)
            if at_end is None:
                raise InvalidRequestError(
                    f"no batch of segment {segment.segment_id} ends at {end_offset}"
                )
            if at_end.digest != expected_digest:
                return
            # Beyond the sealed end nothing was acknowledged, by construction.
            _log.info(
                "cutting unacknowledged tail segment_id=%d at=%d", replica.segment_id, end_offset
            )
            await replica.cut(end_offset)
        while replica.tail.end_offset < end_offset:
            if not donor_address:
                raise InvalidRequestError(
                    f"segment {segment.segment_id} ends at {replica.tail.end_offset}, not "
                    f"{end_offset}, and no donor was named"
                )
            _, data = await order.unless_overtaken(
                self._ask(donor_address, segment, replica.tail.end_offset, end_offset)
            )
            _check(order, replica)
            if not data:
                raise StorageError(f"the donor {donor_address} ends before {end_offset}")
            await self._append(replica, data)
            _check(order, replica)

    async def _append(self, replica: Replica, data: memoryview) -> None:
        """Verify copied batches like replicated ones, append them and wait until durable."""
        waiter = _CopyWaiter(replica)
        for position, header in batch.iter_batches(data):
            batch.verify_producer_crc(data, position, header)
            if (
                header.segment_id != replica.segment_id
                or header.base_offset != replica.tail.end_offset
                or header.prev_header_crc32c != replica.tail.last_header_crc32c
            ):
                raise CorruptBatchError("the donor's batches do not continue our log")
            start = position + batch.HEADER_LENGTH
            request = replica.extend(
                bytes(data[position:start]),
                header,
                data[start : position + header.batch_length],
                header.base_offset,
                header.append_timestamp_ms,
                header.header_crc32c,
                header.end_offset,
            )
            replica.producers.apply_header(header)
            replica.worker.append(request, waiter)
        await self._context.pool.probe()
        if waiter.error is not None:
            await replica.settle()
            raise waiter.error

    async def _ask(
        self, donor_address: str, segment: Segment, start_offset: int, end_offset: int
    ) -> tuple[replication_pb2.ReadSegmentHeader, memoryview]:
        request = replication_pb2.ReadSegmentRequest(
            cluster_id=self._context.cluster_id,
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
            segment: As the coordinator has it.
            prepared: What is here and has no base yet.
            donor_address: Who holds all of it.
        """
        context = self._context
        identity = SegmentIdentity(
            cluster_id=context.cluster_id,
            topic_id=segment.topic_id,
            partition=segment.partition,
            segment_id=segment.segment_id,
            generation=segment.generation,
            epoch=segment.epoch,
            engine=segment.settings.engine,
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
            (error,) = await context.executor.run(context.store.create, [identity], {}, True)
            if error is not None:
                raise error
            replica = Replica(context, identity, NO_TAIL, None)
            self._replicas.add(replica)
        replica.is_partial = True
        order.check()
        identity = replace(replica.identity, base_offset=segment.base_offset)
        tail = await replica.worker.run(
            context.store.confirm,
            identity,
            header.producer_snapshot,
            header.max_append_timestamp_ms,
        )
        replica.begin(identity, tail, producers)
        replica.segment = segment
        self._replicas.add(replica)
        _check(order, replica)
        return replica

    async def _report(self, replica: Replica, segment: Segment) -> coordinator_pb2.WrittenBack:
        """What the coordinator needs to seal, or to go on from a sealed segment."""
        store, segment_id, tail = self._context.store, replica.segment_id, replica.tail
        if replica.is_partial:
            await replica.worker.run(store.certify, segment_id)
            replica.is_partial = False
        self._replicas.report_whole(segment_id)
        if segment.state is not SegmentState.SEALED:
            replica.told_end_offset = max(replica.told_end_offset, tail.end_offset)
        if replica.sealed:
            snapshot, digest = await self._replicas.read(
                replica, state_at, store, segment_id, tail.end_offset
            )
        else:
            snapshot, digest = with_digest(replica.producers)
        return coordinator_pb2.WrittenBack(
            seal_digest=tail.digest,
            producer_snapshot=snapshot,
            producer_digest=digest,
            max_append_timestamp_ms=tail.max_append_timestamp_ms,
            length_bytes=tail.length_bytes,
        )


def _check(order: Order, replica: Replica) -> None:
    """After an await: the order still holds, and so does the replica."""
    order.check()
    if not replica.intact:
        raise NotReplicaError(f"segment {replica.segment_id} was found damaged here meanwhile")


class _CopyWaiter:
    """Collects the outcome of a copied chunk's appends."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.error: IcecoreError | None = None

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        if durable_tail is not None:
            self._replica.durable_tail = durable_tail
        self.error = self.error or error

    def on_broken(self, why: str) -> None:
        self.error = self.error or InternalError(why)
