"""Reads of which one part lies in object storage, where Spark opens it, and the other on nodes: the
same records as in the source, whatever becomes of segments between the plan and the query."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import icecore
from icecore import spark as icecore_spark
from icecore.blocking import Admin, Producer
from icecore.client.cluster.offsets import time_position
from icecore.dev import LocalCluster
from icecore.errors import ConfigurationError, StorageError, TopicRecreatedError
from icecore.spark.columns import SCHEMA
from icecore.tier_records import topic_folder
from tests.spark.clusters import PATTERN, with_bucket
from tests.support.fast import FAST
from tests.support.tier_places import until, until_tiered

RECORDS = 6_000
BASE_MS = 1_362_096_000_000


def source(start: int, end: int) -> pd.DataFrame:
    numbers = pd.Series(range(start, end))
    return pd.DataFrame(
        {
            "number": numbers,
            "key": numbers.map(lambda number: b"k%d" % (number % 40)),
            "tag": numbers.map(lambda number: "even" if number % 2 == 0 else "odd"),
            "amount": numbers * 37 % 1_000,
        }
    )


def produce(cluster: LocalCluster, topic: str, rows: pd.DataFrame) -> None:
    with Producer(cluster.bootstrap) as producer:
        for row in rows.itertuples():
            value = json.dumps({"number": row.number, "amount": row.amount}).encode()
            producer.send(
                topic, value, key=row.key, tags=(row.tag,), timestamp_ms=BASE_MS + row.number
            )


def tier(cluster: LocalCluster, topic: str, *, is_remote: bool = False) -> None:
    async def run() -> None:
        async with icecore.Admin(cluster.bootstrap) as admin:
            await until_tiered(admin, topic, is_remote=is_remote)

    asyncio.run(run())


def create(cluster: LocalCluster, topic: str, **settings: Any) -> None:
    async def run() -> None:
        async with icecore.Admin(cluster.bootstrap) as admin:

            async def has_store() -> bool:
                return bool((await admin.describe_tiering()).tier_urls)

            await until(has_store)
            await admin.create_topic(topic, tier="on", replication_factor=1, **settings)

    asyncio.run(run())


@pytest.fixture(scope="module")
def half(tiering: LocalCluster) -> str:
    """Two segments of each partition in object storage, one more on nodes."""
    create(tiering, "half", partitions=3)
    for start in (0, 2_000):
        produce(tiering, "half", source(start, start + 2_000))
        tier(tiering, "half")
    produce(tiering, "half", source(4_000, RECORDS))
    return "half"


def read(spark: SparkSession, cluster: LocalCluster, topic: str, **options: Any) -> DataFrame:
    return icecore_spark.read(spark, topic, bootstrap=cluster.bootstrap, **options)


def parsed(rows: DataFrame) -> DataFrame:
    value = F.from_json(F.col("value").cast("string"), "number long, amount long")
    return rows.withColumn("v", value).select("*", "v.*")


def scans(rows: DataFrame) -> tuple[bool, bool]:
    """Return whether there is one of files, and one of ours."""
    plan = rows._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    return "parquet" in plan.lower(), "BatchScan icecore" in plan


def places(rows: DataFrame) -> list[tuple[int, int]]:
    return sorted(
        (row.partition, row.offset) for row in rows.select("partition", "offset").collect()
    )


def test_numbers_are_those_of_pandas(spark: SparkSession, tiering: LocalCluster, half: str) -> None:
    expected = source(0, RECORDS)
    rows = read(spark, tiering, half)
    assert scans(rows) == (True, True)
    assert rows.columns == SCHEMA.fieldNames()
    assert len(set(places(rows))) == rows.count() == RECORDS
    table = parsed(rows)
    groups = table.groupBy("key").agg(F.count("*"), F.sum("amount")).collect()
    wanted = expected.groupby("key").amount.agg(["size", "sum"])
    assert {bytes(key): (size, total) for key, size, total in groups} == {
        key: (int(size), int(total)) for key, size, total in wanted.itertuples()
    }
    late = F.lit(time_position(BASE_MS + 3_500))
    assert table.filter(F.col("timestamp") >= late).count() == RECORDS - 3_500
    assert rows.filter(F.array_contains("tags", "odd")).count() == RECORDS // 2
    twice = rows.alias("a").join(rows.alias("b"), ["partition", "offset"])
    assert twice.count() == RECORDS


def test_every_column_is_the_same_on_both_sides(
    spark: SparkSession, tiering: LocalCluster, half: str
) -> None:
    rows, through_nodes = read(spark, tiering, half), read(spark, tiering, half, tiered="nodes")
    assert scans(through_nodes) == (False, True)
    assert rows.schema == through_nodes.schema
    assert rows.exceptAll(through_nodes).count() == 0
    assert rows.count() == through_nodes.count()


def test_borders_within_a_segment(spark: SparkSession, tiering: LocalCluster, half: str) -> None:
    everything = places(read(spark, tiering, half, tiered="nodes"))
    ends = {number: max(o for p, o in everything if p == number) + 1 for number in range(3)}
    starts = {number: end // 9 for number, end in ends.items()}
    stops = {0: ends[0] // 3, 1: ends[1] - 5, 2: starts[2]}
    for options in (
        {"startingOffsets": starts},
        {"endingOffsets": stops},
        {"startingOffsets": starts, "endingOffsets": stops},
        {"startingoffsets": json.dumps(starts), "columns": "partition,offset"},
    ):
        low = (
            starts
            if any("starting" in name.lower() for name in options)
            else dict.fromkeys(ends, 0)
        )
        high = stops if "endingOffsets" in options else ends
        wanted = [(p, o) for p, o in everything if low[p] <= o < high[p]]
        assert places(read(spark, tiering, half, **options)) == wanted, options


def test_keys_tags_and_columns(spark: SparkSession, tiering: LocalCluster, half: str) -> None:
    rows = read(spark, tiering, half, keys=["k7", "k8"], columns=["key", "offset"])
    assert rows.columns == ["key", "offset"]
    assert rows.count() == RECORDS * 2 // 40
    assert {bytes(row.key) for row in rows.select("key").distinct().collect()} == {b"k7", b"k8"}
    assert read(spark, tiering, half, tags=["odd"]).count() == RECORDS // 2
    plan = rows._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert "value" not in plan.split("FileScan", 1)[1].split("\n", 1)[0].split("ReadSchema")[1]


def test_segments_move_between_plan_and_query(spark: SparkSession, mortal: LocalCluster) -> None:
    """Between plan and query hot segments are tiered and leave their nodes, cold ones are retired,
    and a node dies."""
    tiering = mortal
    create(tiering, "moves", partitions=2, local_retention_ms=0)
    produce(tiering, "moves", source(0, 1_000))
    tier(tiering, "moves")
    produce(tiering, "moves", source(1_000, 2_000))
    rows = read(spark, tiering, "moves")
    amounts = parsed(rows).agg(F.sum("amount"))
    assert scans(rows) == (True, True)
    tier(tiering, "moves", is_remote=True)
    produce(tiering, "moves", source(2_000, 2_100))
    assert len(set(places(rows))) == rows.count() == 2_000
    assert amounts.collect()[0][0] == source(0, 2_000).amount.sum()
    with Admin(tiering.bootstrap) as admin:
        first = {p: o.offset for p, o in admin.list_offsets("moves", "earliest").items()}
        [tiers] = admin.describe_tiering(["moves"], with_copies=True).topics
        cut = {p: min(c.end_offset for c in tiers.copies if c.partition == p) for p in first}
        admin.delete_records("moves", cut)
        tails = [each.tail for each in admin.describe_topics(["moves"])[0].partitions]
    assert rows.count() == 2_000, "objects stay for those who read them"
    # The active segments have one replica each, and only copies survive a node.
    tiering.kill_node(min(set(tiering.addresses) - {each.leader for each in tails if each}))
    assert parsed(read(spark, tiering, "moves")).agg(F.max("number")).collect()[0][0] == 2_099


def test_all_of_it_on_one_side(spark: SparkSession, tiering: LocalCluster) -> None:
    create(tiering, "sides", partitions=1)
    assert read(spark, tiering, "sides").count() == 0
    produce(tiering, "sides", source(0, 100))
    rows = read(spark, tiering, "sides")
    assert (scans(rows), rows.count()) == ((False, True), 100)
    tier(tiering, "sides")
    rows = read(spark, tiering, "sides")
    assert (scans(rows), rows.count()) == ((True, False), 100)


def test_copies_without_rows_are_read_through_nodes(
    spark: SparkSession, tiering: LocalCluster
) -> None:
    create(tiering, "raw", partitions=1, tier_format="segment")
    produce(tiering, "raw", source(0, 100))
    tier(tiering, "raw")
    rows = read(spark, tiering, "raw")
    assert (scans(rows), rows.count()) == ((False, True), 100)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3a://bucket/prefix", "org.apache.hadoop:hadoop-aws"),
        ("file:///no/such/folder", "on every machine of Spark's"),
    ],
)
def test_store_that_spark_does_not_reach(
    spark: SparkSession, tiering: LocalCluster, half: str, url: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        read(spark, tiering, half, tier_url=url)
    assert 'tiered="nodes"' in str(raised.value)
    with pytest.warns(UserWarning, match="read through nodes"):
        rows = read(spark, tiering, half, tier_url=url, tiered="files-or-nodes")
    assert (scans(rows), rows.count()) == ((False, True), RECORDS)


def test_an_object_that_is_gone_ends_the_query(spark: SparkSession, tiering: LocalCluster) -> None:
    """Never a result that lacks it, whatever the session says of missing files."""
    create(tiering, "holes", partitions=1)
    for start in (0, 100):
        produce(tiering, "holes", source(start, start + 100))
        tier(tiering, "holes")
    rows = read(spark, tiering, "holes")
    lenient = read(spark, tiering, "holes", failOnDataLoss=False)
    with Admin(tiering.bootstrap) as admin:
        found = admin.describe_tiering(["holes"]).topics[0].topic_id
    bucket = tiering.folder.parent / PATTERN
    first = min(bucket.glob(f"{topic_folder(found)}/0/*.parquet"))
    first.unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        for each in (rows, lenient):  # a merge may have taken it away, and no record
            with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist|FileNotFound"):
                each.agg(F.sum("offset")).collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_old_times_stay_what_they_are(spark: SparkSession, tiering: LocalCluster) -> None:
    """Also where the session takes times in files for those of the Julian calendar."""
    times = [-62_135_596_800_000, -12_219_292_800_001, -2_208_988_800_001, 253_402_300_799_999]
    create(tiering, "old", partitions=1)
    with Producer(tiering.bootstrap) as producer:
        for each in times:
            producer.send("old", b"", timestamp_ms=each)
    tier(tiering, "old")
    for mode in ("LEGACY", "EXCEPTION"):
        spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", mode)
        try:
            rows = read(spark, tiering, "old").orderBy("offset")
            found = rows.select(F.expr("unix_millis(timestamp)").alias("ms")).collect()
        finally:
            spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")
        assert [each.ms for each in found] == times


def test_a_damaged_object_ends_the_query(spark: SparkSession, tiering: LocalCluster) -> None:
    """Spark passes by an empty file, and reads what an altered bit made of a value."""
    create(tiering, "damaged", partitions=1)
    for start in (0, 100):
        produce(tiering, "damaged", source(start, start + 100))
        tier(tiering, "damaged")
    with Admin(tiering.bootstrap) as admin:
        found = admin.describe_tiering(["damaged"]).topics[0].topic_id
    bucket = tiering.folder.parent / PATTERN
    first = min(bucket.glob(f"{topic_folder(found)}/0/*.parquet"))
    whole = first.read_bytes()
    column = pq.ParquetFile(first).metadata.row_group(0).column(SCHEMA.names.index("value"))
    last = column.data_page_offset + column.total_compressed_size - 1
    first.write_bytes(whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        read(spark, tiering, "damaged").select(F.max("value")).collect()
    first.write_bytes(b"")
    for reader in ("parquet", ""):  # Spark's reader, and its newer one
        spark.conf.set("spark.sql.sources.useV1SourceList", reader)
        with pytest.raises(StorageError, match=f"{first.name} is empty: restore it"):
            read(spark, tiering, "damaged")
    spark.conf.unset("spark.sql.sources.useV1SourceList")
    with pytest.raises(StorageError, match=f"{first.name} is empty: restore it"):
        read(spark, tiering, "damaged", startingOffsets='{"0": 50}', tiered="files-or-nodes")


def test_wrong_arguments(spark: SparkSession, tiering: LocalCluster, half: str) -> None:
    for options, message in (
        ({"tiered": "remote"}, "tiered is one of"),
        ({"offsetRanges": "{}", "topicId": "00" * 16}, "are what this function plans"),
        ({"topicId": "00"}, "32 hex digits"),
        ({"columns": "valeu"}, "no column valeu"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            read(spark, tiering, half, **options)


def test_a_read_says_which_topic_it_means(
    spark: SparkSession, tiering: LocalCluster, half: str
) -> None:
    with Admin(tiering.bootstrap) as admin:
        (described,) = admin.describe_topics([half])
    meant = read(spark, tiering, half, topicId=described.topic_id.hex())
    assert meant.count() == read(spark, tiering, half).count()
    with pytest.raises(TopicRecreatedError, match="made again"):
        read(spark, tiering, half, topicId="00" * 16)


@pytest.mark.default_timing
def test_with_the_waits_of_the_product(spark: SparkSession, tmp_path: Path) -> None:
    assert not FAST.keys() & os.environ.keys()
    with with_bucket(tmp_path, 1) as cluster:
        create(cluster, "usual", partitions=1, local_retention_ms=0)
        produce(cluster, "usual", source(0, 100))
        tier(cluster, "usual", is_remote=True)
        produce(cluster, "usual", source(100, 150))
        rows = read(spark, cluster, "usual")
        assert (scans(rows), len(set(places(rows)))) == ((True, True), 150)
