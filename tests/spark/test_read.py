"""Batch reads with a real Spark: the same rows, counts and groups as in the source."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from icecore import spark as icecore_spark
from icecore.blocking import Admin, Producer
from icecore.client.cluster.offsets import time_position
from icecore.dev import LocalCluster

RECORDS = 6_000
BASE_MS = 1_362_096_000_000


def fill(cluster: LocalCluster, topic: str, partitions: int = 3, **settings: int) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=1, **settings)
    with Producer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(
                topic,
                None if number % 100 == 99 else b"%d" % number,
                key=b"k%d" % (number % 40),
                tags=("even" if number % 2 == 0 else "odd",),
                headers=(("n", b"%d" % number), ("none", None)) if number % 3 == 0 else (),
                timestamp_ms=BASE_MS + number,
            )


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    fill(cluster, "events")
    return "events"


def load(spark: SparkSession, cluster: LocalCluster, topic: str, **options: object) -> DataFrame:
    return icecore_spark.read(spark, topic, bootstrap=cluster.bootstrap, **options)


def plain(spark: SparkSession, cluster: LocalCluster, **options: str) -> DataFrame:
    given = {"topic": "events", "bootstrap": cluster.bootstrap} | options
    return spark.read.format("icecore").options(**given).load()


def test_rows_are_those_of_the_source(
    spark: SparkSession, cluster: LocalCluster, topic: str
) -> None:
    rows = plain(spark, cluster).collect()
    assert len(rows) == RECORDS
    assert {(row.topic, row.schema_id) for row in rows} == {("events", 0)}
    assert len({(row.partition, row.offset) for row in rows}) == RECORDS
    by_number = {row.timestamp: row for row in rows}
    start = time_position(BASE_MS).replace(tzinfo=None)
    for number in (0, 1, 3, 99, 5_999):
        row = by_number[start + timedelta(milliseconds=number)]
        assert row.value == (None if number % 100 == 99 else b"%d" % number)
        assert row.key == b"k%d" % (number % 40)
        assert row.tags == ["even" if number % 2 == 0 else "odd"]
        headers = [("n", b"%d" % number), ("none", None)] if number % 3 == 0 else []
        assert [(each.key, each.value) for each in row.headers] == headers


def test_groups_and_filters(spark: SparkSession, cluster: LocalCluster, topic: str) -> None:
    rows = load(spark, cluster, topic, columns=["key", "tags", "offset", "partition"])
    assert rows.columns == ["key", "tags", "offset", "partition"]
    found = {row.key: row["count"] for row in rows.groupBy("key").count().collect()}
    assert found == Counter(b"k%d" % (number % 40) for number in range(RECORDS))
    assert rows.filter(F.array_contains("tags", "odd")).count() == RECORDS // 2
    assert load(spark, cluster, topic, tags=["odd"], columns="tags").distinct().count() == 1


def test_filters_reach_the_cluster(spark: SparkSession, cluster: LocalCluster, topic: str) -> None:
    """Pushed filters change which records are read, and not which rows are found."""
    checking = plain(spark, cluster)
    sample = checking.filter("partition = 1 and offset = 500").collect()[0]
    at = sample.append_timestamp.replace(tzinfo=UTC)
    for condition in (
        F.col("key") == F.lit(b"k7"),
        F.col("key").isin(b"k7", b"k8") & (F.col("offset") < 900),
        (F.col("offset") >= 100) & (F.col("offset") <= 103) & (F.col("partition") == 2),
        F.col("offset").isin(5, 7) | (F.col("key") == F.lit(b"k1")),
        F.col("append_timestamp") == F.lit(at),
        (F.col("append_timestamp") > F.lit(at)) & (F.col("append_timestamp") <= F.lit(at)),
        (F.col("append_timestamp") < F.lit(at)) & F.col("key").isNotNull(),
        (F.col("append_timestamp") >= F.lit(at)),
        F.col("key") == F.lit(b"nothing"),
        (F.col("key") == F.lit(b"k1")) & (F.col("key") == F.lit(b"k2")),
    ):
        pushing = load(spark, cluster, topic, filterPushdown=True)
        found = {(row.partition, row.offset) for row in pushing.filter(condition).collect()}
        expected = {(row.partition, row.offset) for row in checking.filter(condition).collect()}
        assert found == expected
    narrow = load(spark, cluster, topic, filterPushdown=True).filter(
        "partition = 2 and offset >= 100 and offset < 104"
    )
    assert narrow.rdd.getNumPartitions() == 1


def test_one_read_is_one_moment(spark: SparkSession, cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("growing", partitions=2, replication_factor=1)
    with Producer(cluster.bootstrap) as producer:
        producer.send_batch("growing", [b"old"] * 100)
        rows = load(spark, cluster, "growing")
        assert rows.count() == 100
        producer.send_batch("growing", [b"new"] * 50)
        assert rows.count() == 100
        assert rows.join(rows, ["partition", "offset"]).count() == 100
        assert load(spark, cluster, "growing").count() == 150
    empty = load(spark, cluster, "growing", startingOffsets={0: "latest", 1: "latest"})
    assert empty.count() == 0


def test_offsets_and_times(spark: SparkSession, cluster: LocalCluster, topic: str) -> None:
    ends = {p: o.offset for p, o in _ends(cluster, topic).items()}
    starts = {0: 10, 1: "latest", 2: "earliest"}
    rows = load(spark, cluster, topic, startingOffsets=starts, endingOffsets={**ends, 2: 5})
    found = Counter(row.partition for row in rows.select("partition").collect())
    assert found == {0: ends[0] - 10, 2: 5}
    later = datetime.now(UTC) + timedelta(days=1)
    assert load(spark, cluster, topic, startingTimestamp=later.isoformat()).count() == 0
    assert load(spark, cluster, topic, endingTimestamp="1").count() == 0
    assert load(spark, cluster, topic, startingTimestamp=1).count() == RECORDS


def _ends(cluster: LocalCluster, topic: str) -> dict[int, object]:
    with Admin(cluster.bootstrap) as admin:
        return admin.list_offsets(topic, "latest")


def test_tasks(spark: SparkSession, cluster: LocalCluster, topic: str) -> None:
    rows = load(spark, cluster, topic, minPartitions=8, columns="offset,partition")
    assert rows.rdd.getNumPartitions() >= 8
    assert rows.distinct().count() == RECORDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startOffsets": "earliest"}, "did you mean startingOffsets"),
        ({"topic": "no topic"}, "topic name"),
        ({"columns": "value,valeu"}, "no column valeu"),
        ({"startingOffsets": '{"0": 1}'}, "names partitions 0; the topic has 0, 1, 2"),
        ({"startingOffsets": '{"0": 1, "1": 99999999, "2": 1}'}, "failOnDataLoss=false"),
        ({"topic": "missing"}, "does not exist"),
        ({"startingOffsets": "latest"}, "nothing follows"),
    ],
)
def test_bad_options(
    spark: SparkSession, cluster: LocalCluster, topic: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        plain(spark, cluster, **options).count()


def test_offsets_that_are_gone(spark: SparkSession, cluster: LocalCluster) -> None:
    fill(cluster, "trimmed", partitions=1)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records("trimmed", {0: 4_000})
    starts = json.dumps({"0": 10})
    with pytest.raises(Exception, match="outside of \\[4000, 6000\\]"):
        plain(spark, cluster, topic="trimmed", startingOffsets=starts).count()
    lenient = plain(spark, cluster, topic="trimmed", startingOffsets=starts, failOnDataLoss="false")
    assert lenient.count() == 2_000


def test_schema(spark: SparkSession, cluster: LocalCluster, topic: str) -> None:
    reading = spark.read.format("icecore").options(topic=topic, bootstrap=cluster.bootstrap)
    assert reading.schema("offset bigint, value binary").load().columns == ["offset", "value"]
    assert reading.schema("topic string, partition int").load().distinct().count() == 3
    with pytest.raises(Exception, match="column value is binary"):
        reading.schema("value string").load().count()
