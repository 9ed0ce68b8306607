"""The one thread with an event loop on which all blocking clients of a process live."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from icecore.errors import ForkedError, InvalidRequestError, UnavailableError

_T = TypeVar("_T")

LOOK_S: Final = 0.5
"""So often who waits looks whether the thread is still there: at the end of a process, and after
what no callback may do, nobody else would say so."""


def tell_unless_idle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As asyncio does, but for what gRPC before 1.80 raises in a process with several loops.

    All of them wake up for the byte that one of them reads; for the others there is nothing to do.
    """
    is_idle = isinstance(context.get("exception"), BlockingIOError)
    if not (is_idle and "PollerCompletionQueue" in context.get("message", "")):
        loop.default_exception_handler(context)


class Background:
    """One thread with one event loop, started at first use; a daemon, it ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.is_forked = False
        """This process is a fork: the thread stayed behind, and locks may be held for ever."""
        os.register_at_fork(after_in_child=self._note_fork)

    def _note_fork(self) -> None:
        self.is_forked = self._loop is not None

    def check(self) -> None:
        """To be asked before any lock is taken, and while one waits.

        Raises:
            ForkedError: The clients belong to the parent of this process.
            UnavailableError: Nobody works for them any more.
        """
        if self.is_forked:
            raise ForkedError(
                "this process is a fork of one that used icecore.blocking: make clients after the "
                "fork only, or begin processes with multiprocessing's start method spawn"
            )
        if self.is_gone:
            raise UnavailableError(
                "the client's own thread has ended, and with it all blocking clients of this "
                "process"
            )

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Raises ForkedError, and UnavailableError when the process ends."""
        self.check()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_exception_handler(tell_unless_idle)
                # Made here: Python 3.13 takes one that was made before a fork for started.
                self._thread = threading.Thread(
                    target=self._run, name="icecore-client", daemon=True
                )
                self._thread.start()
            return self._loop

    @property
    def is_own_thread(self) -> bool:
        """Return whether the caller is on the loop's thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """The coroutine's result. Raises TimeoutError after ``timeout_s`` and gives it up."""
        try:
            loop = self.loop
            if self.is_own_thread:  # a finalizer, or a callback of ours
                raise InvalidRequestError("the client's own thread can't wait for itself")
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return self._result(future, timeout_s)
        except BaseException:
            future.cancel()
            raise

    def _result(self, future: "Future[_T]", timeout_s: float | None) -> _T:
        """Wait for a result, as long as somebody can bring it about."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = LOOK_S if end_s is None else min(LOOK_S, end_s - time.monotonic())
            try:
                return future.result(max(0.0, left_s))
            except TimeoutError:
                if future.done():  # it may be what the coroutine has raised
                    return future.result()
                if end_s is not None and time.monotonic() >= end_s:
                    raise
            self.check()

    @property
    def is_gone(self) -> bool:
        """Return whether nobody works for blocking clients of this process any more: it is a fork,
        or it ends, or the thread has ended."""
        has_ended = self._thread is not None and not self._thread.is_alive()
        return self.is_forked or sys.is_finalizing() or has_ended

    def make(self, make: Callable[[], _T]) -> _T:
        """An object that belongs to the loop is made on it."""

        async def call() -> _T:
            return make()

        return self.run(call())

    def iterate(self, found: AsyncIterator[_T]) -> Iterator[_T]:
        """One crossing for each of them."""
        end = object()

        async def next_or_end() -> _T | object:
            return await anext(found, end)

        while (each := self.run(next_or_end())) is not end:
            yield each  # type: ignore[misc]


background = Background()
