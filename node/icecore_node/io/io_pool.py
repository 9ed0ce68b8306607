"""The fixed pool of I/O workers: the only place where a partition's bytes are written, by a
worker or, while syncs are short, by the loop itself.

A partition always goes to the same worker, so its appends and the operations on its log (fence,
truncate, seal, …) keep their order without locks. A worker takes everything that waits for it,
writes it, syncs each touched file once, writes one index batch, and hands all results to the loop
in one call: the cost of an fsync and of a thread switch is shared by the whole group. What may
wait is bounded by the callers (bytes in flight of produces, credits of replication).

A lone small append has nobody to share with. If its worker is idle, it waits until the loop's
turn ends; by then its batches have left for the followers. Where recent syncs were short
(``ShortSyncs``), the loop then writes and syncs it itself; else it goes to the worker, a thread
with which the loop has to share the interpreter. The worker and the loop never process
at the same time, and everything else is as on the worker, the end of the process included. Appends
that wait for no disk (engine ``memory``) need no worker: while theirs is idle, the loop takes all
of a turn.

Logs with ``flush_mode=async`` are written and not synced (``AppendRequest.sync_within_ms``); that
happens beside their worker (``put_off_syncs.py``).

Order within a group: runs of appends go to ``Store.append_group``; an operation ends the
run before it, so it sees a log whose appends are all durable.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_node.io.put_off_syncs import PutOffSyncs
from icecore_node.io.tail_cache import TailCache
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import DiskFailedError, Executor, WorkerQueue
from icecore_node.storage.engine import AppendRequest, LogTail, io_worker
from icecore_node.storage.port import Store

# --- short syncs ----------------------------------------------------------------------------------

# Whether appends may be synced on the loop's own thread: only while syncs take next to no time.
#
# A change of threads costs a lone small append more than its sync does on a healthy disk. But a
# sync on the loop holds back leases, fences and every other partition, so one long sync ends it
# for a while: the longer it was, the more short ones it takes on the worker before the disk is
# trusted again. The judgement counts syncs and asks no clock.


PATIENCE_MIN: Final = 4
"""Short syncs in a row, on a worker, before the first one on the loop."""
PATIENCE_MAX: Final = 1024
_PATIENCE_PER_LIMIT: Final = 2
"""Or, if more, so many for each multiple of the limit that a long sync lasted."""


class ShortSyncs:
    """Tracks whether recent syncs of all I/O workers of a node were short.

    Args:
        limit_ms: A sync that takes longer is a long one; 0 = nothing is ever synced on the loop.
    """

    def __init__(self, limit_ms: float) -> None:
        self._limit_ms = limit_ms
        self._wanted = PATIENCE_MIN
        """Short syncs until the disk is trusted."""

    def may_inline(self) -> bool:
        """Return whether the next sync may hold the loop."""
        return not self._wanted and self._limit_ms > 0

    def note(self, duration_ms: float) -> None:
        """One group was written and synced, on whichever thread."""
        if duration_ms <= self._limit_ms:
            if self._wanted:
                self._wanted -= 1
        elif self._limit_ms > 0:
            limits = min(duration_ms / self._limit_ms, PATIENCE_MAX)
            patience = max(PATIENCE_MIN, int(_PATIENCE_PER_LIMIT * limits))
            self._wanted = max(self._wanted, min(patience, PATIENCE_MAX))


T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)

LONE_APPENDS_MAX: Final = 2
"""In one turn of the loop, for one worker; more of them share a sync on the worker."""
LONE_BYTES_MAX: Final = 32 << 10


class AppendOwner(Protocol):
    """Gets the results of its appends on the loop, once per group: a leader, follower or copy."""

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        """``durable_tail`` after the group's last durable append; the first error, if any."""
        ...

    def on_broken(self, why: str) -> None:
        """``on_appended`` raised: the owner has lost track of its log."""
        ...


@dataclass(slots=True)
class _Append:
    request: AppendRequest
    owner: AppendOwner
    blocks: bool
    """It waits for a disk."""


