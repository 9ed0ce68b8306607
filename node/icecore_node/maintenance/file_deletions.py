"""Carry out delete orders, off the data path, a few files at a time.

While a node runs, nobody else has whole replicas removed (``storage/replica_removal.py``).
``storage/hand_over.py`` moves a sealed log into a file of its own, and drops the bytes it moved.

An order comes from the coordinator (made by ``drop`` and ``without_copies`` in its
``state/records.py``, for which ``decisions/`` decides) and never expires, because a segment id is
never used again. The replica loses its role at once. Its files are removed on a separate thread, so
that neither appends nor the probe that heartbeats wait for (R49) ever wait for an unlink. That
thread takes orders in groups, each with one synced commit before the first unlink and one after the
last (R69), and a pause between two groups: the syncs of appends go to the same disk.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from icecore.errors import IcecoreError
from icecore.model import CoordinatorEpoch, Segment, SegmentId
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.identity.node_report import NodeReport
from icecore_node.ports import DiskFailedError, DiskLostError, WorkerQueue
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.storage.port import Store

_log = logging.getLogger(__name__)

RETRY_MS_MAX = 60_000.0
GROUP_MAX = 16
"""Maximum number of segments in one group: the creation of a segment waits for one group at
most."""
GROUP_EVERY_MS = 100
"""Milliseconds between two groups: appends have the disk in between, and a large deletion may take
its time."""


@dataclass(slots=True)
class _Deletion:
    segment_id: SegmentId
    coordinator_epoch: CoordinatorEpoch
    future: "asyncio.Future[None]"
    error: IcecoreError | None = None


class _Turns:
    """Says when each deletion may begin: ``GROUP_MAX`` of them at once, the next ones later."""

    def __init__(self) -> None:
        self._begins_ms = -math.inf
        self._left = 0

    def take(self, now_ms: float) -> float:
        """Milliseconds to wait; deletions that come one by one wait for nothing."""
        next_ms = self._begins_ms + GROUP_EVERY_MS
        if not self._left or now_ms >= next_ms:
            self._begins_ms, self._left = max(now_ms, next_ms), GROUP_MAX
        self._left -= 1
        return max(0.0, self._begins_ms - now_ms)


class FileDeletions:
    """All delete orders of a node. For the loop; only ``_process`` runs on the thread."""

    def __init__(
        self, context: NodeContext, table: ReplicaTable, orders: Orders, report: NodeReport
    ) -> None:
        self._context = context
        self._report = report
        self._table = table
        self._orders = orders
        self._turns = _Turns()
        self._wanted: dict[SegmentId, Segment | None] = {}
        """Segments that are being deleted. None: the coordinator ordered it. Else the newest record
        that calls the copy of this node surplus."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue: WorkerQueue[_Deletion] = context.executor.worker(
            "deletions", self._process, self._deliver, group_items_max=GROUP_MAX
        )

    def order(self, segment_id: SegmentId) -> None:
        """Carry out one order soon, also for a segment that is just being created here."""
        self._orders.note_deleted(segment_id)
        self._orders.overtake(segment_id, "it is deleted")
        replica = self._table.get(segment_id)
        if replica is not None:
            self._table.retire(replica)
        self._want(segment_id, None)

    def drop_surplus(self, record: Segment) -> None:
        """Drop the copy of a segment of which there are enough others (R93), if nothing newer is
        known of it: then a copy was made since. Another one may be made later."""
        segment_id = record.segment_id
        if self._is_newer(record):
            return
        self._orders.overtake(segment_id, "there are enough copies of it")
        self._want(segment_id, record)

    def _is_newer(self, record: Segment) -> bool:
        """Return whether the replica here was given another record than this one."""
        if self._orders.was_copied(record.segment_id, record.version):
            return True
        replica = self._table.get(record.segment_id)
        known = replica.segment if replica is not None else record
        return known is None or known.version != record.version

    def _want(self, segment_id: SegmentId, surplus: Segment | None) -> None:
        """Start a task for a segment if there is none. It goes by the newest request; an order to
        delete is never replaced."""
        is_begun = segment_id in self._wanted
        if surplus is None or self._wanted.get(segment_id, surplus) is not None:
            self._wanted[segment_id] = surplus
        if not is_begun:
            task = self._context.tasks.start(self._carry_out(segment_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, segment_id: SegmentId) -> None:
        """Try until the segment is deleted: the coordinator repeats the order only on the next
        stream. A segment on a lost disk waits for that (R83)."""
        wait_ms: float = self._context.settings.timing.deletion_retry_ms
        try:
            while True:
                turn_ms = self._turns.take(self._context.clock.monotonic_ms())
                await asyncio.sleep(turn_ms / 1000)
                try:
                    return await self._delete(segment_id)
                except IcecoreError as error:
                    event(_log, logging.WARNING, "not_deleted", segment_id=segment_id, error=error)
                    if isinstance(error, DiskLostError):
                        return
                await asyncio.sleep(wait_ms / 1000)
                wait_ms = min(2 * wait_ms, RETRY_MS_MAX)
        finally:
            del self._wanted[segment_id]

    async def _delete(self, segment_id: SegmentId) -> None:
        """Delete a segment when no thread changes its log any more. No new work on it begins,
        because the replica has lost its role."""
        async with self._orders.alone(segment_id):
            replica, surplus = self._table.get(segment_id), self._wanted[segment_id]
            if surplus is not None:
                if self._is_newer(surplus):
                    return
                self._orders.note_dropped(segment_id, surplus.version)
            if replica is not None:
                self._table.retire(replica)
                await replica.log.worker.run(_nothing)
                await self._remove(replica)
                self._table.remove(replica)
                event(_log, logging.INFO, "deleted", segment_id=segment_id)
            self._report.report_deleted(segment_id)

    async def _remove(self, replica: Replica) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.submit(
            _Deletion(replica.segment_id, self._context.identity.coordinator_epoch, future)
        )
        await future

    def _process(self, group: list[_Deletion]) -> list[_Deletion]:
        """Delete a group, on the thread. An order is carried out even if another one of its group
        has a newer coordinator epoch."""
        coordinator_epoch = max(each.coordinator_epoch for each in group)
        error = _delete(self._context.store, [each.segment_id for each in group], coordinator_epoch)
        for each in group if error is not None else ():
            # At least one of them can't be deleted: try each alone.
            each.error = _delete(self._context.store, [each.segment_id], coordinator_epoch)
        return group

    def _deliver(self, group: object) -> None:
        assert isinstance(group, list)
        for each in group:
            if each.future.done():
                continue
            if each.error is not None:
                each.future.set_exception(each.error)
            else:
                each.future.set_result(None)

    def close(self) -> None:
        """Take no more orders. What still waits is ordered again and done by the next process."""
        for task in self._tasks:
            task.cancel()
        self._queue.close()


def _delete(
    store: Store, segment_ids: Sequence[SegmentId], coordinator_epoch: CoordinatorEpoch
) -> IcecoreError | None:
    """Delete, and return why it failed. A failed disk ends the process (see Executor.worker)."""
    try:
        store.removal.delete(segment_ids, coordinator_epoch)
    except DiskFailedError:
        raise
    except IcecoreError as error:
        return error
    return None


def _nothing() -> None:
    """An operation that only passes through the queue."""
