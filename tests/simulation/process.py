"""A simulated process: a group of tasks that one event loop runs and that can be killed as one.

Everything a process starts inherits the context variable ``PROCESS``, so the loop knows for each
callback whose it is: callbacks of a paused process wait, those of a dead one are dropped. At a
kill all tasks are cancelled and may unwind within the same virtual instant; the process's ports
raise ``ProcessKilled`` from then on, so that no ``finally`` block of a dead process can act.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any


class ProcessKilled(asyncio.CancelledError):
    """Raised by every port of a dead process. A cancellation, so that nothing handles it."""


class SimProcess:
    """One life of one process; a restart makes a new object of the same name.

    Args:
        name: Also the host name in addresses and links.
        life: 1 for the first start, counted by the world.
    """

    def __init__(self, name: str, life: int) -> None:
        self.name = name
        self.life = life
        self.alive = True
        self.paused = False
        self.stands_still = False
        """Its loop does something that blocks."""
        self.killed_at_s: float | None = None
        self.why_dead = ""
        self.on_death: list[Callable[[], None]] = []
        """The network, the disk and the world clean up here; called once, at the kill."""
        self.parked: list[tuple[asyncio.Handle, SimProcess | None]] = []
        """Callbacks that became due during a pause."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of this process, whoever calls."""
        loop = asyncio.get_running_loop()
        return loop.create_task(coroutine, context=self.context.copy())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Remember a task so that a kill reaches it (the loop calls this for each new task)."""
        self._tasks[task] = None
        task.add_done_callback(self._forget, context=Context())

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def check(self) -> None:
        """Raise ProcessKilled when dead: the first line of every port's methods."""
        if not self.alive:
            raise ProcessKilled(self.name)

    def kill(self, why: str, now_s: float) -> None:
        """End this life: no callback runs after this virtual instant, no port works at all."""
        if not self.alive:
            return
        self.alive = False
        self.why_dead = why
        self.killed_at_s = now_s
        hooks, self.on_death = self.on_death, []
        for hook in hooks:
            hook()
        for task in list(self._tasks):
            task.cancel()

    def may_run(self, now_s: float) -> bool:
        """Return whether a callback of this process may run now (the dead unwind for one
        instant)."""
        return self.alive or self.killed_at_s == now_s

    def __repr__(self) -> str:
        return f"{self.name}#{self.life}"


PROCESS: ContextVar[SimProcess | None] = ContextVar("PROCESS", default=None)
