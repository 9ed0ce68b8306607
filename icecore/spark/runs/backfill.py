"""One run of a backfill: which steps are left of it, under which name each is written, and what it
refuses.

The name of the write is noted before the first row is written, so whoever goes on writes under the
same one, and leaders recognise the rows that they have (``icecore.spark.tasks``).
"""

from argparse import Namespace
from typing import Protocol

from icecore.spark.plan import Snapshot
from icecore.spark.runs.folder import JobFolder
from icecore.spark.runs.ledger import JobLedger
from icecore.spark.runs.report import Report
from icecore.spark.tasks.identity import SparkTaskChangedError


class BackfillEngine(Protocol):
    """The side of a backfill that reads the table and appends its rows."""

    folder: JobFolder

    def snapshot(self) -> Snapshot:
        """The topic as it is now. Raises IcecoreError."""

    def check(self) -> None:
        """Raises ConfigurationError: The table can't be read, or lacks a column."""

    def count(self) -> int:
        """Return how many rows the table has."""

    def append(self, number: int, topic_id: str, write_id: str) -> int:
        """Append the rows of a step, but for those that are there: how many rows it has.

        Args:
            number: Of the step.
            topic_id: Of the topic that is meant, as hex digits.
            write_id: The name of the write.

        Raises:
            TopicRecreatedError: The topic of that name is another one by now.
            SparkTaskChangedError: The rows are others than those that are there.
            IcecoreError: They can't be appended.
        """


class BackfillRun:
    """One run.

    Args:
        engine: What reads and writes.
        arguments: Of the job.
        report: Of the run.
    """

    def __init__(self, engine: BackfillEngine, arguments: Namespace, report: Report) -> None:
        self._engine = engine
        self._arguments = arguments
        self._report = report

    def perform(self) -> None:
        """Write the table, or what is left of it.

        Raises:
            ConfigurationError: A column is not there, or the state is another job's.
            IcecoreError: The topic takes no records.
        """
        engine, arguments, report = self._engine, self._arguments, self._report
        metrics = report.metrics
        snapshot = engine.snapshot()
        metrics.topic_id = snapshot.topic_id.hex()
        metrics.output = arguments.topic
        ledger = JobLedger(engine.folder, self._settings())
        ledger.check()
        done = [] if ledger.is_new else ledger.done()
        metrics.steps_found_done = len(done)
        engine.check()
        if arguments.dry_run:
            metrics.records_read = engine.count()
            left = arguments.steps - len(done)
            report.note(f"{metrics.records_read:,} rows, {left} steps are left")
            metrics.status = "planned"
            return
        ledger.open()
        wanted = {
            "write_id": f"backfill {ledger.staging()}",
            "partitions": len(snapshot.partitions),
        }
        begun = ledger.plan(0, wanted)
        for number in range(len(done), arguments.steps):
            write_id = f"{begun['write_id']} {number}"
            try:
                count = engine.append(number, metrics.topic_id, write_id)
            except SparkTaskChangedError as error:
                raise self._explained(error, number, begun.get("partitions", 0)) from error
            ledger.note_done(number, {"records": count})
            metrics.records_read += count
            metrics.records_written += count
            metrics.steps_done += 1
        metrics.status = "done"

    def _explained(
        self, error: SparkTaskChangedError, number: int, before: int
    ) -> SparkTaskChangedError:
        """Say what to do where keys have moved: no other run can finish the step then."""
        now = len(self._engine.snapshot().partitions)
        if not before or now == before:
            return error
        name = self._arguments.topic
        return SparkTaskChangedError(
            f"topic {name} had {before} partitions when this backfill began and has {now}, so keys "
            f"have moved, and step {number} can't be finished with each row written once. What is "
            "written stays. Backfill into a new topic with a new --state, and add no partitions "
            f"meanwhile. ({error.message})"
        )

    def _settings(self) -> dict[str, object]:
        arguments = self._arguments
        return {
            "job": "backfill",
            "topic": arguments.topic,
            "topic_id": self._report.metrics.topic_id,
            "source": arguments.source,
            "format": arguments.format,
            "columns": [arguments.key, arguments.value, arguments.timestamp, arguments.tags],
            "order_by": arguments.order_by,
            "steps": arguments.steps,
            "tasks": arguments.tasks,
        }
