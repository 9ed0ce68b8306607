"""An export in a simulated world: production's code, and a side of its own where Spark is.

It reads the topic by the real client, from offsets that production plans, and writes rows as JSON
into a file system that fails (``job_files``).
"""

import asyncio
import json
import random
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icecore.errors import StorageError
from icecore.spark.options import read_options
from icecore.spark.plan import OffsetRange, Snapshot
from icecore.spark.reading import RangeSource, open_range
from icecore.spark.runs.commits import CommitLog
from icecore.spark.runs.export import QUARANTINE, TABLE, ExportRun, Fields, StepWork
from icecore.spark.runs.folder import JobFile, JobFolder
from icecore.spark.runs.offsets import Offsets, step_options
from icecore.spark.runs.report import Report
from icecore.spark.snapshot import plan_read, take_snapshot
from tests.simulation.history import History
from tests.simulation.job_files import JobDisk, SimFiles
from tests.simulation.job_runs import Job, RunPorts
from tests.simulation.job_topic import JobTopic, Place, is_bad
from tests.simulation.job_verdict import OUT, JobRunSeen, JobTruth, verdict
from tests.simulation.observer import Observer

if TYPE_CHECKING:
    from tests.simulation.cluster import World

FILE_ROWS = 20
HEAL_S = 60.0
LAST_RUNS_MAX = 3
"""When all is healed: one goes on where another was, one follows."""


class SimExport:
    """See ``ExportEngine``.

    Args:
        ports: Of the run.
        asked: Its arguments.
        disk: Where it writes.
    """

    def __init__(self, ports: RunPorts, asked: Any, disk: JobDisk) -> None:
        self._ports = ports
        self._asked = asked
        self._disk = disk
        self._files = ports.files(disk, asked.to)
        self.folder = JobFolder(self._files)

    def check(self) -> None:
        """See ``ExportEngine``."""

    def snapshot(self) -> Snapshot:
        """See ``ExportEngine``."""
        with self._ports.admin() as admin:
            return take_snapshot(admin, self._asked.topic, with_segments=False)

    def parse(self, ddl: str) -> Fields:
        """See ``ExportEngine``."""
        return Fields(ddl, tuple(each.split()[0] for each in ddl.split(",")))

    def infer(self, topic_id: str, starts: Offsets, ends: Offsets) -> str:
        """See ``ExportEngine``."""
        self._read(topic_id, starts, ends)
        return "n int"

    def make(self, work: StepWork) -> tuple[int, int]:
        """See ``ExportEngine``. Tasks write files of the table, then of the quarantine."""
        rows = self._read(work.topic_id, work.starts, work.ends)
        bad = [each for each in rows if is_bad(each[2])]
        good = [each for each in rows if not is_bad(each[2])]
        self._write(f"{work.staged}/{TABLE}", good)
        if bad:
            self._write(f"{work.staged}/{QUARANTINE}", bad)
        return len(rows), len(bad)

    def log(self, fields: str) -> CommitLog:
        """See ``ExportEngine``."""
        return SimCommitLog(self._files, self._disk)

    def _write(self, folder: str, rows: Sequence[tuple[int, int, str]]) -> None:
        self._files.create(f"{folder}/_SUCCESS", "")
        for at in range(0, len(rows), FILE_ROWS):
            name = f"{folder}/part-{at:05}-{self._files.new_name()}.parquet"
            self._files.create(name, json.dumps(rows[at : at + FILE_ROWS]))

    def _read(self, topic_id: str, starts: Offsets, ends: Offsets) -> list[tuple[int, int, str]]:
        """The records of a step, as ``read_step`` and the data source plan them."""
        asked, ports = self._asked, self._ports
        with ports.admin() as admin:
            numbers = admin.list_offsets(asked.topic, "latest")
        may_lose = asked.allow_data_loss
        texts = step_options(numbers, topic_id, starts, ends, may_lose=may_lose)
        texts |= {"topic": asked.topic, "bootstrap": asked.bootstrap}
        options = read_options(texts, is_stream=False)
        with ports.admin() as admin:
            planned = plan_read(admin, options, with_files=False)
        source = RangeSource(
            ports.bootstrap, asked.topic, planned.topic_id, (), (), options.fail_on_data_loss
        )
        ranges = [
            OffsetRange(number, start, end)
            for number, spans in planned.spans.items()
            for start, end in spans
        ]
        return [
            (each.partition, offset, value)
            for each in ranges
            for offset, value in ports.thread.wait(lambda each=each: self._range(source, each))
        ]

    async def _range(self, source: RangeSource, wanted: OffsetRange) -> list[tuple[int, str]]:
        ports, found = self._ports, list[tuple[int, str]]()
        await ports.step("read")
        reading = await open_range(
            source,
            wanted,
            ("offset", "value"),
            net=ports.net,
            clock=ports.clock,
            rng=ports.client_rng,
        )
        try:
            while batches := await reading.next():
                for batch in batches:
                    values = batch.column("value").to_pylist()
                    offsets = batch.column("offset").to_pylist()
                    found += zip(offsets, (each.decode() for each in values), strict=True)
        finally:
            await reading.close()
        return found


