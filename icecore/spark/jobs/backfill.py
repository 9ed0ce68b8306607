"""A table into a topic, each row once however often the job is started.

Rows go through a shuffle by key and a sort by all that is written, so which rows a task gets, and
in which order, follows from the rows alone: not from files, splits or the size of the cluster. So
a task that is run again sends what it sent before, and leaders recognise it.
"""

from argparse import Namespace

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.observation import Observation

from icecore.errors import ConfigurationError
from icecore.spark.jobs import steps
from icecore.spark.jobs.files import JobFolder
from icecore.spark.jobs.ledger import JobLedger
from icecore.spark.jobs.report import Report, Watch


def backfill(spark: SparkSession, arguments: Namespace, report: Report) -> None:
    """Write the table, or what is left of it.

    Raises:
        ConfigurationError: A column is not there, or the state is another job's.
        IcecoreError: The topic takes no records.
    """
    metrics = report.metrics
    snapshot = steps.snapshot_of(arguments.bootstrap, arguments.topic)
    metrics.topic_id = snapshot.topic_id.hex()
    metrics.output = arguments.topic
    folder = JobFolder(spark, arguments.state)
    settings = {
        "job": "backfill",
        "topic": arguments.topic,
        "topic_id": metrics.topic_id,
        "source": arguments.source,
        "format": arguments.format,
        "columns": [arguments.key, arguments.value, arguments.timestamp, arguments.tags],
        "order_by": arguments.order_by,
        "steps": arguments.steps,
        "tasks": arguments.tasks,
    }
    ledger = JobLedger(folder, settings)
    ledger.check()
    done = [] if ledger.is_new else ledger.done()
    metrics.steps_found_done = len(done)
    rows = records_of(_table(spark, arguments), arguments)
    if arguments.dry_run:
        with Watch(spark, report, "counting rows"):
            metrics.records_read = rows.count()
        report.note(f"{metrics.records_read:,} rows, {arguments.steps - len(done)} steps are left")
        metrics.status = "planned"
        return
    ledger.open()
    job_id = ledger.plan(0, {"write_id": f"backfill {ledger.staging()}"})["write_id"]
    for number in range(len(done), arguments.steps):
        seen = Observation()
        bucket = F.pmod(F.xxhash64(_placed_by()), F.lit(arguments.steps))
        mine = rows.where(bucket == number).observe(seen, F.count("*").alias("records"))
        writing = in_order(mine, arguments).write.format("icecore").mode("append")
        writing = writing.options(topic=arguments.topic, bootstrap=arguments.bootstrap)
        writing = writing.option("topicId", metrics.topic_id)
        with Watch(spark, report, f"step {number + 1} of {arguments.steps}"):
            writing.option("writeId", f"{job_id} {number}").save()
        count = seen.get["records"]
        ledger.note_done(number, {"records": count})
        metrics.records_read += count
        metrics.records_written += count
        metrics.steps_done += 1
    metrics.status = "done"


def _table(spark: SparkSession, arguments: Namespace) -> DataFrame:
    try:
        return spark.read.format(arguments.format).load(arguments.source)
    except AnalysisException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"--from {arguments.source} can't be read: {reason}") from error


def records_of(table: DataFrame, arguments: Namespace) -> DataFrame:
    """Rows as records, with what they are sorted by beside them.

    Raises:
        ConfigurationError: A column is not there, or has a type that does not fit.
    """
    asked = [arguments.key, arguments.value, arguments.timestamp]
    for name in [*filter(None, asked), *arguments.tags, *arguments.order_by]:
        if name not in table.columns:
            raise ConfigurationError(
                f"the table has no column {name}: columns are {', '.join(table.columns)}"
            )
    types = {field.name: field.dataType.simpleString() for field in table.schema}
    if arguments.value and types[arguments.value] not in ("string", "binary"):
        raise ConfigurationError(
            f"--value {arguments.value} is {types[arguments.value]}, and must be string or binary; "
            "without --value all columns are written as JSON"
        )
    if arguments.timestamp and types[arguments.timestamp] != "timestamp":
        raise ConfigurationError(
            f"--timestamp {arguments.timestamp} is {types[arguments.timestamp]}, not timestamp"
        )
    whole = F.to_json(F.struct(*table.columns), {"ignoreNullFields": "false"})
    value = F.col(arguments.value) if arguments.value else whole
    columns = [value.cast("binary").alias("value")]
    key = F.col(arguments.key).cast("string") if arguments.key else F.lit(None).cast("string")
    if arguments.key and types[arguments.key] == "binary":
        key = F.col(arguments.key)
    columns.append(key.cast("binary").alias("key"))
    if arguments.timestamp:
        columns.append(F.col(arguments.timestamp).alias("timestamp"))
    if arguments.tags:
        texts = F.array(*[F.col(name).cast("string") for name in arguments.tags])
        columns.append(F.array_compact(texts).alias("tags"))
    order = [F.col(name).alias(f"_order_{i}") for i, name in enumerate(arguments.order_by)]
    return table.select(*columns, *order)


def _placed_by() -> Column:
    return F.coalesce("key", "value")


def in_order(rows: DataFrame, arguments: Namespace) -> DataFrame:
    """The same rows in the same tasks and the same order, whatever machine does it."""
    order = [name for name in rows.columns if name.startswith("_order_")]
    columns = [name for name in rows.columns if name not in order]
    placed = rows.repartition(arguments.tasks, _placed_by())
    return placed.sortWithinPartitions(*order, *sorted(columns)).select(*columns)
