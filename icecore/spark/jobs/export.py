"""JSON values as a table: partitioned Parquet, and a quarantine for what does not parse.

Which steps there are, and what becomes of them, is in ``icecore.spark.runs.export``; here Spark
reads one and writes it.
"""

from argparse import Namespace
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.observation import Observation
from pyspark.sql.types import StringType, StructField, StructType

from icecore.errors import ConfigurationError
from icecore.spark.columns import SCHEMA
from icecore.spark.jobs import delta, steps
from icecore.spark.jobs.files import folder_of
from icecore.spark.jobs.watch import Watch
from icecore.spark.plan import Snapshot
from icecore.spark.runs.commits import CommitLog
from icecore.spark.runs.export import QUARANTINE, TABLE, ExportRun, Fields, StepWork
from icecore.spark.runs.offsets import Offsets
from icecore.spark.runs.report import Report

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
    ExportRun(SparkExport(spark, arguments, report), arguments, report).perform()


class SparkExport:
    """``ExportEngine`` of Spark.

    Args:
        spark: The session.
        arguments: Of the job.
        report: Of the run.

    Raises:
        ConfigurationError: Spark can't write there.
    """

    def __init__(self, spark: SparkSession, arguments: Namespace, report: Report) -> None:
        self._spark = spark
        self._arguments = arguments
        self._report = report
        self.folder = folder_of(spark, arguments.to)

    def check(self) -> None:
        """See ``ExportEngine``."""
        if self._arguments.format == "delta":
            delta.check(self.folder)

    def snapshot(self) -> Snapshot:
        """See ``ExportEngine``."""
        return steps.snapshot_of(self._arguments.bootstrap, self._arguments.topic)

    def parse(self, ddl: str) -> Fields:
        """See ``ExportEngine``."""
        found = parsed_schema(ddl)
        return Fields(found.toDDL(), tuple(found.fieldNames()))

    def infer(self, topic_id: str, starts: Offsets, ends: Offsets) -> str:
        """See ``ExportEngine``."""
        records = steps.read_step(self._spark, self._arguments, topic_id, starts, ends)
        values = records.select(F.col("value").cast("string"))
        texts = values.where("value is not null and is_valid_utf8(value)")
        found = self._spark.read.option("mode", "DROPMALFORMED").json(
            texts.rdd.map(lambda row: row[0])
        )
        ddl: str = found.schema.toDDL()
        return ddl

    def make(self, work: StepWork) -> tuple[int, int]:
        """See ``ExportEngine``."""
        folder, arguments = self.folder, self._arguments
        read = steps.read_step(self._spark, arguments, work.topic_id, work.starts, work.ends)
        rows = parsed(read, parsed_schema(work.fields))
        seen = Observation()
        bad = F.count_if(F.col(_BAD).isNotNull()).alias("bad")
        writing = rows.observe(seen, F.count("*").alias("records"), bad)
        table = writing.where(F.col(_BAD).isNull()).select(*PLACES, "fields.*").write
        if arguments.partition_by:
            table = table.partitionBy(*arguments.partition_by)
        with Watch(self._spark, self._report, f"step {work.number}"):
            table.parquet(folder.under(f"{work.staged}/{TABLE}"))
            counts = seen.get
            if counts["bad"]:
                unparsed = rows.where(F.col(_BAD).isNotNull())
                kept = unparsed.select(*PLACES, F.col("value"), F.col(_BAD).alias("reason"))
                kept.write.parquet(folder.under(f"{work.staged}/{QUARANTINE}"))
        return counts["records"], counts["bad"]

    def log(self, fields: str) -> CommitLog:
        """See ``ExportEngine``."""
        names = {ours: SCHEMA[theirs].dataType for ours, theirs in PLACES.items()}
        places = [StructField(name, kind) for name, kind in names.items()]
        columns = StructType([*places, *parsed_schema(fields).fields])
        return delta.DeltaLog(self.folder, TABLE, columns, self._arguments.partition_by)


def parsed(records: DataFrame, fields: StructType) -> DataFrame:
    """Records with ``fields``, and why not where the value does not parse."""
    wanted = StructType([*fields.fields, StructField(_BAD, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
    text = F.col("value").cast("string")
    places = [F.col(column).alias(name) for name, column in PLACES.items()]
    rows = records.select(*places, "value", F.from_json(text, wanted, options).alias("fields"))
    return rows.withColumn(_BAD, _reason()).withColumn("fields", F.col("fields").dropFields(_BAD))


def _reason() -> Column:
    """Return why a value does not parse; null where it does.

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
