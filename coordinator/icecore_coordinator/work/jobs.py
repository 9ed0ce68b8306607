"""The jobs of a coordinator: what it does again and again, each in a loop of its own.

A ``Job`` says what is done, how often, what begins a turn before its time, and how long a rest
follows. ``Jobs`` runs all of them alike, and the tasks that they start. A job that fails ends the
coordinator, for without it this process would only look alive (R63): its successor finds all work
by looking. A metadata store without room ends no job. A task that fails is logged; what it did not
do is found by the next look. What should be tried again without that keeps its waits in a
``KeyedBackoff``, and raises nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from icecore.errors import NotCoordinatorError, OutOfSpaceError
from icecore.process.log import event
from icecore.rpc.ports import Clock

_log = logging.getLogger(__name__)

Step: TypeAlias = Callable[[], Awaitable[None] | None]


class Job:
    """One thing that a coordinator does again and again.

    Args:
        name: In logs.
        steps: A turn: one after the other.
        every_ms: Wait before each turn; a function is asked each time.
        wake: Begins the next turn before its time; set during a turn, it begins another one.
        is_first_at_once: The first turn does not wait.
        rests: Rest after each turn, in multiples of the time that the turn took.
    """

    def __init__(
        self,
        name: str,
        *steps: Step,
        every_ms: float | Callable[[], float],
        wake: asyncio.Event | None = None,
        is_first_at_once: bool = False,
        rests: float = 0.0,
    ) -> None:
        self.name = name
        self.is_first_at_once = is_first_at_once
        self._steps = steps
        self._every_ms = every_ms
        self._wake = wake
        self._rests = rests

    async def wait(self) -> None:
        """Wait until the next turn is due."""
        wait_ms = self._every_ms() if callable(self._every_ms) else self._every_ms
        if self._wake is None:
            await asyncio.sleep(wait_ms / 1000)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._wake.wait()
        self._wake.clear()

    async def turn(self, clock: Clock) -> None:
        """Carry out all steps once, and rest."""
        began_ms = clock.monotonic_ms()
        for step in self._steps:
            waits = step()
            if waits is not None:
                await waits
        if self._rests:
            took_ms = clock.monotonic_ms() - began_ms
            await asyncio.sleep(self._rests * took_ms / 1000)


class Jobs:
    """Keeps all tasks of a coordinator, and ends them.

    Args:
        clock: Measures turns.
        lose: Ends the coordinator after a job failed.
    """

    def __init__(self, clock: Clock, lose: Callable[[], None]) -> None:
        self._clock = clock
        self._lose = lose
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, table: Sequence[Job]) -> None:
        """Begin the loops of these jobs."""
        for job in table:
            self._begin(self.run(job), job.name, lambda: None, self._lose)

    async def run(self, job: Job) -> None:
        """Carry out a job again and again, until a turn of it fails."""
        if not job.is_first_at_once:
            await job.wait()
        while True:
            try:
                await job.turn(self._clock)
            except OutOfSpaceError as error:
                _log_full(job.name, error)
            await job.wait()

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Start a task that ends by itself; ``ended`` is called then, however it went."""
        self._begin(work, name, ended, lambda: None)

    def count(self, name: str) -> int:
        """Return how many tasks of this name are under way."""
        return sum(task.get_name() == name for task in self._tasks)

    async def stop(self) -> None:
        """End all jobs and tasks. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        ended: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._ended(task, ended, failed))

    def _ended(
        self, task: asyncio.Task[None], ended: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        del self._tasks[task]
        ended()
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, OutOfSpaceError):
            _log_full(task.get_name(), error)
            return
        if isinstance(error, NotCoordinatorError):  # the coordinator ends, and says why
            failed()
            return
        event(_log, logging.ERROR, "task_failed", task=task.get_name(), exc_info=error)
        failed()


def _log_full(name: str, error: OutOfSpaceError) -> None:
    """The metadata store took no change. The next look finds the same work again."""
    event(_log, logging.ERROR, "metadata_store_full", task=name, error=error)
