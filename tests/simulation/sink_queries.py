"""A streaming query that writes into a topic by the production core of the Spark sink, and whose
driver dies again and again.

Each task is a process of its own that calls ``append_all``, as an executor does; the driver gives
each attempt at a micro-batch a number, runs the tasks with the lowest numbers first, runs one that
fails again, and gives up when it failed too often. A driver that is killed takes its tasks with it,
or leaves some behind, which go on. Then another one begins the same micro-batch: mostly with the
same tasks, now and then otherwise (``sink_rows``). What is refused is run again as it was before.
``sink_verdict`` says what has to be true in the end.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

from icecore.client.admin.admin import Admin
from icecore.client.cluster.connection import Connection
from icecore.client.consume.saved_positions import delete_positions
from icecore.errors import IcecoreError, UnknownTopicError
from icecore.spark.tasks import appender as appenders
from icecore.spark.tasks import division as divisions
from icecore.spark.tasks import rows as task_rows
from icecore.spark.tasks.appender import Appender, find_topic
from icecore.spark.tasks.division import TaskDivision, position_name
from icecore.spark.tasks.identity import identity
from icecore.spark.tasks.rows import append_all
from tests.simulation.history import History
from tests.simulation.observer import Observer
from tests.simulation.plan import Plan
from tests.simulation.process import SimProcess
from tests.simulation.shells import NODE_PORT, bootstrap_of, coordinator_address
from tests.simulation.sink_rows import Division, divide, divided_otherwise, draw_rows, frames
from tests.simulation.sink_verdict import (
    MicroBatch,
    SinkAttempt,
    TaskRun,
    verdict,
    verdict_made_again,
)
from tests.simulation.workload import make_topic

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"
HEAL_S = 60.0
WAIT_S = 12.0
"""For tasks of before: longer than one of them needs that fails once and is run again."""
DELIVERY_TIMEOUT_S = 8.0
REQUEST_TIMEOUT_MS = 2_000
BATCH_BYTES = 250
ROUND_BYTES = 700
TASKS_AS_BITS = 4
"""So that there are divisions of more tasks, too."""
LOOK_S = 0.001
BATCHES = 5
"""Micro-batches of a query."""
KILLS_MAX = 3
"""Drivers of one micro-batch that die."""
ROUNDS_MAX = 2
"""Faults may keep tasks from coming in time, so what is refused is tried once more."""
ELSEWHERE_MAX = 3
"""So often is a query started again that finds another topic."""
ATTEMPTS_MAX = 40
"""No micro-batch needs so many, whatever happens."""


@contextmanager
def small_tasks() -> Iterator[None]:
    """Tasks have many batches, although their rows are few, and wait for seconds only."""
    with ExitStack() as stack:
        for module, name, value in (
            (divisions, "WAIT_S", WAIT_S),
            (divisions, "TASKS_AS_BITS", TASKS_AS_BITS),
            (appenders, "DELIVERY_TIMEOUT_S", DELIVERY_TIMEOUT_S),
            (appenders, "REQUEST_TIMEOUT_MS", REQUEST_TIMEOUT_MS),
            (task_rows, "BATCH_BYTES", BATCH_BYTES),
            (task_rows, "ROUND_BYTES", ROUND_BYTES),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


Running = dict[TaskRun, tuple[SimProcess, "asyncio.Task[None]"]]
"""Tasks of an attempt that have not ended."""


@dataclass(frozen=True)
class Death:
    """The moment when a driver dies."""

    within_s: float
    """At the latest."""
    records: int = 1 << 30
    """As soon as more than so many are new in the topic."""


class SinkQuery:
    """One query, its topic and its drivers.

    Args:
        world: Where it lives.
        plan: Of the world.
        name: Of the topic.
        otherwise: Probability that a run again has another division or other rows.
        partitions: Of the topic; drawn without.
    """

    def __init__(
        self,
        world: "World",
        plan: Plan,
        name: str,
        *,
        otherwise: float = 0.0,
        partitions: int = 0,
    ) -> None:
        self._world = world
        self._plan = plan
        self.name = name
        self._otherwise = otherwise
        self._rng = rng = random.Random(f"{name} {world.seed}")
        self.partitions = partitions or rng.choice([1, 2, 3])
        self._slots = rng.choice([1, 2, 4, 4])
        self._failures_max = rng.choice([1, 4, 4])
        """How often a task runs before its driver gives up."""
        self._runs_twins = rng.random() < 0.3
        """Tasks that take long run twice at the same time, as with ``spark.speculation``."""
        self._leaves_executors = rng.random() < 0.4
        self.forgets = rng.random() < 0.3
        """A note goes when its batch is written, as with a write that is no query."""
        self.is_made_again = False
        """Its topic is deleted and made again meanwhile."""
        self._elsewhere = 0
        """Attempts that ended because of that."""
        self.asked_first = ""
        """The node at which tasks begin, if there is one."""
        self.asked_first_share = 0.5
        """Probability that a task does."""
        self._batches: list[MicroBatch] = []
        self._runs = 0
        self._left: list[asyncio.Task[None]] = []
        """Tasks that outlive their driver."""
        self._driver: asyncio.Task[None] | None = None
        self.is_over = False
        """All micro-batches are committed."""

    # --- its life -------------------------------------------------------------------------------

    async def make(self) -> None:
        """Make its topic, unless it is there."""
        process, net, clock, rng = self._world.client(f"admin {self._next_number()} of {self.name}")
        address = coordinator_address(COORDINATOR)
        admin = Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng)
        await process.spawn(self._make(admin))

    async def make_again(self) -> None:
        """Delete its topic, and make another one of the name."""
        self.is_made_again = True
        process, net, clock, rng = self._world.client(f"admin {self._next_number()} of {self.name}")
        address = coordinator_address(COORDINATOR)
        admin = Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng)

        async def delete() -> None:
            while True:
                try:
                    await admin.delete_topic(self.name)
                except UnknownTopicError:
                    return
                except IcecoreError as error:
                    self._world.loop.trace(f"{self.name} not deleted: {error.reason}")
                await asyncio.sleep(0.2)

        await process.spawn(delete())
        await self.make()

    def live(self) -> None:
        """The first driver begins."""
        self._driver = asyncio.create_task(self._drive())

    async def _make(self, admin: Admin) -> None:
        await make_topic(
            self._world,
            self._plan,
            admin,
            self.name,
            partitions=self.partitions,
            segment_bytes=self._rng.choice([2, 4, 16]) * 1024,
        )

    async def _drive(self) -> None:
        while len(self._batches) < BATCHES and self._elsewhere < ELSEWHERE_MAX:
            await self.write(self.next_batch())
            await asyncio.sleep(self._rng.choice([0.0, 0.3]))
        self.is_over = True

    def next_batch(self) -> MicroBatch:
        """The next micro-batch, and how it is divided."""
        rng, number = self._rng, len(self._batches)
        rows, tasks = draw_rows(rng, number), rng.choice([1, 2, 3, 4, 6])
        batch = MicroBatch(number, divide(rows, tasks, deals_out=rng.random() < 0.3))
        self._batches.append(batch)
        return batch

    async def write(self, batch: MicroBatch) -> None:
        """Attempts at a micro-batch, until one is committed, and known to be."""
        rng, kills, rounds = self._rng, 0, 1
        refused: set[Division] = set()
        division = batch.original
        while len(batch.attempts) < ATTEMPTS_MAX:
            may_die = kills < KILLS_MAX and rng.random() < 0.7
            attempt = await self.attempt(batch, division, self._death(batch) if may_die else None)
            if attempt.is_committed:
                batch.committed = attempt
                if self.forgets:
                    await self._forget()
                if not may_die or rng.random() < 0.5:
                    return
                # The driver dies before it has noted that it committed.
            self._elsewhere += attempt.is_elsewhere
            if self._elsewhere == ELSEWHERE_MAX:
                return
            if attempt.is_refused:
                refused.add(division)
            else:
                refused.clear()  # it may have appended what was not there before
            kills += may_die
            if not batch.may_be_run_again(refused):
                if rounds == ROUNDS_MAX:
                    break
                rounds += 1
                # Of many tasks each twin spoils the sum (``weights``), so no attempt might finish.
                self._runs_twins = False
                refused.clear()
            division = self._next_division(batch, refused, may_be_new=kills < KILLS_MAX)
            await asyncio.sleep(rng.choice([0.01, 0.3, 2.0]))
        batch.is_stuck = True

    def _next_division(
        self, batch: MicroBatch, refused: set[Division], *, may_be_new: bool
    ) -> Division:
        rng = self._rng
        if may_be_new and rng.random() < self._otherwise:
            drawn = divided_otherwise(rng, batch.original)
            if drawn not in refused:
                return drawn
        return batch.may_be_run_again(refused)[0]

    async def _forget(self) -> None:
        """As the driver of a batch does when it is written: nothing else has to be remembered."""
        process, net, clock, rng = self._world.client(f"forgetter {self._next_number()}")
        connection = Connection(bootstrap_of(self._world, "forgetter"), net, clock, rng)
        name = position_name(self.name)

        async def forget() -> None:
            try:
                await delete_positions(connection, name, self.name, timeout_s=2.0)
            except IcecoreError as error:
                self._world.loop.trace(f"{name} stays: {error.reason}")

        await process.spawn(forget())

    # --- one attempt ----------------------------------------------------------------------------

    def _death(self, batch: MicroBatch) -> "Death":
        """Return when a driver dies: mostly when some rows of a micro-batch are there, not all."""
        if self._rng.random() < 0.3:
            return Death(within_s=self._rng.uniform(0.0, 0.1))
        size = sum(map(len, batch.original))
        return Death(within_s=2.0, records=self._rng.randrange(size))

    async def attempt(
        self, batch: MicroBatch, division: Division, death: "Death | None"
    ) -> SinkAttempt:
        """All tasks, lowest numbers first, until they are done, one of them fails too often, or the
        driver dies."""
        attempt = SinkAttempt(self._rng.randrange(1 << 32) | 1, division)
        batch.attempts.append(attempt)
        attempt.topic_id = await self._find_topic()
        if not attempt.topic_id:
            return attempt
        free = asyncio.Semaphore(self._slots)
        running: Running = {}

        async def one(task: int) -> None:
            async with free:
                for _ in range(self._failures_max):
                    if await self._task(batch, attempt, task, running):
                        return
            raise _TaskFailedError

        jobs = [asyncio.create_task(one(task)) for task in range(len(attempt.division))]
        done, dying = asyncio.gather(*jobs), asyncio.create_task(self._die(death))
        try:
            await asyncio.wait({done, dying}, return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                done.result()
                attempt.is_committed = True
            else:
                attempt.was_killed = True
                self._world.count_fault("driver_killed")
        except _TaskFailedError:
            pass
        for job in (*jobs, dying):
            job.cancel()
        self._end(attempt, running)
        await asyncio.gather(done, *jobs, dying, return_exceptions=True)
        self._world.loop.trace(f"{self.name} {batch.number} {attempt}")
        return attempt

    async def _find_topic(self) -> bytes:
        """Return the id that the driver finds; empty when nobody tells it."""
        name = f"driver {self._next_number()}"
        process, net, clock, rng = self._world.client(name)
        bootstrap = bootstrap_of(self._world, name)

        async def find() -> bytes:
            try:
                return await find_topic(bootstrap, self.name, net, clock, rng)
            except IcecoreError as error:
                self._world.loop.trace(f"{name} finds no topic: {error.reason}")
                return b""

        return await process.spawn(find())

    async def _die(self, death: "Death | None") -> None:
        """Return when it is time."""
        if death is None:
            await asyncio.Event().wait()
            return
        end_s, before = self._world.loop.time() + death.within_s, self._records()
        while self._world.loop.time() < end_s:
            if self._records() > before + death.records:
                return
            await asyncio.sleep(LOOK_S)

    def _records(self) -> int:
        """Return how many records its leaders show."""
        ends: dict[int, int] = {}
        for name in self._world.hosts:
            node = self._world.shells.get(name)
            for leader in node.leaders.all() if node is not None else ():
                if leader.segment.topic == self.name:
                    partition = leader.segment.partition
                    ends[partition] = max(ends.get(partition, 0), leader.high_watermark)
        return sum(ends.values())

    def _end(self, attempt: SinkAttempt, running: "Running") -> None:
        """Kill what runs, or leave some of it behind."""
        now_s = self._world.loop.time()
        for run, (process, life) in running.items():
            if attempt.was_killed and self._leaves_executors and self._rng.random() < 0.5:
                self._world.count_fault("executor_outlives")
                run.outlives = True
                self._left.append(life)
            else:
                process.kill("its driver ended", now_s)
                # The one that was on its way may have been dropped, and its copy comes much later.
                run.outlives = self._world.network.faults.repeats > 0

    async def _task(
        self, batch: MicroBatch, attempt: SinkAttempt, task: int, running: "Running"
    ) -> bool:
        """Run a task, and perhaps a second time beside it; whether one of them came to its end."""
        runs = [self._run(batch, attempt, task, running)]
        if self._runs_twins and self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.choice([0.0, 0.005, 0.02]))
            runs.append(self._run(batch, attempt, task, running))
        left = {life for _, life in runs}
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if any(run.result for run, life in runs if life in done):
                for run, _ in runs:
                    if run in running:
                        running.pop(run)[0].kill("its twin was first", self._world.loop.time())
                return True
        return False

    def _run(
        self, batch: MicroBatch, attempt: SinkAttempt, task: int, running: "Running"
    ) -> "tuple[TaskRun, asyncio.Task[None]]":
        """A process that appends the rows of a task."""
        rows = attempt.division[task]
        run = TaskRun(task, rows, self._world.loop.time())
        attempt.runs.append(run)
        name = f"{self.name} {batch.number} task {task} {self._next_number()}"
        process, net, clock, rng = self._world.client(name)
        producer_id, producer_epoch = identity(self.name, task, batch.number)
        bootstrap = bootstrap_of(self._world, name)
        if self.asked_first and self._rng.random() < self.asked_first_share:
            bootstrap = f"{self.asked_first}:{NODE_PORT},{bootstrap}"
        appender = Appender(
            bootstrap,
            self.name,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            acks="all",
            codec="none",
            topic_id=attempt.topic_id,
            net=net,
            clock=clock,
            rng=rng,
        )
        follows = batch.number > 0 and not self.forgets
        division = TaskDivision(appender.connection, self.name, attempt.number, follows=follows)

        async def append() -> None:
            try:
                found = iter(frames(random.Random(f"{name} frames"), rows))
                run.result = await append_all(appender, found, task, division)
            except IcecoreError as error:
                run.error = error
                self._world.loop.trace(f"{name}: {error.reason} {error.message[:200]}")
            run.ended_s = self._world.loop.time()
            running.pop(run, None)

        running[run] = process, process.spawn(append())
        return run, running[run][1]

    def _next_number(self) -> int:
        self._runs += 1
        return self._runs

    # --- the verdict ----------------------------------------------------------------------------

    async def finish(self, observer: Observer) -> list[str]:
        """Let the driver come to its end, read what is there, and judge. Everything is healed by
        now.

        Raises:
            TimeoutError: The driver does not come to its end.
        """
        if not self._batches:
            return []
        history = History(produces=[])
        async with asyncio.timeout(5 * HEAL_S):
            if self._driver is not None:
                await self._driver
            await asyncio.gather(*self._left, return_exceptions=True)
            problems = await observer.read_everything(self.name, history)
        final = {partition: log for (_, partition), log in history.final.items()}
        if self.is_made_again:
            topic_id = await self._find_topic()
            problems += verdict_made_again(self._batches, topic_id, final, self.partitions)
        else:
            problems += verdict(self._batches, final, self.partitions)
        return [f"{self.name}: {each}" for each in problems]


class _TaskFailedError(Exception):
    """A task has failed too often."""