@dataclass(slots=True)
class _Operation:
    function: Callable[..., Any]
    args: tuple[object, ...]
    future: "asyncio.Future[Any]"
    result: Any = None
    error: IcecoreError | None = None


@dataclass(slots=True)
class _Group:
    """Appends and operations that the worker processed together."""

    items: list[_Append | _Operation]
    appends_ms: list[float]
    """How long each run of appends took that waited for a disk."""


class IoWorker:
    """One worker of the pool."""

    def __init__(
        self,
        name: str,
        store: Store,
        executor: Executor,
        clock: Clock,
        metrics: NodeMetrics,
        *,
        group_items_max: int,
        syncs: ShortSyncs,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._syncs = syncs
        self._lone: list[_Append | _Operation] = []
        """Appends of this turn that wait for its end."""
        self._lone_blocking = 0
        """So many of them wait for a disk, with"""
        self._lone_bytes = 0
        self._lone_max = min(LONE_APPENDS_MAX, group_items_max)
        self._on_loop_since_ms: float | None = None
        """Set while the loop writes."""
        self._writing_since_ms: float | None = None
        """Set while a group is written, by whichever thread."""
        self._queue: WorkerQueue[_Append | _Operation] = executor.worker(
            name, self._process, self._deliver, group_items_max=group_items_max
        )
        self._put_off = PutOffSyncs(f"{name}-syncs", store, executor, clock)

    def append(self, request: AppendRequest, owner: AppendOwner) -> None:
        """Enqueue an append; ``owner.on_appended`` is called when its group is durable."""
        blocks = self._store.reader.appends_block(request.segment_id)
        item = _Append(request, owner, blocks)
        lone = self._lone
        if not lone:
            if not self._queue.is_idle:
                self._queue.submit(item)
                return
            self._lone_blocking = self._lone_bytes = 0
            asyncio.get_running_loop().call_soon(self._end_of_turn)
        lone.append(item)
        if blocks:
            self._lone_blocking += 1
            for mark in request.marks:
                self._lone_bytes += mark.length_bytes
            if self._lone_blocking > self._lone_max or self._lone_bytes > LONE_BYTES_MAX:
                self._hand_over()

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking function after all appends enqueued so far. Raises what it raises."""
        self._hand_over()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.submit(_Operation(function, args, future))
        return await future

    def close(self) -> None:
        """Finish what is queued, then end. What was put off is left to the end of the store."""
        self._put_off.close()
        self._hand_over()
        self._queue.close()

    async def probe(self) -> None:
        """Return when all that was asked for has been done, syncs that were put off and are under
        way included."""
        await asyncio.gather(self.run(_nothing), self._put_off.probe())

    def busy_ms(self, now_ms: float) -> float:
        """Return how long the oldest write or sync has been under way. From any thread."""
        began = (self._writing_since_ms, self._put_off.syncing_since_ms)
        return max((now_ms - each for each in began if each is not None), default=0.0)

    def _hand_over(self) -> None:
        """To the worker, in front of all that comes after."""
        lone, self._lone = self._lone, []
        for item in lone:
            self._queue.submit(item)

    def _end_of_turn(self) -> None:
        if self._lone_blocking and not self._syncs.may_inline():
            self._hand_over()
            return
        lone, self._lone = self._lone, []
        if lone:
            if self._lone_blocking:
                self._on_loop_since_ms = self._clock.monotonic_ms()
            self._queue.run_here(lone)

    def _process(self, items: list[_Append | _Operation]) -> _Group:
        """On the worker's thread, or the loop's. Errors of a disk end the process (see
        Executor.worker)."""
        group = _Group(items, [])
        run: list[_Append] = []
        for item in items:
            if isinstance(item, _Append):
                run.append(item)
                continue
            self._append(run, group.appends_ms)
            run = []
            try:
                item.result = item.function(*item.args)
            except DiskFailedError:
                raise
            except IcecoreError as error:
                item.error = error
        self._append(run, group.appends_ms)
        return group

    def _append(self, run: list[_Append], appends_ms: list[float]) -> None:
        if not run:
            return
        started_ms = self._writing_since_ms = self._clock.monotonic_ms()
        self._store.append_group([item.request for item in run])
        self._writing_since_ms = None
        elapsed_ms = self._clock.monotonic_ms() - started_ms
        if any(item.blocks for item in run):  # others say nothing about the disk
            appends_ms.append(elapsed_ms)
        self._metrics.group_seconds.observe(elapsed_ms / 1000)
        marks = [mark for item in run for mark in item.request.marks]
        self._metrics.group_appends.observe(len(marks))
        self._metrics.group_bytes.observe(sum(mark.length_bytes for mark in marks))

    def _deliver(self, group: object) -> None:
        """On the loop: tell owners first (acks), then those who await operations."""
        assert isinstance(group, _Group)
        self._note_syncs(group)
        outcome: dict[int, tuple[AppendOwner, LogTail | None, IcecoreError | None]] = {}
        operations: list[_Operation] = []
        for item in group.items:
            if isinstance(item, _Operation):
                operations.append(item)
                continue
            owner, request = item.owner, item.request
            _, tail, error = outcome.get(id(owner), (owner, None, None))
            if request.error is None:
                tail = request.tail
                if request.sync_within_ms is not None:
                    self._put_off.note(request.segment_id, request.sync_within_ms)
            outcome[id(owner)] = (owner, tail, error or request.error)
        for owner, tail, error in outcome.values():
            _tell(owner, tail, error)
        for operation in operations:
            if operation.future.done():
                continue
            if operation.error is not None:
                operation.future.set_exception(operation.error)
            else:
                operation.future.set_result(operation.result)

    def _note_syncs(self, group: _Group) -> None:
        since_ms, self._on_loop_since_ms = self._on_loop_since_ms, None
        if since_ms is not None:  # for as long as the loop stood still
            self._syncs.note(self._clock.monotonic_ms() - since_ms)
            return
        for elapsed_ms in group.appends_ms:
            self._syncs.note(elapsed_ms)


class IoPool:
    """All workers of a node."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        clock: Clock,
        metrics: NodeMetrics,
        *,
        workers: int,
        group_items_max: int,
        sync_on_loop_ms_max: float,
    ) -> None:
        syncs = ShortSyncs(sync_on_loop_ms_max)  # of all: they share the disk
        self._workers = [
            IoWorker(
                f"io-{number}",
                store,
                executor,
                clock,
                metrics,
                group_items_max=group_items_max,
                syncs=syncs,
            )
            for number in range(workers)
        ]

    def worker_for(self, topic_id: bytes, partition: int) -> IoWorker:
        """The worker of a partition; it never changes."""
        return self._workers[io_worker(topic_id, partition, len(self._workers))]

    async def probe(self) -> None:
        """Return when every worker has finished what it holds now, which proves that disks move."""
        await asyncio.gather(*(worker.probe() for worker in self._workers))

    def busy_ms(self, now_ms: float) -> float:
        """Return how long the oldest write has been under way; 0 when there is none. From any
        thread.
        """
        return max(worker.busy_ms(now_ms) for worker in self._workers)

    def close(self) -> None:
        """Finish all queues and end all threads."""
        for worker in self._workers:
            worker.close()


@dataclass(frozen=True, slots=True)
class LogIo:
    """The places of a node's logs: who stores them, who writes them, what is in memory."""

    store: Store
    pool: IoPool
    cache: TailCache
    changed: dict[SegmentId, None] = field(default_factory=dict)
    """Segments to report in the next heartbeat: durable end or life may have changed."""


def _tell(owner: AppendOwner, tail: LogTail | None, error: IcecoreError | None) -> None:
    """When one owner fails, it is told that it is broken; the others still get their results."""
    try:
        owner.on_appended(tail, error)
    except Exception as mistake:
        event(_log, logging.CRITICAL, "owner_broken", error=mistake, exc_info=mistake)
        try:
            owner.on_broken(f"the result of an append was not understood: {mistake!r}")
        except Exception as another:
            event(_log, logging.CRITICAL, "owner_broken", error=another, exc_info=another)


def _nothing() -> None:
    """An operation that only passes through the queue."""
