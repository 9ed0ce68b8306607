"""The end of a seal on one replica: its log is brought to the decided end and marked, durably.

The end was decided elsewhere (R27, R31). A longer, equal log is cut; one that is short or differs
is not what was sealed.

After a failover very many are to be sealed, on the workers that write appends, and nobody waits for
it: a few at a time, so that an append has no more than those before it.
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
from icecore_node.replica.damage import Damage
from icecore_node.replica.life import Sealed
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import LogTail, NotAsSealed

_log = logging.getLogger(__name__)

SPACE_RETRY_S = 1.0
SEALS_AT_ONCE = 4


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
        self._sealing: dict[SegmentId, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(SEALS_AT_ONCE)
        self._is_closing = False

    def finish_later(self, replica: Replica, segment: Segment) -> None:
        """The record says SEALED: bring our log to the end; what differs is repaired as a whole."""
        if replica.segment_id not in self._sealing:
            task = self._context.tasks.start(self._finish_in_time(replica, segment))
            self._sealing[replica.segment_id] = task
            task.add_done_callback(lambda _: self._sealing.pop(replica.segment_id, None))

    async def _finish_in_time(self, replica: Replica, segment: Segment) -> None:
        while not self._is_closing:
            async with self._room, self._orders.alone(replica.segment_id):
                if self._is_closing or not replica.life.is_intact:
                    break
                replica.end_role("the segment is sealed")
                try:
                    await self.finish(replica, segment)
                    break
                except SHORTAGES as error:
                    why = error
                except (NotAsSealed, StorageError) as error:
                    self._damage.condemn(replica, f"not what was sealed: {error}")
                    break
            event(_log, logging.WARNING, "not_sealed_yet", segment_id=replica.segment_id, error=why)
            await asyncio.sleep(SPACE_RETRY_S)
        self._readers.wake(replica.partition_key)

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
        self._context.metrics.segments_sealed.inc()
        self._digests.put(replica)

    async def close(self) -> None:
        """Wait for seals under way, and begin no further try."""
        self._is_closing = True
        await asyncio.gather(*self._sealing.values(), return_exceptions=True)
