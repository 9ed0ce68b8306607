"""The newest value of each key as a table, kept up to date from run to run.

A run reads what came since the last one and merges it with the last version of the table, so its
cost follows what is new. A tombstone takes its key out. Each version is a folder that appears when
it is whole; readers of the one before have until two more are there.
"""

from argparse import Namespace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.observation import Observation

from icecore.spark.columns import SCHEMA
from icecore.spark.jobs import steps
from icecore.spark.jobs.files import folder_of
from icecore.spark.jobs.watch import Watch
from icecore.spark.runs import offsets
from icecore.spark.runs.ledger import JobLedger, Step
from icecore.spark.runs.report import Report
from icecore.spark.scan import literal

KEPT: Final = 2
"""Versions that stay."""


def latest(spark: SparkSession, arguments: Namespace, report: Report) -> None:
    """Bring the table up to what the topic holds now.

    Raises:
        ConfigurationError: The folder is another job's.
        IcecoreError: The topic can't be read.
    """
    metrics = report.metrics
    snapshot = steps.snapshot_of(arguments.bootstrap, arguments.topic)
    metrics.topic_id = snapshot.topic_id.hex()
    ledger = JobLedger(
        folder_of(spark, arguments.to),
        {"job": "latest", "topic": arguments.topic, "topic_id": metrics.topic_id},
    )
    ledger.check()
    done = [] if ledger.is_new else ledger.done()
    metrics.steps_found_done = len(done)
    begun = None if ledger.is_new else ledger.planned(len(done))
    before = offsets.reached(done)
    starts, ends = offsets.left(snapshot, before, may_lose=arguments.allow_data_loss)
    offsets.note_range(metrics, starts, ends)
    report.note(f"{offsets.count(snapshot, starts, ends):,} records are new since the last version")
    if arguments.dry_run:
        metrics.status = "planned"
        metrics.output = ledger.folder.under(_version(len(done)))
        return
    ledger.open()
    ledger.publish_all(done)
    if begun is not None:
        report.note("an earlier run has not finished its version: that one first")
        done.append(_make(spark, arguments, report, ledger, done, begun))
        before = offsets.reached(done)
        starts, ends = offsets.left(snapshot, before, may_lose=arguments.allow_data_loss)
    if offsets.count(snapshot, starts, ends) or not done:
        plan = ledger.plan(len(done), {"start_offsets": starts, "end_offsets": ends})
        done.append(_make(spark, arguments, report, ledger, done, plan))
    ledger.clean()
    metrics.output = ledger.folder.under(done[-1]["version"])
    metrics.status = "done"


def _make(
    spark: SparkSession,
    arguments: Namespace,
    report: Report,
    ledger: JobLedger,
    done: list[Step],
    plan: Step,
) -> Step:
    """One version: the one before and what is new."""
    starts, ends = plan["start_offsets"], plan["end_offsets"]
    version, staged = _version(len(done)), ledger.staging()
    read, written = Observation(), Observation()
    new = steps.read_step(spark, arguments, report.metrics.topic_id, starts, ends).drop("topic")
    rows = new.observe(read, F.count("*").alias("records"))
    if done:
        last = literal(ledger.folder.under(done[-1]["version"]))
        rows = rows.unionByName(spark.read.parquet(last))
    table = newest(rows).observe(written, F.count("*").alias("records"))
    with Watch(spark, report, f"version {len(done)}"):
        table.write.parquet(ledger.folder.under(staged))
    facts = {**plan, "version": version, "rows": written.get["records"]}
    noted = ledger.finish(len(done), facts, staged, {"": version})
    for number in range(len(done) + 1 - KEPT):
        ledger.folder.delete(_version(number))
    offsets.note_range(report.metrics, starts, ends)
    report.metrics.records_read += read.get["records"]
    report.metrics.records_written = facts["rows"]
    report.metrics.steps_done += 1
    report.note(f"{facts['rows']:,} keys have a value in {version}")
    return noted


def newest(rows: DataFrame) -> DataFrame:
    """Keep the last appended record of each key, unless that is a tombstone.

    Append times never go back within a partition, and a key changes its partition only when the
    topic gets more of them.
    """
    names = [name for name in SCHEMA.fieldNames() if name not in ("topic", "key")]
    order = F.struct("append_timestamp", "offset")
    found = rows.where("key is not null").groupBy("key")
    last = found.agg(F.max_by(F.struct(*names), order).alias("last"))
    return last.select("key", "last.*").where("value is not null")


def _version(number: int) -> str:
    return f"version={number:06}"
