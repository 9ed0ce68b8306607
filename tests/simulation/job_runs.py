"""Runs of a job in a simulated world: processes whose program blocks, and what happens to them.

The program is production's code (``icecore.spark.runs``) in a thread (``job_thread``). Between any
two of its steps something may happen: it is killed, or its topic loses records, gets more
partitions, or is deleted and made again.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from icecore import blocking
from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError
from icecore.spark.jobs import arguments
from icecore.spark.runs.report import Report
from tests.simulation.job_files import KINDS, JobDisk, SimFiles
from tests.simulation.job_thread import JobThread, Waiting
from tests.simulation.job_topic import JobTopic
from tests.simulation.job_verdict import JobRunSeen
from tests.simulation.process import SimProcess
from tests.simulation.shells import bootstrap_of

if TYPE_CHECKING:
    from tests.simulation.cluster import World

ADMIN_TIMEOUT_S = 6.0
STEP_S = 0.002
"""Mean time of a step of the file system."""
EPOCH_MS = 1_700_000_000_000


Happening = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Interruptions:
    """Things that happen between two steps of a run."""

    dies_at: int | None = None
    """The number of the step before which it is killed."""
    dies_in: str = ""
    """``dies_at`` counts the steps of such calls only, of a ``move`` or a ``copy`` say."""
    happens: dict[tuple[str, int], Happening] = field(default_factory=dict)
    """Done before the step of this number in such calls; "" counts all."""


class RunPorts:
    """All that a run of a job needs of the world.

    Args:
        world: Where it lives.
        name: Of its process.
        interruptions: What happens meanwhile.
    """

    def __init__(self, world: "World", name: str, interruptions: Interruptions) -> None:
        self.world = world
        self.process: SimProcess
        self.process, self.net, self.clock, self.client_rng = world.client(name)
        self.bootstrap = bootstrap_of(world, name)
        self.rng = random.Random(f"{name} {world.seed}")
        self.thread: JobThread[Any]
        self._interruptions = interruptions
        self.steps = 0
        self._steps_of: Counter[str] = Counter()

    async def step(self, call: str = "") -> None:
        """Time passes, and something else may happen in a call."""
        self.steps += 1
        self._steps_of[call] += bool(call)
        planned = self._interruptions
        for place in (("", self.steps), (call, self._steps_of[call])):
            if (act := planned.happens.pop(place, None)) is not None:
                await self._happen(act)
        if planned.dies_at == (self._steps_of[planned.dies_in] if planned.dies_in else self.steps):
            self.world.count_fault("job_killed")
            self.process.kill("kill", self.world.loop.time())
        await asyncio.sleep(self.rng.expovariate(1 / STEP_S))
        self.process.check()

    async def _happen(self, act: Happening) -> None:
        """Wait until it is done; it goes on when this process ends meanwhile."""
        task = asyncio.get_running_loop().create_task(act(), context=Context())
        self.world.keep(task)
        await asyncio.shield(task)

    def files(self, disk: JobDisk, path: str) -> SimFiles:
        """The file system of a disk."""
        return SimFiles(disk, path, self.thread, self.step, self.rng, self._now_ms)

    def _now_ms(self) -> int:
        return EPOCH_MS + int(self.world.loop.time() * 1000)

    @contextmanager
    def admin(self) -> Iterator[blocking.Admin]:
        """A blocking admin, for as long as a ``with`` lasts."""

        async def open_one() -> Admin:
            return Admin(
                self.bootstrap,
                timeout_s=ADMIN_TIMEOUT_S,
                net=self.net,
                clock=self.clock,
                rng=self.client_rng,
            )

        admin = self.thread.wait(open_one)
        try:
            yield cast(blocking.Admin, Waiting(self.thread, admin, self.step))
        finally:
            self.thread.wait(admin.close)


class SimReport(Report):
    """Notes go into the trace.

    Args:
        job: Its name.
        topic: Of the run.
        trace: Where to.
    """

    def __init__(self, job: str, topic: str, trace: Callable[[str], None]) -> None:
        super().__init__(job, topic)
        self._trace = trace

    def note(self, text: str) -> None:
        """A line for people."""
        self._trace(f"{self.metrics.job}: {text}")


class Job(ABC):
    """One job, its folder and its runs.

    Args:
        world: Where it lives.
        topic: That it reads or writes.
        kind: As the command line names it.
        given: Its arguments.
    """

    def __init__(self, world: "World", topic: JobTopic, kind: str, given: list[str]) -> None:
        self.world = world
        self.topic = topic
        self.name = topic.name
        self._kind = kind
        self._given = given
        self.disk = JobDisk(random.Random(f"disk of {topic.name} {world.seed}").choice(KINDS))
        self.runs: list[JobRunSeen] = []
        """In the order in which they ended."""
        self._under_way = 0
        self._count = 0
        self._disturbing: list[asyncio.Task[None]] = []

    @abstractmethod
    def perform(self, ports: RunPorts, asked: Namespace, report: Report) -> None:
        """Do a run, on its thread. Raises IcecoreError."""

    async def run(
        self,
        interruptions: Interruptions | None = None,
        *more: str,
        wrong: str = "",
        within_s: float | None = None,
    ) -> JobRunSeen:
        """One run, until it ends or is killed.

        Args:
            interruptions: What happens meanwhile.
            more: Arguments, besides those of this job.
            wrong: The reason with which it has to be refused.
            within_s: It is killed then, at the latest.
        """
        self._count += 1
        ports = RunPorts(
            self.world, f"{self.name} run {self._count}", interruptions or Interruptions()
        )
        given = [self._kind, self.name, "--bootstrap", ports.bootstrap]
        asked = arguments.parse([*given, *self._given, *more])
        report = SimReport(self._kind, self.name, self.world.loop.trace)
        seen = JobRunSeen(self._count, report.metrics, wrong=wrong)
        seen.may_lose = getattr(asked, "allow_data_loss", False)
        seen.before, seen.is_alone = dict(self.disk.texts), not self._under_way

        def body(thread: JobThread[None]) -> None:
            ports.thread = thread
            try:
                self.perform(ports, asked, report)
            except IcecoreError as error:
                report.failed(f"{error.reason}: {error.message}")

        thread: JobThread[None] = JobThread(body)
        ports.thread = thread
        self._under_way += 1
        task = ports.process.spawn(thread.run())
        await asyncio.wait({task}, timeout=within_s)
        if not task.done():
            self.world.count_fault("job_killed")
        ports.process.kill("it ended", self.world.loop.time())
        await asyncio.wait({task})
        self._under_way -= 1
        seen.is_alone = seen.is_alone and not self._under_way
        seen.is_killed = task.cancelled()
        if not seen.is_killed and (failure := task.exception()) is not None:
            self.world.loop.failures.append(f"{ports.process}: {failure!r}")
        seen.after = dict(self.disk.texts)
        self.runs.append(seen)
        self.world.loop.trace(f"{ports.process} {seen.is_killed} {report.metrics}")
        return seen

    def ends_with(self, disturbing: asyncio.Task[None]) -> None:
        """Something goes on while it lives, and ends with it."""
        self._disturbing.append(disturbing)

    def end(self) -> None:
        """Nothing disturbs the runs any more."""
        for each in self._disturbing:
            each.cancel()
