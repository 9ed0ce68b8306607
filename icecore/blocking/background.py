"""The one thread with an event loop on which all blocking clients of a process live."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from icecore.errors import ForkedError, InvalidRequestError

_T = TypeVar("_T")


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
        """Raises ForkedError; to be asked before any lock is taken."""
        if self.is_forked:
            raise ForkedError(
                "this process is a fork of one that used icecore.blocking: make clients after the "
                "fork only, or begin processes with multiprocessing's start method spawn"
            )

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Raises ForkedError."""
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
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

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
