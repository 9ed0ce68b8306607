"""Fences: no append below a new epoch, and then the last word on where each log ends (R30)."""

import asyncio
from collections.abc import Callable

from icecore.errors import SHORTAGES, IcecoreError
from icecore.model import CoordinatorEpoch, Epoch, SegmentId
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.maintenance.salvage import Salvage
from icecore_node.registry.finish_seal import SealFinisher
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica import order_checks
from icecore_node.replica.damage import Damage
from icecore_node.replica.life import Promised
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica


class Fencing:
    """Promises epochs and tells durable ends."""

    def __init__(
        self,
        context: NodeContext,
        table: ReplicaTable,
        orders: Orders,
        damage: Damage,
        salvage: Salvage,
        seals: SealFinisher,
    ) -> None:
        self._context = context
        self._seals = seals
        self._table = table
        self._orders = orders
        self._damage = damage
        self._salvage = salvage

    async def fence(
        self, request: coordinator_pb2.FenceRequest, check: Callable[[], None]
    ) -> list[coordinator_pb2.FencedReplica]:
        """Stop appends below the new epochs; answer with the durable ends after that.

        In this order: no new append is accepted, write-backs under way stop, queued appends finish
        (and are fsynced, in every flush mode), the promises are persisted, then we answer. So the
        answer is the last word of this replica.

        Args:
            request: Names the segments; the answers are in the same order.
            check: Raises an error when the order must be refused by now.
        """
        context = self._context
        self._seals.note_fence()
        answers, promised = self._promise(request)
        settled = await asyncio.gather(*(self._settle(replica) for replica, _ in promised))
        if (
            promised
        ):  # a coordinator epoch alone is no promise, and worth no memory that outlives the process
            await context.executor.run_first(
                context.store.promises.persist,
                [(replica.segment_id, epoch) for replica, epoch in promised],
                CoordinatorEpoch(request.coordinator_epoch),
            )
        check()
        by_id = {
            replica.segment_id: (replica, shortage)
            for (replica, _), shortage in zip(promised, settled, strict=True)
        }
        for ref, answer in zip(request.segments, answers, strict=True):
            segment_id = SegmentId(ref.segment_id)
            if segment_id not in by_id:
                continue
            replica, shortage = by_id[segment_id]
            if shortage is not None:
                answer.error.CopyFrom(convert.error_to_proto(shortage))
            elif replica is self._table.get(segment_id):
                describe(replica, answer)
                self._damage.note_promise(replica)
        if request.salvage:
            await self._salvage.describe(request, answers)
        context.metrics.fences.inc(len(promised))
        return answers

    def _promise(
        self, request: coordinator_pb2.FenceRequest
    ) -> tuple[list[coordinator_pb2.FencedReplica], list[tuple[Replica, Epoch]]]:
        """Promise the epochs: from now on no batch with a lower epoch is appended. Return the
        answers, and the replicas with their promised epochs."""
        answers: list[coordinator_pb2.FencedReplica] = []
        promised: list[tuple[Replica, Epoch]] = []
        for ref in request.segments:
            segment_id, epoch = SegmentId(ref.segment_id), Epoch(ref.epoch)
            self._orders.overtake(segment_id, "a fence came")
            replica = self._table.get(segment_id)
            answers.append(coordinator_pb2.FencedReplica())
            if replica is None or not replica.life.counts:
                continue  # UNKNOWN, never "empty"
            if epoch < replica.promised_epoch:
                error = order_checks.promised(replica)
                answers[-1].error.CopyFrom(convert.error_to_proto(error))
                continue
            try:
                order_checks.check_promise(replica, epoch)
            except IcecoreError as error:
                self._context.metrics.orders_refused.labels("fence").inc()
                answers[-1].error.CopyFrom(convert.error_to_proto(error))
                continue
            replica.move(Promised(epoch))
            promised.append((replica, epoch))
        return answers, promised

    async def _settle(self, replica: Replica) -> IcecoreError | None:
        """Settle a log before its end is reported. Return the shortage that prevents this for now;
        such a log is not damaged."""
        async with self._orders.alone(replica.segment_id):
            if not replica.life.counts:
                return None
            try:
                await replica.log.settle()
                await replica.log.stay_synced()
            except SHORTAGES as error:
                return error
            except IcecoreError as error:
                self._damage.condemn(replica, f"its log did not settle: {error}")
        return None


def describe(replica: Replica, answer: coordinator_pb2.FencedReplica) -> None:
    """Fill in the durable end of a replica. Until its own record is SEALED, no write-back cuts the
    log (R111)."""
    if not replica.life.counts:
        return
    tail = replica.log.durable_tail
    answer.intact = True
    answer.durable_end_offset = tail.end_offset
    answer.last_header_crc32c = tail.last_header_crc32c
    answer.digest = tail.digest
    answer.max_known_high_watermark = max(
        replica.log.tail.max_known_high_watermark, replica.high_watermark
    )
