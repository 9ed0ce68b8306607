"""A backfill in a simulated world: production's code, and tasks of its own where Spark's are.

The table is drawn, and its rows always go to the same steps and tasks in the same order, as Spark's
shuffle and sort have it. Each task appends by the production core of the sink
(``icecore/spark/tasks``). In the end each row is in the topic once.
"""

import asyncio
import random
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from icecore.client.cluster.connection import Connection
from icecore.client.consume.saved_positions import delete_positions
from icecore.errors import IcecoreError
from icecore.spark.plan import Snapshot
from icecore.spark.runs.backfill import BackfillRun
from icecore.spark.runs.folder import JobFolder
from icecore.spark.runs.report import Report
from icecore.spark.snapshot import take_snapshot
from icecore.spark.tasks.appender import Appender
from icecore.spark.tasks.division import TaskDivision, position_name
from icecore.spark.tasks.identity import identity
from icecore.spark.tasks.rows import append_all
from tests.simulation.history import History
from tests.simulation.job_files import JobDisk
from tests.simulation.job_runs import Job, RunPorts
from tests.simulation.job_topic import JobTopic
from tests.simulation.observer import Observer
from tests.simulation.sink_rows import SinkRow, frames

if TYPE_CHECKING:
    from tests.simulation.cluster import World

HEAL_S = 60.0
LAST_RUNS_MAX = 3
STATE = "state"
CHANGED = "SPARK_TASK_CHANGED"
Table = tuple[tuple[tuple[SinkRow, ...], ...], ...]
"""Rows of each task of each step."""


