"""JSON values as a table: partitioned Parquet, and a quarantine for what does not parse.

Each step reads a range of offsets and makes one folder of the table and, where something does not
parse, one of the quarantine. Each appears when it is whole. The first run fixes the schema.
"""

from argparse import Namespace
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.observation import Observation
from pyspark.sql.types import StringType, StructField, StructType

from icecore.errors import ConfigurationError, ConflictError
from icecore.spark.columns import SCHEMA
from icecore.spark.jobs import delta, steps
from icecore.spark.jobs.files import JobFolder
from icecore.spark.jobs.ledger import JobLedger, Step
from icecore.spark.jobs.report import Report, Watch
from icecore.spark.plan import Snapshot

PLACES: Final = {
    "record_partition": "partition",
    "record_offset": "offset",
    "record_timestamp": "timestamp",
    "record_key": "key",
}
"""Columns of the table that say which record a row was."""
_BAD: Final = "_icecore_unparsed"


def export(spark: SparkSession, arguments: Namespace, report: Report) -> None:
    """Export what has come since the last run.

    Raises:
        ConfigurationError: The folder is another job's, or the schema is wrong.
        IcecoreError: The topic can't be read.
    """
    metrics = report.metrics
    snapshot = steps.snapshot_of(arguments.bootstrap, arguments.topic)
    metrics.topic_id = snapshot.topic_id.hex()
    folder = JobFolder(spark, arguments.to)
    metrics.output = folder.under("table")
    settings = {
        "job": "export",
        "topic": arguments.topic,
        "topic_id": metrics.topic_id,
        "partition_by": arguments.partition_by,
        "format": arguments.format,
    }
    if arguments.format == "delta":
        delta.check(folder)
    kept = JobLedger(folder, settings).kept("fields")
    fields = _fields(spark, arguments, report, kept, snapshot)
    ledger = JobLedger(folder, {**settings, "fields": fields.toDDL()})
    ledger.check()
    done = [] if ledger.is_new else ledger.done()
    metrics.steps_found_done = len(done)
    begun = None if ledger.is_new else ledger.planned(len(done))
    before = done[-1]["end_offsets"] if done else steps.NOTHING
    starts, ends = steps.left(snapshot, before, may_lose=arguments.allow_data_loss)
    steps.note_range(metrics, starts, ends)
    report.note(f"{steps.count(snapshot, starts, ends):,} records are not exported yet")
    if arguments.dry_run:
        report.note(f"columns: {fields.toDDL()}")
        metrics.status = "planned"
        return
    ledger.open()
    ledger.publish_all(done)
    if begun is not None:
        report.note("an earlier run has not finished a step: that one first")
        done.append(_make(spark, arguments, report, ledger, len(done), begun))
        reached = done[-1]["end_offsets"]
        starts, ends = steps.left(snapshot, reached, may_lose=arguments.allow_data_loss)
    for start, end in steps.cut(snapshot, starts, ends, arguments.step_records):
        plan = ledger.plan(len(done), {"start_offsets": start, "end_offsets": end})
        if plan["end_offsets"] != end:
            raise ConflictError(f"another run writes to {folder.path}: wait for its end")
        done.append(_make(spark, arguments, report, ledger, len(done), plan))
    if arguments.format == "delta":
        _commit(ledger, arguments, report, done)
    ledger.clean()
    metrics.status = "done"


def _commit(ledger: JobLedger, arguments: Namespace, report: Report, done: list[Step]) -> None:
    fields = parsed_schema(ledger.settings["fields"])
    names = {ours: SCHEMA[theirs].dataType for ours, theirs in PLACES.items()}
    places = [StructField(name, kind) for name, kind in names.items()]
    columns = StructType([*places, *fields.fields])
    count = delta.bring_up(ledger.folder, "table", columns, arguments.partition_by, done)
    report.note(f"{count} steps were committed to the Delta log")


