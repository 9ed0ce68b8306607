"""The fixed pool of I/O workers: the only place where a partition's bytes are written.

A partition always goes to the same worker, so its appends and the operations on its log (fence,
truncate, seal, …) keep their order without locks. A worker takes everything that waits for it,
writes it, syncs each touched file once, writes one index batch, and hands all results to the loop
in one call: the cost of an fsync and of a thread switch is shared by the whole group. What may
wait is bounded by the callers (bytes in flight of produces, credits of replication).

Order within a group: runs of appends go to ``Store.append_group``; an operation ends the
run before it, so it sees a log whose appends are all durable.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, TypeVarTuple

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_node.io.tail_cache import TailCache
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import DiskFailedError, Executor, WorkerQueue
from icecore_node.storage.engine import AppendRequest, LogTail
from icecore_node.storage.port import Store

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)


class AppendOwner(Protocol):
    """Who gets told about finished appends, on the loop, once per group."""

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


@dataclass(slots=True)
class _Operation:
    function: Callable[..., Any]
    args: tuple[object, ...]
    future: "asyncio.Future[Any]"
    result: Any = None
    error: IcecoreError | None = None


class IoWorker:
    """One worker of the pool."""

    def __init__(
        self,
        name: str,
        store: Store,
        executor: Executor,
        clock: Clock,
        metrics: NodeMetrics,
        group_items_max: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._queue: WorkerQueue[_Append | _Operation] = executor.worker(
            name, self._process, self._deliver, group_items_max=group_items_max
        )

    def append(self, request: AppendRequest, owner: AppendOwner) -> None:
        """Enqueue an append; ``owner.on_appended`` is called when its group is durable."""
        self._queue.submit(_Append(request, owner))

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking function after all appends enqueued so far. Raises what it raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.submit(_Operation(function, args, future))
        return await future

    def close(self) -> None:
        """Finish what is queued, then end."""
        self._queue.close()

    def _process(self, group: list[_Append | _Operation]) -> list[_Append | _Operation]:
        """On the worker's thread. Errors of a disk end the process (see Executor.worker)."""
        run: list[AppendRequest] = []
        for item in group:
            if isinstance(item, _Append):
                run.append(item.request)
                continue
            self._append(run)
            run = []
            try:
                item.result = item.function(*item.args)
            except DiskFailedError:
                raise
            except IcecoreError as error:
                item.error = error
        self._append(run)
        return group

    def _append(self, run: list[AppendRequest]) -> None:
        if not run:
            return
        started_ms = self._clock.monotonic_ms()
        self._store.append_group(run)
        self._metrics.group_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1000)
        self._metrics.group_appends.observe(len(run))
        self._metrics.group_bytes.observe(
            sum(mark.length_bytes for request in run for mark in request.marks)
        )

    def _deliver(self, group: object) -> None:
        """On the loop: tell owners first (acks), then those who await operations."""
        assert isinstance(group, list)
        outcome: dict[int, tuple[AppendOwner, LogTail | None, IcecoreError | None]] = {}
        operations: list[_Operation] = []
        for item in group:
            if isinstance(item, _Operation):
                operations.append(item)
                continue
            owner, request = item.owner, item.request
            _, tail, error = outcome.get(id(owner), (owner, None, None))
            if request.error is None:
                tail = request.tail
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
    ) -> None:
        self._workers = [
            IoWorker(f"io-{number}", store, executor, clock, metrics, group_items_max)
            for number in range(workers)
        ]

    def worker_for(self, topic_id: bytes, partition: int) -> IoWorker:
        """The worker of a partition; it never changes."""
        slot = zlib.crc32(partition.to_bytes(4, "little"), zlib.crc32(topic_id))
        return self._workers[slot % len(self._workers)]

    async def probe(self) -> None:
        """Return when every worker has finished what it holds now, which proves that disks move."""
        await asyncio.gather(*(worker.run(_nothing) for worker in self._workers))

    def close(self) -> None:
        """Finish all queues and end all threads."""
        for worker in self._workers:
            worker.close()


@dataclass(frozen=True, slots=True)
class LogIo:
    """Where the logs of a node are kept: who stores them, who writes them, what is in memory."""

    store: Store
    pool: IoPool
    cache: TailCache


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