def draw_table(rng: random.Random) -> Table:
    """Rows of some steps."""
    steps, tasks, size = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.choice([5, 60])
    found: list[list[list[SinkRow]]] = [[[] for _ in range(tasks)] for _ in range(steps)]
    for number in range(steps * size):
        key = rng.randrange(12)
        row = SinkRow(b"row %04d " % number + b"x" * 20, b"k%d" % key if key else None)
        found[key % steps][(key // steps) % tasks].append(row)
    return tuple(tuple(tuple(task) for task in step) for step in found)


class SimBackfill:
    """See ``BackfillEngine``.

    Args:
        ports: Of the run.
        asked: Its arguments.
        disk: Where its notes are.
        table: The rows.
    """

    def __init__(self, ports: RunPorts, asked: Namespace, disk: JobDisk, table: Table) -> None:
        self._ports = ports
        self._asked = asked
        self._table = table
        self.folder = JobFolder(ports.files(disk, asked.state))

    def snapshot(self) -> Snapshot:
        """See ``BackfillEngine``."""
        with self._ports.admin() as admin:
            return take_snapshot(admin, self._asked.topic, with_segments=False)

    def check(self) -> None:
        """See ``BackfillEngine``."""

    def count(self) -> int:
        """See ``BackfillEngine``."""
        return sum(len(task) for step in self._table for task in step)

    def append(self, number: int, topic_id: str, write_id: str) -> int:
        """See ``BackfillEngine``."""
        tasks, attempt = self._table[number], self._ports.rng.getrandbits(32) | 1

        async def one(task: int) -> None:
            await self._ports.step("append")
            producer_id, epoch = identity(write_id, task, 0)
            appender = Appender(
                self._ports.bootstrap,
                self._asked.topic,
                producer_id=producer_id,
                producer_epoch=epoch,
                acks="all",
                codec="none",
                topic_id=bytes.fromhex(topic_id),
                net=self._ports.net,
                clock=self._ports.clock,
                rng=self._ports.client_rng,
            )
            division = TaskDivision(appender.connection, write_id, attempt)
            rows = iter(frames(random.Random(f"{write_id} {task}"), tasks[task]))
            await append_all(appender, rows, task, division)

        async def every() -> None:
            async with asyncio.TaskGroup() as group:
                for task in range(len(tasks)):
                    group.create_task(one(task))

        async def append() -> None:
            try:
                await every()
            except* IcecoreError as errors:
                raise errors.exceptions[0] from None
            await self._forget(write_id)

        self._ports.thread.wait(append)
        return sum(map(len, tasks))

    async def _forget(self, write_id: str) -> None:
        ports = self._ports
        connection = Connection(ports.bootstrap, ports.net, ports.clock, ports.client_rng)
        try:
            await delete_positions(
                connection, position_name(write_id), self._asked.topic, timeout_s=2.0
            )
        except IcecoreError as error:
            ports.world.loop.trace(f"{write_id} stays: {error.reason}")


class BackfillJob(Job):
    """One backfill.

    Args:
        world: Where it lives.
        topic: That it writes.
    """

    def __init__(self, world: "World", topic: JobTopic) -> None:
        self._table = draw_table(random.Random(f"table of {topic.name} {world.seed}"))
        given = ["--from", "table", "--state", STATE, "--steps", str(len(self._table))]
        super().__init__(world, topic, "backfill", [*given, "--tasks", str(len(self._table[0]))])

    def perform(self, ports: RunPorts, asked: Namespace, report: Report) -> None:
        """See ``Job``."""
        BackfillRun(SimBackfill(ports, asked, self.disk, self._table), asked, report).perform()

    # --- the verdict ----------------------------------------------------------------------------

    async def finish(self, observer: Observer) -> list[str]:
        """Run it again until it is done, as nothing fails any more, and judge.

        Raises:
            TimeoutError: A run does not come to its end.
        """
        self.disk.heal()
        for kind in [*self.disk.struck.elements()]:
            self.world.count_fault(kind)
        history = History(produces=[])
        async with asyncio.timeout(5 * HEAL_S):
            last = await self.run()
            for _ in range(LAST_RUNS_MAX):
                if last.metrics.status == "done":
                    break
                last = await self.run()
            refused = await self.run(None, "--tasks", "9", wrong="CONFIGURATION")
            problems = await observer.read_everything(self.name, history)
        found = Counter(value for log in history.final.values() for _, value in log)
        problems += self._verdict(found, last.metrics.error)
        if last.metrics.status == "done":
            self.world.count_fault("job_done")
            if not refused.metrics.error.startswith("CONFIGURATION"):
                problems.append(f"other arguments are taken: {refused.metrics}")
        return [f"{self.name}: {each}" for each in problems]

    def _verdict(self, found: Counter[bytes], error: str) -> Iterator[str]:
        """Yield what is wrong with the rows that the topic has in the end."""
        rows = {row.value for step in self._table for task in step for row in task}
        twice = sorted(value for value, count in found.items() if count > 1)
        if twice:
            yield f"{twice[0]!r} is there {found[twice[0]]} times"
        if strange := sorted(found.keys() - rows):
            yield f"nobody was given {strange[0]!r}"
        done = any(self._has_ended(run.metrics.topic_id) for run in self.runs)
        missing = sorted(rows - found.keys())
        if done and missing:
            yield f"the job is done, and {missing[0]!r} is not there"
        was_made_again = len(self.topic.lives) > 1
        excuses = ["TOPIC_RECREATED"] * was_made_again
        excuses += [CHANGED] * (self.world.faults["partitions_added"] > 0)
        if error and not error.startswith(tuple(excuses)):
            yield f"the last run is not done: {error}"
        begun = {run.metrics.topic_id for run in self.runs if run.metrics.topic_id}
        if error.startswith("TOPIC_RECREATED") and found and len(begun) > 1:
            yield f"{sorted(found)[0]!r} is in a topic that the job was not begun with"

    def _has_ended(self, topic_id: str) -> bool:
        is_last = topic_id == self.topic.lives[-1].topic_id
        done = (run.metrics for run in self.runs if not run.is_killed)
        return is_last and any(each.status == "done" and each.topic_id == topic_id for each in done)
