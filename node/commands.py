"""What the coordinator orders a node to do: fence, open, write back, roll, delete.

Each order carries the coordinator's token; a lower one than any seen is refused. Orders are
idempotent: a coordinator that was interrupted repeats them. Lists are answered in order, each
item with its own error.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from icecore import convert, wire
from icecore.errors import (
    SHORTAGES,
    FencedError,
    IcecoreError,
    InvalidRequestError,
    NotLeaderError,
    NotReplicaError,
    OutOfResourcesError,
    ReadOnlyError,
)
from icecore.ports import CallContext, UnaryHandler
from icecore.v1 import common_pb2, coordinator_pb2
from node.context import NodeContext
from node.copying import SegmentCopier
from node.replica import Replica
from node.replicas import Replicas
from node.store import LogTail, SegmentIdentity
from replication import inputs
from replication.producers import ProducerTable

_log = logging.getLogger(__name__)

PREFIX = "/icecore.v1.NodeService/"
DELETED_KEPT_MAX = 10_000


class NodeCommands:
    """Handlers of ``NodeService``."""

    def __init__(self, context: NodeContext, replicas: Replicas, copier: SegmentCopier) -> None:
        self._context = context
        self._replicas = replicas
        self._copier = copier
        self._deleted: dict[int, None] = {}
        """Segments to delete that are not here, newest last: an Open may still be on its way."""

    def handlers(self) -> dict[str, UnaryHandler]:
        """Method name to handler."""
        return {
            PREFIX + "Fence": self.fence,
            PREFIX + "Open": self.open,
            PREFIX + "WriteBack": self.write_back,
            PREFIX + "Roll": self.roll,
            PREFIX + "FenceProducers": self.fence_producers,
        }

    def _check(self, cluster_id: bytes, token: int) -> None:
        self._context.check_cluster(cluster_id)
        if token < self._context.token:
            raise FencedError(
                f"coordinator token {token} is older than {self._context.token}",
                token=self._context.token,
            )
        self._context.token = token

    # --- fence ----------------------------------------------------------------------------------

    async def fence(self, body: bytes, _: CallContext) -> bytes:
        """Stop appends below the new epochs; answer with the durable ends after that.

        In this order: no new append is accepted, queued ones finish (and are fsynced), the
        promises are persisted, then we answer. So the answer is the last word of this replica.
        """
        request = wire.parse(coordinator_pb2.FenceRequest, body)
        self._check(request.cluster_id, request.token)
        context = self._context
        answers: list[coordinator_pb2.FencedReplica] = []
        promised: list[tuple[Replica, int]] = []
        for ref in request.segments:
            replica = self._replicas.get(ref.segment_id)
            answers.append(coordinator_pb2.FencedReplica())
            if replica is None or not replica.intact or replica.base_offset < 0:
                continue  # UNKNOWN, never "empty"
            if ref.epoch < replica.promised_epoch:
                answers[-1].error.CopyFrom(_fenced(replica))
                continue
            replica.promised_epoch = ref.epoch
            if replica.leader is not None:
                replica.leader.feed(inputs.Fenced(ref.epoch))
            replica.end_role()
            promised.append((replica, ref.epoch))
        settled = await asyncio.gather(*(self._settle(replica) for replica, _ in promised))
        await context.executor.run(
            context.store.set_promises,
            [(replica.segment_id, epoch) for replica, epoch in promised],
            request.token,
        )
        by_id = {
            replica.segment_id: (replica, shortage)
            for (replica, _), shortage in zip(promised, settled, strict=True)
        }
        for ref, answer in zip(request.segments, answers, strict=True):
            if ref.segment_id not in by_id:
                continue
            replica, shortage = by_id[ref.segment_id]
            if shortage is not None:
                answer.error.CopyFrom(convert.error_to_proto(shortage))
            elif replica.intact:
                _describe(replica, answer)
        context.metrics.fences.inc(len(promised))
        return coordinator_pb2.FenceResponse(
            incarnation=context.incarnation, replicas=answers
        ).SerializeToString()

    async def _settle(self, replica: Replica) -> IcecoreError | None:
        """The shortage for which it cannot be told where the log ends: not now, and no damage."""
        async with replica.exclusive:
            try:
                await replica.settle()
            except SHORTAGES as error:
                return error
            except IcecoreError as error:
                self._replicas.condemn(replica, f"its log did not settle: {error}")
        return None

    # --- open -----------------------------------------------------------------------------------

    async def open(self, body: bytes, _: CallContext) -> bytes:
        """Create, and where told confirm, replicas of segments about to open."""
        request = wire.parse(coordinator_pb2.OpenRequest, body)
        self._check(request.cluster_id, request.token)
        context = self._context
        identities = [self._identity(item) for item in request.segments]
        fresh = [each for each in identities if self._replicas.get(each.segment_id) is None]
        errors: dict[int, IcecoreError | None] = {
            each.segment_id: NotReplicaError(f"segment {each.segment_id} was deleted")
            for each in fresh
            if each.segment_id in self._deleted
        }
        fresh = [each for each in fresh if each.segment_id not in errors]
        if fresh:
            created = await context.executor.run(context.store.create, *_to_create(request, fresh))
            for identity, error in zip(fresh, created, strict=True):
                errors[identity.segment_id] = _refusal(error)
                if error is None and self._replicas.get(identity.segment_id) is None:
                    self._replicas.add(Replica(context, identity, _NO_TAIL, ProducerTable()))
            for identity in fresh:
                if identity.segment_id in self._deleted:  # told so while it was created
                    await self.delete(identity.segment_id)
        confirms = [
            self._confirm(item)
            for item in request.segments
            if item.confirm and errors.get(item.segment.segment_id) is None
        ]
        errors.update(await asyncio.gather(*confirms))
        return coordinator_pb2.OpenResponse(
            incarnation=context.incarnation,
            errors=[convert.error_to_proto(errors.get(each.segment_id)) for each in identities],
        ).SerializeToString()

    def _identity(self, item: coordinator_pb2.OpenSegment) -> SegmentIdentity:
        segment = item.segment
        return SegmentIdentity(
            cluster_id=self._context.cluster_id,
            topic_id=segment.topic_id,
            partition=segment.partition,
            segment_id=segment.segment_id,
            generation=segment.generation,
            epoch=segment.epoch,
        )

    async def _confirm(self, item: coordinator_pb2.OpenSegment) -> tuple[int, IcecoreError | None]:
        segment_id = item.segment.segment_id
        replica = self._replicas.get(segment_id)
        if replica is None:
            return segment_id, NotReplicaError(f"segment {segment_id} was not prepared here")
        identity = replace(replica.identity, base_offset=item.segment.base_offset)
        if replica.segment is not None or not replica.idle or not replica.intact:
            return segment_id, InvalidRequestError(f"segment {segment_id} is already in use here")
        try:
            tail = await replica.worker.run(
                self._context.store.confirm,
                identity,
                item.producer_snapshot,
                item.max_append_timestamp_ms,
            )
        except IcecoreError as error:
            return segment_id, error
        replica.identity = identity
        replica.tail = replica.durable_tail = tail
        replica.producers = ProducerTable(item.producer_snapshot)
        self._replicas.add(replica)
        return segment_id, None

    # --- write back -----------------------------------------------------------------------------

    async def write_back(self, body: bytes, _: CallContext) -> bytes:
        """Bring replicas to exactly [base, end) and report their digests and producer states."""
        request = wire.parse(coordinator_pb2.WriteBackRequest, body)
        self._check(request.cluster_id, request.token)
        results = await asyncio.gather(*(self._write_back(item) for item in request.segments))
        return coordinator_pb2.WriteBackResponse(
            incarnation=self._context.incarnation, results=results
        ).SerializeToString()

    async def _write_back(
        self, item: coordinator_pb2.WriteBackSegment
    ) -> coordinator_pb2.WrittenBack:
        segment = convert.segment_from_proto(item.segment)
        try:
            return await self._copier.bring_to(
                segment,
                item.end_offset,
                item.donor_address,
                expected_digest=item.seal_digest,
                seal=item.seal,
            )
        except IcecoreError as error:
            _log.warning(
                "write-back failed segment_id=%d end_offset=%d donor=%s error=%s",
                segment.segment_id,
                item.end_offset,
                item.donor_address,
                error,
            )
            return coordinator_pb2.WrittenBack(error=convert.error_to_proto(error))

    # --- roll -----------------------------------------------------------------------------------

    async def roll(self, body: bytes, _: CallContext) -> bytes:
        """Seal these segments now, if we lead them and they hold anything to seal."""
        request = wire.parse(coordinator_pb2.RollRequest, body)
        self._check(request.cluster_id, request.token)
        errors: list[IcecoreError | None] = []
        empty: list[int] = []
        for ref in request.segments:
            replica = self._replicas.get(ref.segment_id)
            if replica is None or replica.leader is None:
                errors.append(NotLeaderError(f"segment {ref.segment_id} is not led here"))
                continue
            if replica.tail.end_offset == replica.base_offset:
                empty.append(ref.segment_id)
            replica.leader.feed(inputs.RollRequested(request.why or "asked by the coordinator"))
            errors.append(None)
        return coordinator_pb2.RollResponse(
            errors=[convert.error_to_proto(error) for error in errors], empty_segment_ids=empty
        ).SerializeToString()

    # --- producers ------------------------------------------------------------------------------

    async def fence_producers(self, body: bytes, _: CallContext) -> bytes:
        """Refuse older epochs of named producers; how far each got in what is led here.

        Needs no disk: a process that is started again leads nothing that it led before, and hears
        all fences before it leads anything new.
        """
        request = wire.parse(coordinator_pb2.FenceProducersRequest, body)
        context = self._context
        self._check(request.cluster_id, request.token)
        answer = coordinator_pb2.FenceProducersResponse(incarnation=context.incarnation)
        for fence in request.fences:
            context.fence_producer(fence.producer_id, fence.min_epoch)
            for leader in self._replicas.leaders():
                last = leader.core.producers.last_sequence(fence.producer_id)
                if last is not None:
                    answer.positions.add(
                        topic_id=leader.segment.topic_id,
                        partition=leader.segment.partition,
                        producer_epoch=last[0],
                        next_sequence=last[1],
                    )
        return answer.SerializeToString()

    # --- delete ---------------------------------------------------------------------------------

    async def delete(self, segment_id: int) -> None:
        """Carry out a delete intent that came with a heartbeat."""
        replica = self._replicas.get(segment_id)
        if replica is None:
            self._deleted[segment_id] = None
            if len(self._deleted) > DELETED_KEPT_MAX:
                del self._deleted[next(iter(self._deleted))]
            return
        async with replica.exclusive:
            replica.end_role()
            replica.intact = False
            store, token = self._context.store, self._context.token
            try:
                await replica.worker.run(store.delete, segment_id, token)
            except IcecoreError as error:
                _log.warning("not deleted segment_id=%d error=%s", segment_id, error)
                return
            self._replicas.remove(replica)
            _log.info("deleted segment_id=%d", segment_id)


_NO_TAIL = LogTail(-1, 0, b"", 0, -1)


def _refusal(error: IcecoreError | None) -> IcecoreError | None:
    """What an Open is answered with: a shortage as what it is, all else means "not here"."""
    if error is None or isinstance(error, OutOfResourcesError):
        return error
    return ReadOnlyError(str(error))


def _to_create(
    request: coordinator_pb2.OpenRequest, fresh: Sequence[SegmentIdentity]
) -> tuple[list[SegmentIdentity], dict[int, tuple[bytes, int]]]:
    """Arguments of ``SegmentStore.create``: what is to be confirmed costs no second sync so."""
    final = {each.segment.segment_id: each for each in request.segments if each.confirm}
    identities: list[SegmentIdentity] = []
    starts: dict[int, tuple[bytes, int]] = {}
    for each in fresh:
        item = final.get(each.segment_id)
        if item is None:
            identities.append(each)
            continue
        identities.append(replace(each, base_offset=item.segment.base_offset))
        starts[each.segment_id] = (item.producer_snapshot, item.max_append_timestamp_ms)
    return identities, starts


def _fenced(replica: Replica) -> common_pb2.Error:
    return convert.error_to_proto(
        FencedError(
            f"epoch {replica.promised_epoch} is promised for segment {replica.segment_id}",
            promised_epoch=replica.promised_epoch,
        )
    )


def _describe(replica: Replica, answer: coordinator_pb2.FencedReplica) -> None:
    tail = replica.tail
    answer.intact = True
    answer.durable_end_offset = tail.end_offset
    answer.last_header_crc32c = tail.last_header_crc32c
    answer.digest = tail.digest
    answer.max_known_high_watermark = max(tail.max_known_high_watermark, replica.high_watermark)
    answer.was_leader = replica.led_in_this_process
