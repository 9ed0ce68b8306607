"""Values and limits through Spark's doors: what is written is what others read, and back again."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster
from icecore.topic_settings import TopicSettings
from tests.spark.test_write import create, keyed, read_all, write
from tests.support import rotation

SCHEMA = (
    "key binary, value binary, tags array<string>, headers "
    "array<struct<key:string,value:binary>>, timestamp timestamp, partition int"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NARROW = TopicSettings(
    partitions=1, replication_factor=1, record_bytes_max=4 << 10, batch_bytes_max=64 << 10
)

TEXTS = ("", "a", "é", "\ufeff", "None", "1.10", "\u2028", "𝄞")
BYTES = (None, b"", b"\xff", b"\xef\xbb\xbfa", b"\r\n", b"\0", *map(str.encode, TEXTS))
MICROS = (-1, -1_500, -1_000, 0, 1, 999, 1_700_000_000_123_456)


def generated(count: int) -> list[tuple[Any, ...]]:
    """Rows of this run: another rotation has others."""
    rng = random.Random(rotation.current().number)
    return [
        (
            rng.choice(BYTES),
            rng.choice(BYTES),
            rng.choices(TEXTS, k=rng.randrange(3)),
            [(rng.choice(TEXTS), rng.choice(BYTES)) for _ in range(rng.randrange(3))],
            EPOCH + timedelta(microseconds=rng.choice(MICROS)),
            0,
        )
        for _ in range(count)
    ]


def test_rows_are_the_same_there_and_back(spark: SparkSession, cluster: LocalCluster) -> None:
    """A finer time is the millisecond in which it lies, also before 1970."""
    create(cluster, "there", partitions=1)
    given = generated(200)
    write(spark.createDataFrame(given, SCHEMA).coalesce(1), cluster, "there")
    expected = [
        (key, value, tuple(tags), tuple(headers), (at - EPOCH) // timedelta(milliseconds=1))
        for key, value, tags, headers, at, _ in given
    ]

    found = [
        (each.key, each.value, each.tags, tuple(each.headers), each.timestamp_ms)
        for each in read_all(cluster, "there")
    ]
    assert found == expected
    reading = spark.read.format("icecore").options(topic="there", bootstrap=cluster.bootstrap)
    columns = ("key", "value", "tags", "headers", F.unix_millis("timestamp"))
    read = [tuple(row) for row in reading.load().select(*columns).collect()]
    back = [
        (as_bytes(key), as_bytes(value), tuple(tags), tuple(map(of_header, headers)), at)
        for key, value, tags, headers, at in read
    ]
    assert sorted(back, key=repr) == sorted(expected, key=repr)


def as_bytes(given: bytearray | None) -> bytes | None:
    return None if given is None else bytes(given)


def of_header(given: Any) -> tuple[str, bytes | None]:
    return given["key"], as_bytes(given["value"])


def test_writes_keep_to_the_limits_of_the_topic(spark: SparkSession, cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("narrow", NARROW)
    lines = keyed(spark, 6_000).withColumn("value", F.rpad("value", 40, "."))
    write(lines, cluster, "narrow")
    assert len(read_all(cluster, "narrow")) == 6_000
    large = keyed(spark, 3).withColumn("value", F.rpad("value", 5_000, "."))
    with pytest.raises(Exception, match="row 0: a record of 5001 bytes exceeds 4096"):
        write(large, cluster, "narrow")
    assert len(read_all(cluster, "narrow")) == 6_000


def test_a_time_that_no_leader_takes_is_refused(spark: SparkSession, cluster: LocalCluster) -> None:
    create(cluster, "times", partitions=1)
    with Producer(cluster.bootstrap) as producer:
        producer.send_and_wait("times", b"before")
    late = F.timestamp_micros(F.lit(253_402_300_800_000_000))
    rows = keyed(spark, 1).withColumn("timestamp", late)
    with pytest.raises(Exception, match="in the years 1 to 9999"):
        write(rows, cluster, "times")
    assert [each.value for each in read_all(cluster, "times")] == [b"before"]
