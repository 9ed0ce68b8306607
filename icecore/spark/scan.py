"""Spark's own scan of Parquet objects in object storage, and what to say when it can't reach them.

Spark opens the store itself, with its own libraries and credentials: that nodes can does not mean
that it can. So the objects are looked for when the read is planned, and not finding them is an
error that names the remedy.
"""

import functools
import operator
import re
from collections.abc import Sequence
from typing import Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from icecore.errors import ConfigurationError, StorageError
from icecore.spark.columns import SCHEMA
from icecore.spark.objects.store import ANYWAY
from icecore.spark.options import ReadOptions
from icecore.spark.tiered import TieredFile

_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS_MIN: Final = 8
_PATHS_PER_TASK: Final = 100
_CHECK_PAGES: Final = "parquet.page.verify-checksum.enabled"
"""An option of the Parquet library, which otherwise ignores checksums and takes altered values."""
_REMEDIES: Final = (
    (
        ("S3AFileSystem not found", "No FileSystem for scheme", "ClassNotFoundException"),
        "Spark lacks the library of this store: add it, for s3a by --packages "
        "org.apache.hadoop:hadoop-aws:VERSION (the version of the hadoop-client jars of Spark)",
    ),
    (
        ("AccessDenied", "Forbidden", "403", "NoAuthWithAWS", "credentials", "Unauthorized"),
        "Spark's own credentials do not suffice: they come from its settings "
        "(spark.hadoop.fs.s3a.access.key and secret.key) or the environment of drivers and "
        "executors, never from nodes; another server than Amazon's is named by "
        "spark.hadoop.fs.s3a.endpoint",
    ),
    (
        ("PATH_NOT_FOUND", "FileNotFound", "does not exist"),
        "the store has no such object for Spark: a folder has to be on every machine of Spark's, "
        "and a bucket that Spark knows by another name is given by tier_url",
    ),
)


def scan(
    spark: SparkSession, url: str, files: Sequence[TieredFile], options: ReadOptions
) -> DataFrame:
    """The records of these files, as a DataFrame with all columns.

    Raises:
        ConfigurationError: Spark can't reach them.
        StorageError: An object is empty.
    """
    prefix = literal(url)
    whole = [f"{prefix}/{each.key}" for each in files if each.is_whole]
    parts = [each for each in files if not each.is_whole]
    found: list[DataFrame] = []
    try:
        if whole:
            found.append(_scan(spark, whole))
        if parts:
            rows = _scan(spark, [f"{prefix}/{each.key}" for each in parts])
            found.append(rows.filter(functools.reduce(operator.or_, map(_within, parts))))
    except Exception as error:
        if not isinstance(error, PySparkException) and "py4j" not in type(error).__module__:
            raise
        raise ConfigurationError(_unreachable(url, error)) from error
    rows = functools.reduce(DataFrame.unionAll, found)
    if options.keys:
        rows = rows.filter(F.col("key").isin(*map(bytearray, options.keys)))
    if options.tags:
        rows = rows.filter(F.arrays_overlap("tags", F.array(*map(F.lit, options.tags))))
    return rows


def literal(path: str) -> str:
    """Return a path as Spark has to be told it: else it takes brackets for a pattern."""
    return re.sub(r"([\\[\]{}*?])", r"\\\1", path)


def _scan(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """An object that is gone, or damaged, ends the query, whatever the session says of such. Also
    where lost records are no error: a merge takes objects away, and their records are in others.
    Old times stay what they are, also in a session that takes files for those of Spark 2."""
    reading = spark.read.schema(SCHEMA).options(
        ignoreMissingFiles=False,
        ignoreCorruptFiles=False,
        mergeSchema=False,
        datetimeRebaseMode="CORRECTED",
        **{_CHECK_PAGES: True},
    )
    # Else Spark looks for each object in a task of its own, and for 10,000 takes half a minute.
    before = spark.conf.get(_LISTING_TASKS, None)
    spark.conf.set(_LISTING_TASKS, str(max(_LISTING_TASKS_MIN, len(paths) // _PATHS_PER_TASK)))
    try:
        rows = reading.parquet(*paths)
        assert rows.schema  # of Spark Connect, which looks at nothing before it must
        _check_not_empty(spark, rows, paths)
    finally:
        if before is None:
            spark.conf.unset(_LISTING_TASKS)
        else:
            spark.conf.set(_LISTING_TASKS, before)
    return rows


def _check_not_empty(spark: SparkSession, rows: DataFrame, paths: Sequence[str]) -> None:
    """Refuse empty objects: Spark leaves out empty files and says nothing."""
    if _listed(spark, rows) == len(paths):
        return
    if empty := _empty_of(spark, paths):
        more = f", and {len(empty) - 1} more are" if len(empty) > 1 else ""
        raise StorageError(
            f"the object {empty[0]} is empty{more}: restore it from a version that the store "
            "keeps; `icecore tier verify` names all that is damaged"
        )


def _listed(spark: SparkSession, rows: DataFrame) -> int | None:
    """Return how many files Spark is going to open, where its own index of them can be asked: by a
    few calls, since each crosses to the JVM and there may be many thousand objects."""
    if not isinstance(rows, ClassicDataFrame):
        return None
    relation: Any = cast(Any, rows._jdf).queryExecution().analyzed()
    if relation.getClass().getSimpleName() != "LogicalRelation":
        return None  # of Spark's newer reader, or wrapped by an extension
    scala: Any = cast(Any, spark._jvm).scala
    nil = getattr(getattr(scala.collection.immutable, "Nil$"), "MODULE$")
    folders = relation.relation().location().listFiles(nil, nil)
    return sum(int(folders.apply(at).files().size()) for at in range(folders.size()))


def _empty_of(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """Ask by a query, which any session answers. Files whose content nobody asks for are not
    opened."""
    sizes = spark.read.format("binaryFile").load(list(paths)).select("path")
    names = {each.path.rpartition("/")[2] for each in sizes.collect()}
    return sorted(each for each in paths if each.rpartition("/")[2] not in names)


def _within(part: TieredFile) -> Column:
    return (
        (F.col("partition") == part.partition)
        & (F.col("offset") >= part.start_offset)
        & (F.col("offset") < part.end_offset)
    )


def _unreachable(url: str, error: Exception) -> str:
    text = str(error)
    remedy = next(
        (remedy for signs, remedy in _REMEDIES if any(sign in text for sign in signs)),
        "the store refused",
    )
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return f"Spark can't read tiered segments at {url}: {remedy}. {ANYWAY}. Spark says: {first}"
