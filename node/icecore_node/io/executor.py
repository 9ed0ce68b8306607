"""Real threads behind the ``Executor`` port: I/O workers that drain groups, and a reader pool.

Heartbeats and promises have threads of their own (``run_first``): were all readers at work on new
files or remote reads, the node would lose its lease.

A worker blocks for one item, takes what else has queued up meanwhile, processes the group on its
thread and hands the result to the loop in one call, so that neither side wakes the other per
item. An exception on a worker ends the process: whatever it was writing is in doubt. While a worker
has nothing to do, the loop may process a group itself (``run_here``), and then nobody is woken.
"""

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar, TypeVarTuple

from icecore.process.log import event
from icecore_node.io.thread_pool import ThreadPool
from icecore_node.ports import DiskFailedError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FIRST_THREADS = 2
EXIT_STATUS = 70
"""EX_SOFTWARE: a supervisor restarts the process, which then recovers from disk."""

_log = logging.getLogger(__name__)


def _exit_process(status: int) -> None:
    logging.shutdown()
    os._exit(status)


class ThreadWorker(Generic[T]):
    """One thread and its queue."""

    def __init__(
        self,
        name: str,
        process: Callable[[list[T]], object],
        deliver: Callable[[object], None],
        loop: asyncio.AbstractEventLoop,
        group_items_max: int,
        fatal: Callable[[int], None],
    ) -> None:
        self._name = name
        self._process = process
        self._deliver = deliver
        self._loop = loop
        self._group_items_max = group_items_max
        self._fatal = fatal
        self._closed = False
        self._undelivered = 0
        """Submitted items whose result has not reached the loop. Loop only."""
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Return whether the thread has nothing to do and all its results were delivered."""
        return not self._undelivered and not self._closed

    def submit(self, item: T) -> None:
        """Enqueue; never blocks. Raises RuntimeError after ``close``."""
        if self._closed:
            raise RuntimeError(f"worker {self._name} is closed")
        self._undelivered += 1
        self._queue.put(item)

    def run_here(self, group: list[T]) -> None:
        """Process and deliver on the caller's thread, which is the loop's, while it is idle."""
        assert self.is_idle, f"worker {self._name} is not idle"
        self._undelivered = len(group)
        try:
            result = self._process(group)
        except BaseException as error:
            self._fail(error)
            return
        self._delivered(result, len(group))

    def close(self) -> None:
        """Process what is queued, then end the thread; does not wait for it."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _take_group(self) -> tuple[list[T], bool]:
        get, get_nowait = self._queue.get, self._queue.get_nowait
        group: list[T] = []
        item = get()
        try:
            while item is not None:
                group.append(item)
                if len(group) >= self._group_items_max:
                    return group, True
                item = get_nowait()
        except queue.Empty:
            return group, True
        return group, False

    def _run(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._take_group()
            if not group:
                continue
            try:
                result = self._process(group)
            except BaseException as error:
                self._fail(error)
                return
            try:
                self._loop.call_soon_threadsafe(self._delivered, result, len(group))
            except RuntimeError:
                event(_log, logging.WARNING, "results_dropped", worker=self._name)
                return

    def _delivered(self, result: object, items: int) -> None:
        self._undelivered -= items
        try:
            self._deliver(result)
        except Exception as error:  # somebody would wait for ever for what was not told
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the worker and end the process: the results of its group are in doubt."""
        name = self._name
        event(_log, logging.CRITICAL, "worker_failed", worker=name, error=error, exc_info=error)
        self._closed = True
        self._queue.put(None)
        self._fatal(EXIT_STATUS)


def _be_nice(niceness: int) -> None:
    """Set the niceness of the calling thread alone, as Linux does."""
    if niceness:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


class ThreadExecutor:
    """Threads of one node. Create it, and its workers, on the running loop."""

    def __init__(
        self,
        *,
        reader_threads: int = 8,
        niceness: int = 0,
        fatal: Callable[[int], None] = _exit_process,
    ) -> None:
        """
        Args:
            reader_threads: Size of the pool behind ``run``.
            niceness: Of these threads: the higher, the more they leave to all others (Linux).
            fatal: Called with an exit status when a worker fails; replaced in tests only.
        """
        self._readers = ThreadPool(reader_threads, "reader", partial(_be_nice, niceness))
        self._first = ThreadPool(FIRST_THREADS, "first")
        self._workers: list[ThreadWorker[object]] = []
        self._fatal = fatal

    def worker(
        self,
        name: str,
        process: Callable[[list[T]], object],
        deliver: Callable[[object], None],
        *,
        group_items_max: int,
    ) -> ThreadWorker[T]:
        """Start a worker thread that delivers to the running loop."""
        loop = asyncio.get_running_loop()
        worker = ThreadWorker(name, process, deliver, loop, group_items_max, self._fatal)
        self._workers.append(worker)  # type: ignore[arg-type]
        return worker

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> Awaitable[T]:
        """Run a blocking function on a reader thread; its exception comes to who awaits it."""
        return self._readers.run(self._guarded, function, *args)

    def run_first(self, function: Callable[[*Ts], T], *args: *Ts) -> Awaitable[T]:
        """As ``run``, on threads that nothing slow is given to."""
        return self._first.run(self._guarded, function, *args)

    def _guarded(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """On the reader's thread: it ends the process at once, also when nobody waits."""
        try:
            return function(*args)
        except DiskFailedError as error:
            event(_log, logging.CRITICAL, "disk_failed", error=error, exc_info=error)
            self._fatal(EXIT_STATUS)
            raise

    def close(self) -> None:
        """Let all queues run dry, then end and join all threads."""
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.join()
        self._readers.close()
        self._first.close()
