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
from icecore.spark.jobs.files import folder_of
from icecore.spark.jobs.watch import Watch
from icecore.spark.plan import Snapshot
from icecore.spark.runs.backfill import BackfillRun
from icecore.spark.runs.report import Report


def backfill(spark: SparkSession, arguments: Namespace, report: Report) -> None:
    """Write the table, or what is left of it.

    Raises:
        ConfigurationError: A column is not there, or the state is another job's.
        IcecoreError: The topic takes no records.
    """
    BackfillRun(SparkBackfill(spark, arguments, report), arguments, report).perform()


class SparkBackfill:
    """``BackfillEngine`` of Spark.

    Args:
        spark: The session.
        arguments: Of the job.
        report: Of the run.

    Raises:
        ConfigurationError: Spark can't write to the folder of the state.
    """

    def __init__(self, spark: SparkSession, arguments: Namespace, report: Report) -> None:
        self._spark = spark
        self._arguments = arguments
        self._report = report
        self.folder = folder_of(spark, arguments.state)
        self._found: DataFrame | None = None

    def snapshot(self) -> Snapshot:
        """See ``BackfillEngine``."""
        return steps.snapshot_of(self._arguments.bootstrap, self._arguments.topic)

    def check(self) -> None:
        """See ``BackfillEngine``."""
        self._rows()

    def count(self) -> int:
        """See ``BackfillEngine``."""
        with Watch(self._spark, self._report, "counting rows"):
            rows: int = self._rows().count()
            return rows

    def append(self, number: int, topic_id: str, write_id: str) -> int:
        """See ``BackfillEngine``."""
        arguments, seen = self._arguments, Observation()
        bucket = F.pmod(F.xxhash64(_placed_by()), F.lit(arguments.steps))
        mine = self._rows().where(bucket == number).observe(seen, F.count("*").alias("records"))
        writing = in_order(mine, arguments).write.format("icecore").mode("append")
        writing = writing.options(topic=arguments.topic, bootstrap=arguments.bootstrap)
        with Watch(self._spark, self._report, f"step {number + 1} of {arguments.steps}"):
            writing.options(topicId=topic_id, writeId=write_id).save()
        records: int = seen.get["records"]
        return records

    def _rows(self) -> DataFrame:
        if self._found is None:
            self._found = records_of(_table(self._spark, self._arguments), self._arguments)
        return self._found


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
