"""I/O threads and reader threads as turns of the simulated loop.

A group runs in one turn, some seeded time after it was submitted. Its thread is busy for as long as
its operations take, then its result is delivered, so a kill can fall before the work, between work
and answer, and (through the disk's ``operations_to_live``) into the middle of the work. Results of
one queue come in order. A group that the loop processes itself (``run_here``) runs in the turn of
its caller, and then its whole process stands still for as long as the disk takes: it may be killed
there, between work and answer.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from icecore_node.ports import DiskFailedError, WorkerQueue
from tests.simulation.loop import SimLoop
from tests.simulation.process import ProcessKilled, SimProcess

T = TypeVar("T")


class SimWorkerQueue:
    """icecore_node.ports.WorkerQueue."""

    def __init__(
        self,
        executor: "SimExecutor",
        process: Callable[[list[Any]], object],
        deliver: Callable[[object], None],
        group_items_max: int,
    ) -> None:
        self._executor = executor
        self._process = process
        self._deliver = deliver
        self._group_items_max = group_items_max
        self._items: deque[Any] = deque()
        self._results: deque[object] = deque()
        self._busy = False
        self._is_here = False
        """The loop has processed a group and has not gone on yet."""
        self._free_at_s = 0.0
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Return whether it is open, and all that was submitted has been delivered."""
        return not (self._items or self._results or self._is_here or self._closed)

    def submit(self, item: Any) -> None:
        """Enqueue; the worker wakes up some time later."""
        self._executor.check()
        if self._closed:
            raise RuntimeError("worker queue is closed")
        self._items.append(item)
        self._wake()

    def run_here(self, group: list[Any]) -> None:
        """Process now; the process stands still for as long as that takes, then it is delivered."""
        assert self.is_idle, "two threads at once"
        try:
            self._executor.check()
            result = self._process(group)
        except ProcessKilled:
            return
        except Exception as error:  # what production ends the process for
            self._executor.fail_stop(error)
            return
        self._is_here = True
        self._executor.stand_still(lambda: self._done_here(result))

    def _done_here(self, result: object) -> None:
        self._is_here = False
        self._deliver(result)

    def close(self) -> None:
        """Process what is queued, then stop."""
        self._closed = True

    def _wake(self) -> None:
        if not self._busy and self._items:
            self._busy = True
            loop = asyncio.get_running_loop()
            begins_s = max(loop.time(), self._free_at_s)
            loop.call_at(begins_s + self._executor.delay_s(), self._work)

    def _work(self) -> None:
        group = [self._items.popleft() for _ in range(min(len(self._items), self._group_items_max))]
        try:
            result = self._process(group)
        except ProcessKilled:
            return
        except Exception as error:  # what production ends the process for
            self._executor.fail_stop(error)
            return
        self._results.append(result)
        loop = asyncio.get_running_loop()
        self._free_at_s = loop.time() + self._executor.cost_s()
        loop.call_at(self._free_at_s + self._executor.delay_s(), self._done)
        self._busy = False
        self._wake()

    def _done(self) -> None:
        self._deliver(self._results.popleft())


class SimExecutor:
    """icecore_node.ports.Executor for one life of a process.

    Args:
        process: Whose threads these are; None outside a world.
        rng: Source of the delays.
        mean_delay_s: Of starting a group, of delivering it, and of each ``run``.
        fail_stop: Called with the exception that ends the process.
        disk_delay: What a slow or stalled disk makes of a delay.
        spent_s: How long the operations took since it was last asked.
    """

    def __init__(
        self,
        process: SimProcess | None,
        rng: random.Random,
        *,
        mean_delay_s: float = 0.0005,
        fail_stop: Callable[[BaseException], None] | None = None,
        disk_delay: Callable[[float], float] = lambda delay_s: delay_s,
        spent_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._spent_s = spent_s
        self._disk_delay = disk_delay
        self._process = process
        self._rng = rng
        self._fail_stop = fail_stop
        self.mean_delay_s = mean_delay_s

    def check(self) -> None:
        """Raise ProcessKilled for zombies."""
        if self._process is not None:
            self._process.check()

    def delay_s(self) -> float:
        """Return how long the next step of a thread takes."""
        return self._disk_delay(self._rng.expovariate(1.0 / self.mean_delay_s))

    def cost_s(self) -> float:
        """Return how long the work of this turn took."""
        return self._spent_s()

    def stand_still(self, then: Callable[[], None]) -> None:
        """Let the time pass that the loop's own work took. Nothing of this process runs
        meanwhile."""
        duration_s = self.cost_s() + self._disk_delay(0.0)
        loop = asyncio.get_running_loop()
        if self._process is None or not isinstance(loop, SimLoop) or duration_s <= 0:
            then()
        else:
            loop.stand_still(self._process, duration_s, then)

    def fail_stop(self, error: BaseException) -> None:
        """End the process as production does."""
        if self._fail_stop is None:
            raise error
        self._fail_stop(error)

    def worker(
        self,
        name: str,
        process: Callable[[list[T]], object],
        deliver: Callable[[Any], None],
        *,
        group_items_max: int,
    ) -> WorkerQueue[T]:
        """As node.ports."""
        self.check()
        return SimWorkerQueue(self, process, deliver, group_items_max)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run after a delay, in one turn; like a thread it is not stopped by a cancelled caller."""
        self.check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                outcome: tuple[T | None, Exception | None] = function(*args), None
            except ProcessKilled:
                return
            except DiskFailedError as error:
                self.fail_stop(error)
                return
            except Exception as error:
                outcome = None, error
            loop.call_later(self.cost_s(), done, *outcome)

        def done(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        loop.call_later(self.delay_s(), work)
        return await future

    async def run_first(self, function: Callable[..., T], *args: object) -> T:
        """As ``run``: each has its own delay, so nobody waits for another."""
        return await self.run(function, *args)

    def close(self) -> None:
        """Nothing to join."""
