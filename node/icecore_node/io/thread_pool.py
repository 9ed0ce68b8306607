"""Threads that run functions for the loop; the one that ended last goes on first.

``ThreadPoolExecutor`` wakes two threads for each function, for who takes one out of its queue wakes
the next who waits there, and hands a result over by a future of its own and two callbacks. An idle
thread waits for a lock of its own here, and a result goes to the loop's future in one call: less
than half of the time around a short read (docs/adr/tried.md, "Indexes and look-ups").
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_Call: TypeAlias = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """At most so many threads, made as they are needed. ``run`` and ``close`` belong to a loop.

    Args:
        threads_max: More calls than these wait for their turn, first come first.
        name: Of the threads, with a number behind it.
        initialize: Called by each thread before anything else; must not raise.
    """

    def __init__(
        self, threads_max: int, name: str, initialize: Callable[[], object] = lambda: None
    ) -> None:
        self._threads_max = threads_max
        self._name = name
        self.initialize = initialize
        self._threads: list[_PoolThread] = []
        self._lock = threading.Lock()
        self._idle: list[_PoolThread] = []
        self._waiting: deque[_Call] = deque()
        self._is_closed = False

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Call it on a thread; its result, or its exception, comes to the running loop.

        A call whose future is cancelled before a thread has come to it is left out.

        Raises:
            RuntimeError: After ``close``, or there is no thread and the system has none to give.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call: _Call = future, function, args
        if not self._give(call, self._threads_max):
            try:
                thread = _PoolThread(self, f"{self._name}_{len(self._threads)}", call)
            except RuntimeError:  # the limit of the system: those that there are do it, too
                if not self._threads:
                    raise
                self._give(call, len(self._threads))
            else:
                self._threads.append(thread)
        return future

    def _give(self, call: _Call, threads_max: int) -> bool:
        """To an idle thread, or to the queue where there are so many; False for a new one."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"threads {self._name} are closed")
            thread = self._idle.pop() if self._idle else None
            if thread is None and len(self._threads) >= threads_max:
                self._waiting.append(call)
                return True
        if thread is not None:
            thread.wake(call)
        return thread is not None

    def close(self) -> None:
        """Let what waits run, then end and join all threads."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.wake(None)
        for thread in self._threads:
            thread.join()

    def next_call(self, thread: "_PoolThread") -> _Call | None:
        """Wait for the next call of this thread and return it; None when the thread must end."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._is_closed:
                return None
            self._idle.append(thread)
        return thread.wait()


class _PoolThread:
    """One of them."""

    def __init__(self, pool: ThreadPool, name: str, first: _Call) -> None:
        self._pool = pool
        self._given: _Call | None = first
        self._is_woken = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self, call: _Call | None) -> None:
        """Give it something to do, or nothing more; only while it is idle, and once."""
        self._given = call
        self._is_woken.release()

    def wait(self) -> _Call | None:
        """On the thread: what it was given."""
        self._is_woken.acquire()
        call, self._given = self._given, None
        return call

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self) -> None:
        self._pool.initialize()
        call = self.wait()
        while call is not None:
            _answer(call)
            call = None  # nothing of it stays in memory meanwhile
            call = self._pool.next_call(self)


def _answer(call: _Call) -> None:
    future, function, args = call
    if future.cancelled():
        return
    result: Any = None
    error: BaseException | None = None
    try:
        result = function(*args)
    except StopIteration as stop:  # futures do not take it
        error = RuntimeError(f"{function} raised StopIteration")
        error.__cause__ = stop
    except BaseException as raised:
        error = raised
    try:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            future.get_loop().call_soon_threadsafe(_settle, future, result, error)
    finally:
        # An error has this frame: it and all that its frames hold would wait for the garbage
        # collector, if this one held it or its future.
        del call, future, error


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
