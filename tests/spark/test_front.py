"""``format("icecore")`` opens objects in object storage itself: the same records as through nodes,
wherever they lie, and through nodes where it can't."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from icecore import spark as icecore_spark
from icecore.blocking import Admin
from icecore.dev import LocalCluster
from icecore.errors import ConfigurationError, StorageError
from icecore.spark.columns import SCHEMA
from icecore.spark.objects import store
from icecore.spark.ranges import RangePartition, read_part
from icecore.tier_records import topic_folder
from tests.spark.clusters import PATTERN
from tests.spark.test_tiered_read import create, produce, source, tier
from tests.support.clusters import running
from tests.support.s3 import S3Server, s3_access
from tests.support.tier_places import s3_place

RECORDS = 2_500
NO_FOLDER = "file:///no/such/folder"


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_refused", {})


@pytest.fixture(scope="module")
def everywhere(tiering: LocalCluster) -> str:
    """A topic with records in merged objects, in those of one segment, in sealed segments of nodes
    and in active ones."""
    create(tiering, "everywhere", partitions=2, local_retention_ms=0)
    for start in (0, 500):
        produce(tiering, "everywhere", source(start, start + 500))
        tier(tiering, "everywhere", is_remote=True)
    with Admin(tiering.bootstrap) as admin:
        for group in admin.plan_merges("everywhere").groups:
            admin.merge_segments("everywhere", group.segment_ids)
    produce(tiering, "everywhere", source(1_000, 1_500))
    tier(tiering, "everywhere")
    with Admin(tiering.bootstrap) as admin:
        admin.alter_topic("everywhere", tier="off")
        produce(tiering, "everywhere", source(1_500, 2_000))
        admin.roll_topic("everywhere")
    produce(tiering, "everywhere", source(2_000, RECORDS))
    return "everywhere"


def options(cluster: LocalCluster, topic: str, **more: str) -> dict[str, str]:
    return {"topic": topic, "bootstrap": cluster.bootstrap, **more}


def load(spark: SparkSession, cluster: LocalCluster, topic: str, **more: str) -> DataFrame:
    return spark.read.format("icecore").options(**options(cluster, topic, **more)).load()


def planned(
    cluster: LocalCluster, topic: str, schema: StructType = SCHEMA, **more: str
) -> list[RangePartition]:
    """The tasks that Spark would be given."""
    reader = icecore_spark.IcecoreDataSource(options(cluster, topic, **more)).reader(schema)
    return [each for each in reader.partitions() if isinstance(each, RangePartition)]


def in_files(parts: list[RangePartition]) -> int:
    return sum(len(each) for part in parts for each in [part.wanted] if part.files)


def read_here(parts: list[RangePartition]) -> list[tuple[int, int]]:
    """Read here as executors would."""
    schema = StructType([SCHEMA["partition"], SCHEMA["offset"]])
    batches = [batch for part in parts for batch in read_part(part, schema)]
    return sorted(
        pair
        for batch in batches
        for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )


def assert_same(found: DataFrame, expected: DataFrame) -> None:
    assert found.schema == expected.schema
    assert found.count() == expected.count()
    assert found.exceptAll(expected).count() == 0


def test_rows_are_the_same_by_every_way(
    spark: SparkSession, tiering: LocalCluster, everywhere: str
) -> None:
    through_nodes = load(spark, tiering, everywhere, tiered="nodes").cache()
    assert through_nodes.count() == RECORDS
    with Admin(tiering.bootstrap) as admin:
        (found,) = admin.describe_tiering([everywhere], with_copies=True).topics
    assert len(found.copies) == 4, "a merged one and one more of each partition"
    assert in_files(planned(tiering, everywhere)) == 1_500
    assert in_files(planned(tiering, everywhere, tiered="nodes")) == 0
    assert_same(load(spark, tiering, everywhere), through_nodes)
    assert_same(load(spark, tiering, everywhere, tiered="files"), through_nodes)
    by_call = icecore_spark.read(spark, everywhere, bootstrap=tiering.bootstrap)
    assert_same(by_call, through_nodes)
    through_nodes.unpersist()


def test_parts_of_files(spark: SparkSession, tiering: LocalCluster, everywhere: str) -> None:
    """Offsets, times, columns, more tasks: what is left of a file is found within it."""
    whole = load(spark, tiering, everywhere, tiered="nodes")
    half = whole.filter("offset >= 100 and offset < 611")
    bounds = {"startingOffsets": '{"0": 100, "1": 100}', "endingOffsets": '{"0": 611, "1": 611}'}
    found = load(spark, tiering, everywhere, minPartitions="7", **bounds)
    assert len(planned(tiering, everywhere, minPartitions="7", **bounds)) >= 7
    assert_same(found, half)
    with Admin(tiering.bootstrap) as admin:
        (described,) = admin.describe_topics([everywhere])
    spans = {"offsetRanges": '{"0": [[100, 300], [320, 611]]}', "topicId": described.topic_id.hex()}
    some = half.filter("partition = 0 and not offset between 300 and 319")
    assert_same(load(spark, tiering, everywhere, **spans), some)
    chosen = load(spark, tiering, everywhere, columns="key,offset", **bounds)
    assert_same(chosen, half.select("key", "offset"))
    reading = spark.read.format("icecore").options(**options(tiering, everywhere, **bounds))
    assert_same(
        reading.schema("value binary, partition int").load(), half.select("value", "partition")
    )
    assert load(spark, tiering, everywhere, columns="topic", **bounds).count() == half.count()
    for given in ({"keys": "k7,k8"}, {"tags": "odd"}, {"keys": "k7,k8", "tags": "odd"}):
        assert in_files(planned(tiering, everywhere, **given)) == 0, "nodes have an index"
        assert in_files(planned(tiering, everywhere, tiered="files", **given)) == 1_500
        assert_same(
            load(spark, tiering, everywhere, tiered="files", **given, **bounds),
            load(spark, tiering, everywhere, tiered="nodes", **given, **bounds),
        )


def test_filters_are_pushed(spark: SparkSession, tiering: LocalCluster, everywhere: str) -> None:
    whole = load(spark, tiering, everywhere, tiered="nodes").cache()
    first, last = whole.agg(F.min("append_timestamp"), F.max("append_timestamp")).collect()[0]
    middle = first + (last - first) / 3
    for condition in (
        F.col("offset").between(17, 400) & (F.col("partition") == 1),
        F.col("append_timestamp") < F.lit(middle),
        (F.col("append_timestamp") >= F.lit(middle)) & (F.col("offset") < 600),
        F.col("key") == F.lit(b"k7"),
    ):
        for tiered in ("files-or-nodes", "files"):
            rows = load(spark, tiering, everywhere, filterPushdown="true", tiered=tiered)
            assert_same(rows.filter(condition), whole.filter(condition))
    whole.unpersist()


def test_a_topic_without_records_and_one_without_rows_in_objects(
    spark: SparkSession, tiering: LocalCluster
) -> None:
    create(tiering, "nothing", partitions=2)
    assert load(spark, tiering, "nothing").count() == 0
    create(tiering, "as-sent", partitions=1, tier_format="segment")
    produce(tiering, "as-sent", source(0, 100))
    tier(tiering, "as-sent")
    for tiered in ("files", "files-or-nodes"):
        assert load(spark, tiering, "as-sent", tiered=tiered).count() == 100


def test_a_driver_that_can_t_reach_the_store_says_so_once(
    spark: SparkSession, tiering: LocalCluster, everywhere: str
) -> None:
    with pytest.warns(UserWarning, match="is read through nodes") as warned:
        assert in_files(planned(tiering, everywhere, tier_url=NO_FOLDER)) == 0
    assert len(warned) == 1 and "tiered=nodes" in str(warned[0].message)
    rows = load(spark, tiering, everywhere, tier_url=NO_FOLDER, columns="partition,offset")
    assert rows.distinct().count() == rows.count() == RECORDS
    with pytest.raises(Exception, match="on every machine of Spark's"):
        load(spark, tiering, everywhere, tier_url=NO_FOLDER, tiered="files").count()
    with pytest.raises(Exception, match="tiered is one of files-or-nodes, files, nodes"):
        load(spark, tiering, everywhere, tiered="remote").count()


def test_an_executor_that_can_t_reach_the_store_goes_to_nodes(
    tiering: LocalCluster, everywhere: str
) -> None:
    parts = planned(tiering, everywhere)
    expected = read_here(planned(tiering, everywhere, tiered="nodes"))
    assert read_here(parts) == expected and len(expected) == RECORDS
    for each in parts:
        each.url = NO_FOLDER
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert read_here(parts) == expected
    assert all("is read through nodes" in str(each.message) for each in found)
    for each in parts:
        each.is_strict = True
    with pytest.raises((ConfigurationError, StorageError)):
        read_here(parts)


def objects_of(cluster: LocalCluster, topic: str) -> list[Path]:
    with Admin(cluster.bootstrap) as admin:
        found = admin.describe_tiering([topic]).topics[0].topic_id
    bucket = cluster.folder.parent / PATTERN
    return sorted(bucket.glob(f"{topic_folder(found)}/*/*.parquet"))


def test_an_object_that_goes_meanwhile_comes_through_nodes(
    spark: SparkSession, tiering: LocalCluster
) -> None:
    """A merge or retention took it: nodes know where its records are, or that they are gone."""
    create(tiering, "going", partitions=1)
    for start in (0, 100):
        produce(tiering, "going", source(start, start + 100))
        tier(tiering, "going")
    parts = planned(tiering, "going")
    strict = planned(tiering, "going", tiered="files")
    rows = load(spark, tiering, "going", columns="offset")
    first, second = objects_of(tiering, "going")
    second.rename(second.with_suffix(".away"))
    assert read_here(parts) == [(0, offset) for offset in range(200)]
    assert rows.distinct().count() == rows.count() == 200
    with pytest.raises(StorageError, match="does not exist any more"):
        read_here(strict)
    assert first.exists()


def test_files_of_others_beside_ours_are_passed_by(
    spark: SparkSession, tiering: LocalCluster
) -> None:
    create(tiering, "beside", partitions=1)
    produce(tiering, "beside", source(0, 100))
    tier(tiering, "beside")
    (path,) = objects_of(tiering, "beside")
    for other in (path.with_name("mine.parquet"), path.parents[1] / "9" / path.name):
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(path.read_bytes())
    for tiered in ("files", "nodes"):
        assert load(spark, tiering, "beside", tiered=tiered).count() == 100
    assert icecore_spark.read(spark, "beside", bootstrap=tiering.bootstrap).count() == 100


def test_a_damaged_object_ends_the_query(spark: SparkSession, tiering: LocalCluster) -> None:
    """As it does where Spark's JVM reads it, whatever nodes have."""
    create(tiering, "broken", partitions=1)
    produce(tiering, "broken", source(0, 100))
    tier(tiering, "broken")
    (path,) = objects_of(tiering, "broken")
    whole = path.read_bytes()
    for content in (b"", whole[:-9], bytes(len(whole))):
        path.write_bytes(content)
        with pytest.raises(Exception, match=f"{path.name} is damaged"):
            load(spark, tiering, "broken").count()
    assert load(spark, tiering, "broken", tiered="nodes").count() == 100