def _make(
    spark: SparkSession,
    arguments: Namespace,
    report: Report,
    ledger: JobLedger,
    number: int,
    plan: Step,
) -> Step:
    """One step: its rows, and its quarantine where there is something for it."""
    starts, ends = plan["start_offsets"], plan["end_offsets"]
    folder, staged = ledger.folder, ledger.staging()
    topic_id = ledger.settings["topic_id"]
    fields = parsed_schema(ledger.settings["fields"])
    rows = parsed(steps.read_step(spark, arguments, topic_id, starts, ends), fields)
    seen = Observation()
    bad = F.count_if(F.col(_BAD).isNotNull()).alias("bad")
    writing = rows.observe(seen, F.count("*").alias("records"), bad).where(F.col(_BAD).isNull())
    table = writing.select(*PLACES, "fields.*").write
    if arguments.partition_by:
        table = table.partitionBy(*arguments.partition_by)
    with Watch(spark, report, f"step {number}"):
        table.parquet(folder.under(f"{staged}/table"))
        counts = seen.get
        if counts["bad"]:
            unparsed = rows.where(F.col(_BAD).isNotNull())
            kept = unparsed.select(*PLACES, F.col("value"), F.col(_BAD).alias("reason"))
            kept.write.parquet(folder.under(f"{staged}/quarantine"))
    name = f"step={number:06}"
    places = {"table": f"table/{name}", "quarantine": f"quarantine/{name}"}
    facts = {**plan, "records": counts["records"], "quarantined": counts["bad"]}
    noted = ledger.finish(number, facts, staged, places)
    metrics = report.metrics
    steps.note_range(metrics, starts, ends)
    metrics.records_read += counts["records"]
    metrics.records_quarantined += counts["bad"]
    metrics.records_written += counts["records"] - counts["bad"]
    metrics.steps_done += 1
    return noted


def parsed(records: DataFrame, fields: StructType) -> DataFrame:
    """Records with ``fields``, and why not where the value does not parse."""
    wanted = StructType([*fields.fields, StructField(_BAD, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
    text = F.col("value").cast("string")
    places = [F.col(column).alias(name) for name, column in PLACES.items()]
    rows = records.select(*places, "value", F.from_json(text, wanted, options).alias("fields"))
    return rows.withColumn(_BAD, _reason()).withColumn("fields", F.col("fields").dropFields(_BAD))


def _reason() -> Column:
    """Why a value does not parse; null where it does.

    The parser stops behind the first value, so something that follows it is found by another one.
    """
    text = F.col("value").cast("string")
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return (
        F.when(F.col("value").isNull(), "no value (a tombstone)")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .when(values.isNull() | (values != 1), "not JSON")
        .when(~F.ltrim(text).startswith("{"), "not a JSON object")
        .when(F.col(f"fields.{_BAD}").isNotNull(), "a field has another type than the schema says")
    )


def parsed_schema(text: str) -> StructType:
    """A schema as ``simpleString`` or a user writes it.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        found = StructType.fromDDL(text)
    except PySparkException as error:
        raise ConfigurationError(
            f"--schema is a list of columns such as 'carrier string, month int', not {text[:200]!r}"
        ) from error
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigurationError(f"--schema names no columns: {text[:200]!r}")
    taken = {*PLACES, _BAD} & set(found.fieldNames())
    if taken:
        raise ConfigurationError(f"--schema can't have a column {min(taken)}: the job adds it")
    return found


def _fields(
    spark: SparkSession,
    arguments: Namespace,
    report: Report,
    kept: Any,
    snapshot: Snapshot,
) -> StructType:
    """The columns: as told, as the first run had them, or as the first values look."""
    if arguments.schema:
        fields = parsed_schema(arguments.schema)
    elif isinstance(kept, str):
        fields = parsed_schema(kept)
    else:
        starts, ends = steps.left(snapshot, steps.NOTHING, may_lose=True)
        first = next(steps.cut(snapshot, starts, ends, arguments.infer_records), None)
        if first is None:
            raise ConfigurationError("the topic is empty: say its columns by --schema")
        values = steps.read_step(spark, arguments, report.metrics.topic_id, *first).select(
            F.col("value").cast("string")
        )
        found = spark.read.option("mode", "DROPMALFORMED").json(
            values.where("value is not null and is_valid_utf8(value)").rdd.map(lambda row: row[0])
        )
        fields = parsed_schema(found.schema.toDDL())
        report.note(f"columns were inferred from {steps.count(snapshot, *first):,} records")
    missing = [name for name in arguments.partition_by if name not in fields.fieldNames()]
    if missing:
        raise ConfigurationError(
            f"--partition-by names {missing[0]}; columns are {', '.join(fields.fieldNames())}"
        )
    return fields
