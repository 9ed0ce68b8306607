"""Delays per carrier and month of a year of departures: Spark on a topic, checked against pandas.

    python -m examples.flights_spark [--bootstrap HOST:PORT] [--topic flights]

Needs the extra ``spark`` and Java. Without a bootstrap address it starts a cluster of its own in a
temporary folder, fills the topic and ends it afterwards. The last line says how many groups there
are and how many of them differ.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights import read_departures
from icecore import spark as icecore_spark
from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster

FIELDS = "carrier string, month int, dep_delay int, distance int"


@contextlib.contextmanager
def cluster(topic: str) -> Iterator[str]:
    """A cluster with the departures in a topic."""
    with tempfile.TemporaryDirectory() as folder, LocalCluster(folder) as running:
        fill(running.bootstrap, topic)
        yield running.bootstrap


def fill(bootstrap: str, topic: str) -> None:
    """Produce all departures."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=6, segment_bytes=16 << 20)
    with Producer(bootstrap, compression="lz4") as producer:
        for each in read_departures():
            producer.send(
                topic, each.value, key=each.key, tags=each.tags, timestamp_ms=each.timestamp_ms
            )


def delays(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Flights, mean delay and miles by carrier and month."""
    records = icecore_spark.read(spark, topic, bootstrap=bootstrap, columns="value")
    flights = records.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("f"))
    groups = flights.select("f.*").groupBy("carrier", "month")
    return groups.agg(
        F.count("*").alias("flights"),
        F.sum("dep_delay").alias("delay_minutes"),
        F.sum("distance").alias("miles"),
        F.count("dep_delay").alias("departed"),
    )


def expected() -> pd.DataFrame:
    """The same by pandas from the source."""
    rows = pd.DataFrame([json.loads(each.value) for each in read_departures()])
    groups = rows.groupby(["carrier", "month"])
    return groups.agg(
        flights=("distance", "size"),
        delay_minutes=("dep_delay", "sum"),
        miles=("distance", "sum"),
        departed=("dep_delay", "count"),
    )


def mismatches(found: list[tuple[object, ...]], wanted: pd.DataFrame) -> int:
    """Groups that differ, are missing or too many."""
    theirs = {tuple(row[:2]): tuple(row[2:]) for row in found}
    ours = {key: tuple(int(each) for each in row) for key, *row in wanted.itertuples()}
    return sum(theirs.get(key) != ours.get(key) for key in theirs.keys() | ours.keys())


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap")
    parser.add_argument("--topic", default="flights")
    arguments = parser.parse_args()
    spark = icecore_spark.session("local[2]", conf={"spark.sql.shuffle.partitions": "4"})
    where = arguments.bootstrap
    with contextlib.nullcontext(where) if where else cluster(arguments.topic) as bootstrap:
        table = delays(spark, bootstrap, arguments.topic)
        table.withColumn("mean_delay", F.col("delay_minutes") / F.col("departed")).orderBy(
            F.desc("mean_delay")
        ).show(10)
        found = [tuple(row) for row in table.collect()]
    print(f"groups={len(found)} mismatches={mismatches(found, expected())}")
    spark.stop()


if __name__ == "__main__":
    main()
