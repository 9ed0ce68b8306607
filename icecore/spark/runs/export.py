"""One run of an export: which steps it makes, what each is noted as, and what it refuses.

A step reads a range of offsets and makes one folder of the table and, where something does not
parse, one of the quarantine. Each appears when it is whole. The first run fixes the columns.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Final, Protocol

from icecore.errors import ConfigurationError, ConflictError
from icecore.spark.plan import Snapshot
from icecore.spark.runs import commits, offsets
from icecore.spark.runs.commits import CommitLog
from icecore.spark.runs.folder import JobFolder
from icecore.spark.runs.ledger import JobLedger, Step
from icecore.spark.runs.offsets import Offsets
from icecore.spark.runs.report import Report

TABLE: Final = "table"
QUARANTINE: Final = "quarantine"


@dataclass(frozen=True, slots=True)
class Fields:
    """The columns that values have."""

    ddl: str
    """As a schema says them, always in the same words."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepWork:
    """All that says what a step is."""

    number: int
    topic_id: str
    """As hex digits."""
    fields: str
    starts: Offsets
    ends: Offsets
    staged: str
    """The folder that is to have the result, below that of the job: ``TABLE``, and ``QUARANTINE``
    where there is something for it."""


class ExportEngine(Protocol):
    """The side of an export that reads records and makes files."""

    folder: JobFolder

    def check(self) -> None:
        """Raises ConfigurationError: No such table can be made there."""

    def snapshot(self) -> Snapshot:
        """The topic as it is now. Raises IcecoreError."""

    def parse(self, ddl: str) -> Fields:
        """Raises ConfigurationError: It is no schema."""

    def infer(self, topic_id: str, starts: Offsets, ends: Offsets) -> str:
        """The columns that values of these records have. Raises IcecoreError."""

    def make(self, work: StepWork) -> tuple[int, int]:
        """Make the files of a step: how many records it has, and how many of them do not parse.

        Raises:
            TopicRecreatedError: The topic of that name is another one by now.
            OffsetOutOfRangeError: Records of the step are gone, and must not be.
        """

    def log(self, fields: str) -> CommitLog:
        """The log over the table, where one is wanted. Raises StorageError."""


class ExportRun:
    """One run.

    Args:
        engine: What reads and writes.
        arguments: Of the job.
        report: Of the run.
    """

    def __init__(self, engine: ExportEngine, arguments: Namespace, report: Report) -> None:
        self._engine = engine
        self._arguments = arguments
        self._report = report

    def perform(self) -> None:
        """Export what has come since the last run.

        Raises:
            ConfigurationError: The folder is another job's, or the schema is wrong.
            IcecoreError: The topic can't be read.
        """
        engine, arguments, report = self._engine, self._arguments, self._report
        metrics = report.metrics
        snapshot = engine.snapshot()
        metrics.topic_id = snapshot.topic_id.hex()
        metrics.output = engine.folder.under(TABLE)
        settings = {
            "job": "export",
            "topic": arguments.topic,
            "topic_id": metrics.topic_id,
            "partition_by": arguments.partition_by,
            "format": arguments.format,
        }
        engine.check()
        kept = JobLedger(engine.folder, settings).kept("fields")
        fields = self._fields(kept, snapshot)
        ledger = JobLedger(engine.folder, {**settings, "fields": fields.ddl})
        ledger.check()
        done = [] if ledger.is_new else ledger.done()
        metrics.steps_found_done = len(done)
        begun = None if ledger.is_new else ledger.planned(len(done))
        starts, ends = self._left(snapshot, offsets.reached(done))
        offsets.note_range(metrics, starts, ends)
        report.note(f"{offsets.count(snapshot, starts, ends):,} records are not exported yet")
        if arguments.dry_run:
            report.note(f"columns: {fields.ddl}")
            metrics.status = "planned"
            return
        ledger.open()
        ledger.publish_all(done)
        if begun is not None:
            report.note("an earlier run has not finished a step: that one first")
            done.append(self._make(ledger, len(done), begun))
            starts, ends = self._left(snapshot, offsets.reached(done))
        for start, end in offsets.cut(snapshot, starts, ends, arguments.step_records):
            plan = ledger.plan(len(done), {"start_offsets": start, "end_offsets": end})
            if plan["end_offsets"] != end:
                raise ConflictError(f"another run writes to {engine.folder.path}: wait for its end")
            done.append(self._make(ledger, len(done), plan))
        if arguments.format == "delta":
            log = engine.log(fields.ddl)
            count = commits.bring_up(log, engine.folder, TABLE, done)
            report.note(f"{count} steps were committed to the Delta log")
        ledger.clean()
        metrics.status = "done"

    def _left(self, snapshot: Snapshot, before: Offsets) -> tuple[Offsets, Offsets]:
        return offsets.left(snapshot, before, may_lose=self._arguments.allow_data_loss)

    def _make(self, ledger: JobLedger, number: int, plan: Step) -> Step:
        """One step: its rows, and its quarantine where there is something for it."""
        starts, ends, staged = plan["start_offsets"], plan["end_offsets"], ledger.staging()
        topic_id, fields = ledger.settings["topic_id"], ledger.settings["fields"]
        records, bad = self._engine.make(StepWork(number, topic_id, fields, starts, ends, staged))
        name = commits.step_name(number)
        places = {part: f"{part}/{name}" for part in (TABLE, QUARANTINE)}
        facts = {**plan, "records": records, "quarantined": bad}
        noted = ledger.finish(number, facts, staged, places)
        metrics = self._report.metrics
        offsets.note_range(metrics, starts, ends)
        metrics.records_read += records
        metrics.records_quarantined += bad
        metrics.records_written += records - bad
        metrics.steps_done += 1
        return noted

    def _fields(self, kept: Any, snapshot: Snapshot) -> Fields:
        """The columns: as told, as the first run had them, or as the first values look."""
        engine, arguments = self._engine, self._arguments
        if arguments.schema:
            fields = engine.parse(arguments.schema)
        elif isinstance(kept, str):
            fields = engine.parse(kept)
        else:
            starts, ends = offsets.left(snapshot, offsets.NOTHING, may_lose=True)
            first = next(offsets.cut(snapshot, starts, ends, arguments.infer_records), None)
            if first is None:
                raise ConfigurationError("the topic is empty: say its columns by --schema")
            fields = engine.parse(engine.infer(snapshot.topic_id.hex(), *first))
            count = offsets.count(snapshot, *first)
            self._report.note(f"columns were inferred from {count:,} records")
        missing = [name for name in arguments.partition_by if name not in fields.names]
        if missing:
            raise ConfigurationError(
                f"--partition-by names {missing[0]}; columns are {', '.join(fields.names)}"
            )
        return fields
