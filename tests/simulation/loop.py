"""An asyncio event loop with a virtual clock and a seeded order of callbacks.

No selector and no thread: when nothing is ready the clock jumps to the next timer, so hours pass
in seconds, and the same seed gives the same run. asyncio promises that callbacks run in the order
they were scheduled; production code may rely on it, so shuffling is a knob per run.

What this takes from CPython beyond the documented API (checked for 3.11-3.14), all in this file:
``BaseEventLoop._run_once`` (called by ``run_forever`` until ``stop``), ``Handle._run`` (runs a
callback in its context and reports its exception) and ``TimerHandle``'s call of
``loop._timer_handle_cancelled`` (inherited, without effect here).
"""

import asyncio
import hashlib
import heapq
import inspect
import random
import struct
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, NoReturn, TypeVar

from tests.simulation.process import PROCESS, ProcessKilled, SimProcess

T = TypeVar("T")

EVENTS_PER_INSTANT_MAX = 200_000


class SimulationError(AssertionError):
    """The simulated world cannot go on; never raised by the code under test."""


class DeadlockError(SimulationError):
    """Nothing is ready and no timer is set: everybody waits for ever."""


class LivelockError(SimulationError):
    """Callbacks schedule each other without end and without time passing."""


class SimFuture(asyncio.Future[T]):
    """A future whose hash is its serial number, so that sets of futures iterate repeatably."""

    def __init__(self, serial: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class SimTask(asyncio.Task[T]):
    """A task whose hash is its serial number: ``TaskGroup`` cancels from a set."""

    def __init__(
        self, coroutine: Any, serial: int, process: SimProcess | None, **options: Any
    ) -> None:
        self._serial = serial
        self.process = process
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._serial


class SimLoop(asyncio.BaseEventLoop):
    """See the module. ``time()`` is virtual seconds since the start of the run.

    Args:
        seed: Of the order of callbacks; nothing else depends on it.
        shuffle: Probability that the callbacks of one turn run in a random order; 0 = always in
            the order scheduled, as asyncio promises.
    """

    def __init__(self, seed: int, *, shuffle: float = 0.0) -> None:
        super().__init__()
        self._now_s = 0.0
        self._rng = random.Random(f"loop {seed}")
        self._shuffle = shuffle
        self._queue: list[tuple[asyncio.Handle, SimProcess | None]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle, SimProcess | None]] = []
        self._serial = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._events_at_instant = 0
        self.events = 0
        self.trace_log: list[str] | None = None
        """Set to a list to keep every traced event as text."""
        self.failures: list[str] = []
        """Exceptions that nobody handled, of processes that were alive."""
        self.set_exception_handler(self._on_exception)

    # --- time and trace -----------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def trace(self, event: str) -> None:
        """Put an event of the world into the rolling hash."""
        self._hash.update(f"{self._now_s!r} {event}\n".encode())
        if self.trace_log is not None:
            self.trace_log.append(f"{self._now_s:12.6f} {event}")

    def trace_hash(self) -> str:
        """Hash over the time and owner of every callback and over all traced events so far."""
        return self._hash.hexdigest()

    def next_serial(self) -> int:
        """A number unique in this run."""
        self._serial += 1
        return self._serial

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("the simulated loop is closed")

    # --- scheduling ---------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next turn, for the process of its context."""
        self._check_open()
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._queue.append((handle, context.get(PROCESS)))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """The same as ``call_soon``: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual time."""
        self._check_open()
        context = copy_context() if context is None else context
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        entry = (when, self.next_serial(), timer, context.get(PROCESS))
        heapq.heappush(self._timers, entry)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        """A future with a repeatable hash."""
        return SimFuture(self.next_serial(), loop=self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        """A task with a repeatable hash that belongs to the process of its context."""
        self._check_open()
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        task: SimTask[T] = SimTask(coro, self.next_serial(), process, loop=self, **options)
        if process is not None:
            process.adopt(task)
        return task

    def resume(self, process: SimProcess) -> None:
        """End a pause: what became due meanwhile runs now."""
        process.paused = False
        parked, process.parked = process.parked, []
        self._queue.extend(parked)

    def stand_still(
        self, process: SimProcess, duration_s: float, then: Callable[[], object]
    ) -> None:
        """Hold back all callbacks of a process, as blocking work on its loop does.

        Args:
            process: It is still there, and may be paused or killed meanwhile.
            duration_s: How long.
            then: The first that runs afterwards.
        """
        handle = asyncio.Handle(then, (), self, process.context.copy())

        def go_on() -> None:
            process.stands_still = False
            if process.paused:
                process.parked.insert(0, (handle, process))
            elif process.alive:
                handle._run()
                self.resume(process)

        process.stands_still = True
        self.call_at(self._now_s + duration_s, go_on, context=Context())

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> NoReturn:
        """Forbidden: blocking work goes through the Executor port."""
        raise SimulationError(f"run_in_executor({func!r}) inside the simulation")

    def _run_once(self) -> None:
        """One turn: everything that is ready now."""
        self._collect_timers()
        if not self._queue:
            self._advance()
        batch, self._queue = self._queue, []
        if self._shuffle and len(batch) > 1 and self._rng.random() < self._shuffle:
            self._rng.shuffle(batch)
        for handle, process in batch:
            if handle.cancelled():
                continue
            if process is not None:
                if not process.may_run(self._now_s):
                    continue
                if (process.paused or process.stands_still) and process.alive:
                    process.parked.append((handle, process))
                    continue
            self.events += 1
            self._events_at_instant += 1
            life = 0 if process is None else process.life
            self._hash.update(struct.pack("<dq", self._now_s, life))
            handle._run()
        if self._events_at_instant > EVENTS_PER_INSTANT_MAX:
            raise LivelockError(f"{self._events_at_instant} callbacks at {self._now_s:.6f} s")

    def _collect_timers(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now_s:
            _, _, timer, process = heapq.heappop(timers)
            self._queue.append((timer, process))

    def _advance(self) -> None:
        """Jump to the next timer that was not cancelled."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise DeadlockError(f"nothing ready and no timer at {self._now_s:.6f} s")
        self._now_s = max(self._now_s, timers[0][0])
        self._events_at_instant = 0
        self._collect_timers()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note an exception that no task handled: a bug, unless the process is dead."""
        future = context.get("future")
        process = future.process if isinstance(future, SimTask) else PROCESS.get()
        if process is not None and not process.alive:
            return
        error = context.get("exception")
        if isinstance(error, ProcessKilled):
            return  # a callback in the instant of its process's death
        if error is None and "destroyed" in str(context.get("message")):
            return  # a pending task of a killed process or of an abandoned world
        where = traceback.extract_tb(error.__traceback__)[-1:] if error is not None else ""
        self.failures.append(f"{process}: {context.get('message')}: {error!r} {where}")

    def close(self) -> None:
        """Drop everything that is still scheduled."""
        for task in asyncio.all_tasks(self):
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == (
                inspect.CORO_CREATED
            ):
                coroutine.close()  # nobody will ever start it, and nobody forgot to
        self._queue.clear()
        self._timers.clear()
        super().close()
