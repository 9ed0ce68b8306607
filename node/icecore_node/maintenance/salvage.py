"""The node's side of an unclean recovery: UNKNOWN logs may count again, by a person's word (R46).

Asked to, a fence also says how far such a log is provably right; and when the coordinator chose
it, the write-back brings that part back as a replica. It counts for that recovery alone: to every
other fence, and to the next start, it is UNKNOWN until it is sealed.
"""

import asyncio
import logging
from collections.abc import Sequence

from icecore.model import (
    NO_EPOCH,
    CoordinatorEpoch,
    Epoch,
    Segment,
    SegmentId,
)
from icecore.process.log import (
    event,
)
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.registry.found_replicas import producers_of
from icecore_node.registry.set_aside import SettingAside
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.life import Life, Promised
from icecore_node.replica.order_checks import PROMISE_JUMP_MAX
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica

_log = logging.getLogger(__name__)


class Salvage:
    """Finds and readmits what can be proved of UNKNOWN replicas."""

    def __init__(
        self, context: NodeContext, table: ReplicaTable, orders: Orders, aside: SettingAside
    ) -> None:
        self._context = context
        self._table = table
        self._orders = orders
        self._aside = aside
        self._one_at_a_time = asyncio.Lock()

    async def describe(
        self,
        request: coordinator_pb2.FenceRequest,
        answers: Sequence[coordinator_pb2.FencedReplica],
    ) -> None:
        """Fill in the answers that are not intact, where something can be proved.

        Nothing is promised for a segment that was never here, for it could not be opened later:
        each that was has an epoch. As in any fence the promise is durable before we say how far the
        log goes.
        """
        context = self._context
        store = context.store
        asked = [
            (SegmentId(ref.segment_id), Epoch(ref.epoch), answer)
            for ref, answer in zip(request.segments, answers, strict=True)
            if not answer.intact and not answer.HasField("error")
            if (known := store.promises.epoch_of(SegmentId(ref.segment_id))) > NO_EPOCH
            if known <= ref.epoch <= known + PROMISE_JUMP_MAX
        ]
        promises = [(segment_id, epoch) for segment_id, epoch, _ in asked]
        await context.executor.run(
            store.promises.persist, promises, CoordinatorEpoch(request.coordinator_epoch)
        )
        await context.pool.probe()  # what was under way when it was condemned is written, or not
        for segment_id, epoch, answer in asked:
            tail = await context.executor.run(store.salvage.tail, segment_id)
            replica = self._table.get(segment_id)
            if replica is not None and epoch > replica.identity.epoch:
                replica.move(Promised(epoch))
            if tail is None:
                continue
            answer.salvageable = True
            answer.durable_end_offset = tail.end_offset
            answer.last_header_crc32c = tail.last_header_crc32c
            answer.digest = tail.digest
            answer.max_known_high_watermark = tail.max_known_high_watermark

    async def readmit(self, segment: Segment) -> None:
        """Make the provable part of an UNKNOWN log the replica, to be donor and to be sealed.

        Raises: NotReplicaError (nothing can be proved), StorageError.
        """
        context, segment_id = self._context, segment.segment_id
        async with self._one_at_a_time, self._orders.alone(segment_id):
            old = self._table.get(segment_id)
            if old is not None and old.life.is_intact:
                return
            if old is not None:
                await self._aside.set_aside(old)
            found = await context.executor.run(context.store.salvage.readmit, segment_id)
            replica = Replica(
                context.log_io,
                found.identity,
                found.tail,
                producers_of(found),
                life=Life.SALVAGED,
                promised_epoch=context.store.promises.epoch_of(segment_id),
            )
            replica.learn(segment)
            self._table.add(replica)
            event(
                _log,
                logging.CRITICAL,
                "readmitted",
                segment_id=segment_id,
                end_offset=found.tail.end_offset,
                why="unclean recovery",
            )
