"""The end of a seal on one replica: its log is brought to the decided end and marked, durably.

The end was decided elsewhere (R27, R31). A longer, equal log is cut; one that is short or differs
is not what was sealed.

After a failover very many are to be sealed, on the workers that write appends: a few at a time, so
that an append has no more than those before it, and in the order of ``seal_order.py``.
"""

import asyncio
import logging

from icecore.errors import SHORTAGES, StorageError
from icecore.model import (
    Segment,
    SegmentId,
)
from icecore.process.log import (
    event,
)
from icecore_node.context import NodeContext
from icecore_node.identity.readers import Readers
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.registry.seal_order import SealOrder
from icecore_node.replica.damage import Damage
from icecore_node.replica.life import Sealed
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import LogTail, NotAsSealed

_log = logging.getLogger(__name__)

SEALS_AT_ONCE = 4
LOOK_S = 0.1
"""Seconds between two checks whether the seals put off may go on."""


class SealFinisher:
    """Seals replicas as their records say. Loop only."""

    def __init__(
        self,
        context: NodeContext,
        orders: Orders,
        damage: Damage,
        readers: Readers,
        digests: DigestQueue,
    ) -> None:
        self._context = context
        self._orders = orders
        self._damage = damage
        self._readers = readers
        self._digests = digests
        self._order: SealOrder[tuple[Replica, Segment]] = SealOrder(readers.are_at)
        readers.on_read = self._order.want
        self._begun: set[SegmentId] = set()
        """Segments whose seal waits or is under way."""
        self._sealers = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closing = False

    def note_fence(self) -> None:
        """Note that a recovery goes on here: seals of segments without readers come after it."""
        self._order.note_fence(self._context.clock.monotonic_ms())

    def finish_later(self, replica: Replica, segment: Segment) -> None:
        """The record says SEALED: bring our log to the end; what differs is repaired as a whole."""
        if replica.segment_id not in self._begun:
            self._begun.add(replica.segment_id)
            self._put(replica, segment)

    def _put(self, replica: Replica, segment: Segment) -> None:
        now_ms = self._context.clock.monotonic_ms()
        self._order.put(replica.partition_key, (replica, segment), now_ms)
        if self._sealers < SEALS_AT_ONCE and not self._is_closing:
            self._sealers += 1
            task = self._context.tasks.start(self._seal_in_order())
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _seal_in_order(self) -> None:
        """Work off the waiting seals until none is left. A seal that arrives later starts another
        task."""
        while self._order and not self._is_closing:
            found = self._order.next(self._context.clock.monotonic_ms())
            if found is None:
                await asyncio.sleep(LOOK_S)
                continue
            replica, segment = found
            if await self._is_over(replica, segment):
                self._begun.discard(replica.segment_id)
                self._readers.wake(replica.partition_key)
            else:
                retry_s = self._context.settings.timing.space_retry_ms / 1000
                loop = asyncio.get_running_loop()
                loop.call_later(retry_s, self._put, replica, segment)
        self._sealers -= 1

    async def _is_over(self, replica: Replica, segment: Segment) -> bool:
        """Seal a replica. Return False after a shortage: the seal is tried again later."""
        async with self._orders.alone(replica.segment_id):
            if self._is_closing or not replica.life.is_intact:
                return True
            replica.end_role("the segment is sealed")
            try:
                await self.finish(replica, segment)
            except SHORTAGES as error:
                id_ = replica.segment_id
                event(_log, logging.WARNING, "not_sealed_yet", segment_id=id_, error=error)
                return False
            except (NotAsSealed, StorageError) as error:
                self._damage.condemn(replica, f"not what was sealed: {error}")
        return True

    async def finish(self, replica: Replica, segment: Segment) -> None:
        """Truncate a longer, equal log; mark it sealed. The caller works on the segment alone.

        Raises NotAsSealed when the log is short or its digest differs.
        """
        if replica.sealed:
            return
        log = replica.log
        await log.settle()
        store, worker, end = self._context.store, log.worker, segment.end_offset
        tail: LogTail | None = log.tail
        if log.tail.end_offset > end:
            tail = await worker.run(store.reader.tail_at, replica.segment_id, end)
        if tail is None or (tail.end_offset, tail.digest) != (end, segment.seal_digest):
            raise NotAsSealed(
                f"the log ends at {log.tail.end_offset} or its digest differs from the "
                f"one sealed at {end}"
            )
        if log.tail.end_offset > end:
            event(
                _log,
                logging.INFO,
                "cutting_unacknowledged_tail",
                segment_id=replica.segment_id,
                end_offset=end,
            )
            await log.cut(end)
            tail = log.tail
        await worker.run(store.seal, replica.segment_id, end, segment.seal_digest)
        replica.move(Sealed(tail))
        self._damage.report_whole(replica.segment_id)
        self._context.metrics.segments_sealed.inc()
        self._digests.put(replica)

    async def close(self) -> None:
        """Wait for seals under way, and begin no further one."""
        self._is_closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
