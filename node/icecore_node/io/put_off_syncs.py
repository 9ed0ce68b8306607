"""Syncs of what a worker has written without one, on a thread beside it.

Logs with ``flush_mode=async`` are written and not synced; how soon they must be is said by
``AppendRequest.sync_within_ms``. The worker goes on writing to the same files meanwhile, so nobody
who produces waits for a disk that keeps up. What is due first takes all others along; one sync is
under way at a time, and what comes due during it shares the next. One that fails ends the process,
one that could not even be tried is tried again.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_node.ports import DiskFailedError, Executor, WorkerQueue

RETRY_MS: Final = 1_000

_log = logging.getLogger(__name__)


class Syncs(Protocol):
    """The part of the store that syncs what logs have put off. Raises as ``LateSyncs.sync``."""

    def sync(self, segment_ids: Sequence[SegmentId]) -> None: ...


@dataclass(slots=True)
class _Sync:
    segment_ids: Sequence[SegmentId]
    """Logs to sync; empty = a probe, which only passes through the queue."""
    future: "asyncio.Future[None]"
    error: IcecoreError | None = None


class PutOffSyncs:
    """Late syncs of the logs of one I/O worker. Everything but the syncs happens on the loop."""

    def __init__(self, name: str, store: Syncs, executor: Executor, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._due: set[SegmentId] = set()
        """Logs that must be synced when the timer ends."""
        self._timer: asyncio.Handle | None = None
        self._timer_at_s = 0.0
        """On the loop's clock. A timer itself does not tell on every loop."""
        self._is_syncing = False
        self._is_closed = False
        self.syncing_since_ms: float | None = None
        """Set while a sync is under way."""
        self._queue: WorkerQueue[_Sync] = executor.worker(
            name, self._process, self._deliver, group_items_max=1
        )

    def note(self, segment_id: SegmentId, within_ms: int) -> None:
        """A log was written, and has so long until it must be synced."""
        if self._is_closed or (within_ms and segment_id in self._due):
            return
        self._due.add(segment_id)
        loop = asyncio.get_running_loop()
        at_s = loop.time() + within_ms / 1000
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer, self._timer_at_s = loop.call_at(at_s, self._begin), at_s

    async def probe(self) -> None:
        """Return when what is under way now has ended."""
        await self._submit(())

    def close(self) -> None:
        """End what is under way, then the thread. What is due is left to the end of the store."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._queue.close()

    def _begin(self) -> None:
        if self._is_syncing:  # its end begins the next one
            return
        self._timer = None
        segment_ids, self._due = list(self._due), set()
        self._is_syncing = True
        done = self._submit(segment_ids)
        done.add_done_callback(lambda done: self._ended(segment_ids, done))

    def _submit(self, segment_ids: Sequence[SegmentId]) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.submit(_Sync(segment_ids, future))
        return future

    def _ended(self, segment_ids: Sequence[SegmentId], done: "asyncio.Future[None]") -> None:
        self._is_syncing = False
        error = None if done.cancelled() else done.exception()
        if error is not None:  # a shortage: it could not even be tried
            event(_log, logging.WARNING, "sync_put_off", segment_ids=segment_ids, error=error)
            for segment_id in segment_ids:
                self.note(segment_id, RETRY_MS)
        if (
            self._timer is not None
            and not self._is_closed
            and self._timer_at_s <= asyncio.get_running_loop().time()
        ):
            self._timer.cancel()
            self._begin()

    def _process(self, items: list[_Sync]) -> list[_Sync]:
        """On the thread. Errors of a disk end the process (see Executor.worker)."""
        for item in items:
            if not item.segment_ids:
                continue
            self.syncing_since_ms = self._clock.monotonic_ms()
            try:
                self._store.sync(item.segment_ids)
            except DiskFailedError:
                raise
            except IcecoreError as error:
                item.error = error
            self.syncing_since_ms = None
        return items

    def _deliver(self, items: object) -> None:
        assert isinstance(items, list)
        for item in items:
            if item.future.done():
                continue
            if item.error is not None:
                item.future.set_exception(item.error)
            else:
                item.future.set_result(None)