class SimCommitLog:
    """See ``CommitLog``. The library of a real one writes a file only if there is none, anywhere.

    Args:
        files: Where.
        disk: The same.
    """

    def __init__(self, files: SimFiles, disk: JobDisk) -> None:
        self._files = files
        self._disk = disk
        self._folder = f"{TABLE}/_delta_log"

    def last(self) -> int | None:
        """See ``CommitLog``."""
        names = self._files.names(self._folder)
        return max((int(each.removesuffix(".json")) for each in names), default=None)

    def commit(self, number: int, files: Sequence[JobFile]) -> None:
        """See ``CommitLog``."""
        folder = f"{OUT}/{TABLE}/step={number:06}"
        named = [f"{folder}/{each.path}" for each in files if each.path.endswith(".parquet")]
        at = f"{self._folder}/{number}.json"
        if self._files.exists(at):  # and nothing comes between
            raise StorageError(f"the log of {OUT}: another one has committed step {number}")
        self._disk.put(f"{OUT}/{at}", json.dumps(named), self._files.clock_ms())


class ExportJob(Job):
    """One export.

    Args:
        world: Where it lives.
        topic: That it exports.
        may_lose: Runs are told to go on behind records that are gone.
    """

    def __init__(self, world: "World", topic: JobTopic, *, may_lose: bool = False) -> None:
        rng = random.Random(f"job of {topic.name} {world.seed}")
        self._may_lose = may_lose
        self._format = rng.choice(["parquet", "delta"])
        given = [
            *("--to", OUT),
            *("--step-records", str(rng.choice([15, 40, 1_000]))),
            *("--format", self._format),
            *(["--schema", "n int"] if rng.random() < 0.7 else []),
            *(["--allow-data-loss"] if may_lose else []),
        ]
        super().__init__(world, topic, "export", given)

    def perform(self, ports: RunPorts, asked: Namespace, report: Report) -> None:
        """See ``Job``."""
        ExportRun(SimExport(ports, asked, self.disk), asked, report).perform()

    # --- the verdict ----------------------------------------------------------------------------

    async def finish(self, observer: Observer) -> list[str]:
        """Run it again until it is done, as nothing fails any more, and judge.

        Raises:
            TimeoutError: A run does not come to its end.
        """
        self.topic.stop_writing()
        self.disk.heal()
        for kind in [*self.disk.struck.elements()]:
            self.world.count_fault(kind)
        history = History(produces=[])
        async with asyncio.timeout(5 * HEAL_S):
            problems = await self._last_runs()
            problems += await observer.read_everything(self.name, history)
        final: dict[Place, str] = {
            (partition, offset): value.decode()
            for (_, partition), log in history.final.items()
            for offset, value in log
        }
        truth = JobTruth(self.topic.lives, final, self._format == "delta")
        problems += verdict(self.runs, self.disk.texts, truth)
        return [f"{self.name}: {each}" for each in problems]

    async def _last_runs(self) -> list[str]:
        """Problems of runs that nothing disturbs."""
        last: JobRunSeen | None = None
        for _ in range(LAST_RUNS_MAX):
            last = await self.run()
            if last.metrics.status == "done":
                self.world.count_fault("job_done")
                return await self._refusals()
        assert last is not None
        error = last.metrics.error
        if error.startswith(tuple(self._excuses(last.after))):
            self.world.count_fault(f"job_{error.partition(':')[0].lower()}")
            return []
        return [f"the last run is not done: {error}"]

    def _excuses(self, texts: Mapping[str, str]) -> list[str]:
        """Reasons for which a job may go on no more."""
        found = []
        job = texts.get(f"{OUT}/_icecore/job.json")
        if job is not None and json.loads(job)["topic_id"] != self.topic.lives[-1].topic_id:
            found.append("TOPIC_RECREATED")
        if self.topic.lives[-1].dropped_below and not self._may_lose:
            found.append("OFFSET_OUT_OF_RANGE")
        return found

    async def _refusals(self) -> list[str]:
        """Other arguments than those of the first run are refused."""
        other = "parquet" if self._format == "delta" else "delta"
        for more in (("--format", other), ("--partition-by", "n"), ("--schema", "m int")):
            await self.run(None, *more, wrong="CONFIGURATION")
        for _ in range(LAST_RUNS_MAX):  # a record may have been on its way
            again = await self.run()
            if (again.metrics.status, again.metrics.steps_done) == ("done", 0):
                return []
        return [f"the job is done, and again {again.metrics}"]
