"""Batch writes with a real Spark: rows, partitions, what is refused, and what is written once."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from icecore.blocking import Admin, Consumer
from icecore.codec.columns import partition_for_key
from icecore.codec.record import Record
from icecore.dev import LocalCluster


def create(cluster: LocalCluster, topic: str, partitions: int = 3) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=1)


def write(rows: DataFrame, cluster: LocalCluster, topic: str, **options: str) -> None:
    writing = rows.write.format("icecore").mode("append")
    writing.options(topic=topic, bootstrap=cluster.bootstrap, **options).save()


def read_all(cluster: LocalCluster, topic: str) -> list[Record]:
    with Consumer(cluster.bootstrap, topic, stop_at_end=True) as consumer:
        return list(consumer)


def keyed(spark: SparkSession, count: int) -> DataFrame:
    text = F.col("id").cast("string")
    return spark.range(0, count, 1, 3).select(text.alias("key"), text.alias("value"))


def test_rows_become_records(spark: SparkSession, cluster: LocalCluster) -> None:
    create(cluster, "rows")
    at = datetime(2013, 3, 1, tzinfo=UTC)
    rows = spark.createDataFrame(
        [
            (b"a", b"1", ["x", "y"], [("h", b"2"), ("n", None)], at, None),
            (None, b"2", None, None, at, 2),
            (b"c", None, [], [], at, None),
        ],
        "key binary, value binary, tags array<string>, headers "
        "array<struct<key:string,value:binary>>, timestamp timestamp, partition int",
    )
    write(rows, cluster, "rows")
    found = {(each.key, each.value): each for each in read_all(cluster, "rows")}
    assert len(found) == 3
    first = found[b"a", b"1"]
    assert first.tags == ("x", "y")
    assert first.headers == (("h", b"2"), ("n", None))
    assert first.timestamp_ms == int(at.timestamp() * 1000)
    assert first.partition == partition_for_key(b"a", 3)
    assert found[None, b"2"].partition == 2
    assert found[b"c", None].tags == ()


def test_partitions_are_those_of_the_producer(spark: SparkSession, cluster: LocalCluster) -> None:
    create(cluster, "spread")
    write(keyed(spark, 30_000), cluster, "spread")
    found = read_all(cluster, "spread")
    assert Counter(each.value for each in found) == Counter(b"%d" % n for n in range(30_000))
    assert all(each.partition == partition_for_key(each.key or b"", 3) for each in found)


def test_one_write_id_writes_once(spark: SparkSession, cluster: LocalCluster) -> None:
    create(cluster, "once")
    write(keyed(spark, 3_000), cluster, "once", writeId="load 1")
    write(keyed(spark, 3_000), cluster, "once", writeId="load 1")
    assert len(read_all(cluster, "once")) == 3_000
    write(keyed(spark, 3_000), cluster, "once", writeId="load 2")
    write(keyed(spark, 3_000), cluster, "once")
    write(keyed(spark, 3_000), cluster, "once", idempotent="false")
    assert len(read_all(cluster, "once")) == 12_000


def test_other_rows_under_one_id_are_an_error(spark: SparkSession, cluster: LocalCluster) -> None:
    """A writer that skipped them would lose rows."""
    create(cluster, "changed")
    rows = keyed(spark, 300)
    write(rows, cluster, "changed", writeId="w")
    other = rows.withColumn("value", F.concat("value", F.lit("!")))
    with pytest.raises(Exception, match="earlier attempt of this task wrote other rows"):
        write(other, cluster, "changed", writeId="w")
    with pytest.raises(Exception, match="earlier attempt of this task wrote other rows"):
        write(keyed(spark, 330), cluster, "changed", writeId="w")
    assert len(read_all(cluster, "changed")) == 300


@pytest.mark.parametrize("tasks", [1, 6])
def test_rows_in_other_tasks_are_not_written_twice(
    spark: SparkSession, cluster: LocalCluster, tasks: int
) -> None:
    """Spark recognises a task by its number, and a task of another one has other rows."""
    topic = f"divided-{tasks}"
    create(cluster, topic)
    write(keyed(spark, 3_000), cluster, topic, writeId="w")
    text = F.col("id").cast("string")
    divided = spark.range(0, 3_000, 1, tasks).select(text.alias("key"), text.alias("value"))
    with pytest.raises(Exception, match="divided into other tasks"):
        write(divided, cluster, topic, writeId="w")
    write(keyed(spark, 3_000), cluster, topic, writeId="w")
    found = Counter(each.value for each in read_all(cluster, topic))
    assert found == Counter(b"%d" % n for n in range(3_000))
    with Admin(cluster.bootstrap) as admin:
        assert [each.name for each in admin.list_positions(topics=[topic])] == []


def test_a_write_may_name_the_topic_that_it_means(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    create(cluster, "meant")
    with Admin(cluster.bootstrap) as admin:
        (described,) = admin.describe_topics(["meant"])
    write(keyed(spark, 30), cluster, "meant", topicId=described.topic_id.hex())
    with pytest.raises(Exception, match="TopicRecreatedError"):
        write(keyed(spark, 30), cluster, "meant", topicId="00" * 16)
    assert len(read_all(cluster, "meant")) == 30


def test_many_batches_are_recognised(spark: SparkSession, cluster: LocalCluster) -> None:
    """More of them than a leader remembers."""
    create(cluster, "many", partitions=1)
    pad = F.lit("x" * 5_000)
    rows = spark.range(0, 8_000, 1, 1).select(
        F.concat(F.col("id").cast("string"), F.lit(" "), pad).alias("value")
    )
    write(rows, cluster, "many", writeId="w")
    write(rows, cluster, "many", writeId="w")
    found = [int((each.value or b"").split()[0]) for each in read_all(cluster, "many")]
    assert found == list(range(8_000))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["key"], {}, "no column value"),
        (["value", "offset"], {}, "column offset can't be written"),
        (["value"], {"topik": "x"}, "did you mean topic"),
        (["value"], {"acks": "some"}, "acks is one of all, quorum, leader"),
        (["value"], {"writeId": "x", "idempotent": "false"}, "leave idempotent=false out"),
        (["value", "partition"], {}, "column partition has 9"),
        (["value"], {"topic": "missing"}, "missing"),
    ],
)
def test_bad_writes(
    spark: SparkSession,
    cluster: LocalCluster,
    columns: list[str],
    options: dict[str, str],
    message: str,
) -> None:
    assert not _kept(cluster)
    rows = spark.createDataFrame(
        [(b"k", b"v", 1, 9)], "key binary, value binary, offset long, partition int"
    ).select(*columns)
    with pytest.raises(Exception, match=message):
        write(rows, cluster, **({"topic": "refusing"} | options))
    assert not _kept(cluster)


def _kept(cluster: LocalCluster) -> list[Record]:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("refusing", partitions=3, replication_factor=1, if_not_exists=True)
    return read_all(cluster, "refusing")


def test_overwrite_is_refused(spark: SparkSession, cluster: LocalCluster) -> None:
    create(cluster, "kept")
    writing = keyed(spark, 3).write.format("icecore").mode("overwrite")
    with pytest.raises(Exception, match="can't be overwritten"):
        writing.options(topic="kept", bootstrap=cluster.bootstrap).save()