@pytest.fixture(scope="module")
def in_s3(
    moto: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalCluster, str]]:
    """A cluster with a topic in a bucket. Spark's processes have credentials since their start."""
    folder = tmp_path_factory.mktemp("in-s3")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_access(moto).items():
            patch.setenv(name, value)
        settings: dict[str, Any] = {"node_settings": s3_place(moto, folder.name).settings()}
        with running(LocalCluster(folder / "c", 1, **settings)) as cluster:
            create(cluster, "there", partitions=2, local_retention_ms=0)
            produce(cluster, "there", source(0, 1_000))
            tier(cluster, "there", is_remote=True)
            produce(cluster, "there", source(1_000, 1_200))
            yield cluster, "there"


def test_objects_in_s3(spark: SparkSession, in_s3: tuple[LocalCluster, str]) -> None:
    cluster, topic = in_s3
    assert in_files(planned(cluster, topic)) == 1_000
    through_nodes = load(spark, cluster, topic, tiered="nodes")
    assert_same(load(spark, cluster, topic, tiered="files"), through_nodes)
    assert_same(load(spark, cluster, topic), through_nodes)


def test_without_access_to_s3(
    spark: SparkSession, in_s3: tuple[LocalCluster, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, topic = in_s3
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.warns(UserWarning, match="AWS_SECRET_ACCESS_KEY") as warned:
        for _ in range(2):
            assert in_files(planned(cluster, topic)) == 0
    assert {str(each.message) for each in warned} == {str(warned[0].message)}
    elsewhere = "s3://no-such-bucket/prefix"
    assert load(spark, cluster, topic, tier_url=elsewhere).count() == 1_200
