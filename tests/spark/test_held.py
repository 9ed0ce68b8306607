"""Reads as of one moment that is held: retention waits for them, and what has ended says so."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icecore import spark as icecore_spark
from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster
from icecore.errors import ConfigurationError, ConflictError, UnknownTopicError
from tests.spark.clusters import with_bucket
from tests.spark.test_tiered_read import create, source, tier

KEPT_MS = 500


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Objects of what retention takes are swept at once."""
    settings = {"tier_reader_grace_ms": 0}
    folder = tmp_path_factory.mktemp("kept")
    with with_bucket(folder, 1, coordinator_settings=settings) as started:
        yield started


def produce(cluster: LocalCluster, topic: str, start: int, end: int) -> None:
    keys = list(source(start, end).key)
    with Producer(cluster.bootstrap) as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(start, end)], keys=keys)


def start_of(cluster: LocalCluster, topic: str) -> int:
    with Admin(cluster.bootstrap) as admin:
        (described,) = admin.describe_topics([topic])
    return sum(each.log_start_offset for each in described.partitions)


def until_retention_took(cluster: LocalCluster, topic: str) -> None:
    """Wait until retention has taken records that are younger than all others, from a topic that
    nobody holds."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=1, retention_ms=KEPT_MS)
        produce(cluster, topic, 0, 100)
        admin.roll_topic(topic)
    wait(lambda: start_of(cluster, topic) == 100)


def test_retention_waits_for_whom_holds(spark: SparkSession, kept: LocalCluster) -> None:
    create(kept, "held", partitions=2)
    produce(kept, "held", 0, 1_000)
    tier(kept, "held")
    produce(kept, "held", 1_000, 1_500)
    with icecore_spark.hold("held", bootstrap=kept.bootstrap, hold_s=60, owner="a job") as held:
        with Admin(kept.bootstrap) as admin:
            admin.alter_topic("held", retention_ms=KEPT_MS)
            (described,) = admin.describe_topics(["held"])
        assert [each.owner for each in described.holds] == ["a job"]
        produce(kept, "held", 1_500, 1_600)
        until_retention_took(kept, "not-held")
        assert start_of(kept, "held") == 0
        rows = icecore_spark.read(spark, "held", bootstrap=kept.bootstrap, asOf=held.as_of)
        assert rows.select("partition", "offset").distinct().count() == rows.count() == 1_500
        given = {"topic": "held", "bootstrap": kept.bootstrap, "asOf": held.as_of}
        assert spark.read.format("icecore").options(**given).load().count() == 1_500
        late = icecore_spark.read(
            spark, "held", bootstrap=kept.bootstrap, asOf=held.as_of, startingTimestamp=1
        )
        assert late.count() == 1_500
    wait(lambda: start_of(kept, "held") >= 1_000)
    with pytest.raises(ConflictError, match="has ended"):
        icecore_spark.read(spark, "held", bootstrap=kept.bootstrap, asOf=held.as_of)
    with pytest.raises(Exception, match="has ended"):
        spark.read.format("icecore").options(**given).load().count()


def test_a_query_goes_on_over_segments_that_are_merged_and_retire(
    spark: SparkSession, kept: LocalCluster
) -> None:
    """Its files were chosen before; without the hold they would be gone at once."""
    create(kept, "merged", partitions=1, local_retention_ms=0)
    for start in range(0, 2_000, 500):
        produce(kept, "merged", start, start + 500)
        tier(kept, "merged", is_remote=True)
    produce(kept, "merged", 2_000, 2_100)
    with icecore_spark.hold("merged", bootstrap=kept.bootstrap, hold_s=60) as held:
        rows = icecore_spark.read(spark, "merged", bootstrap=kept.bootstrap, asOf=held.as_of)
        assert len(rows.inputFiles()) == 4
        with Admin(kept.bootstrap) as admin:
            (group,) = admin.plan_merges("merged").groups
            merged = admin.merge_segments("merged", group.segment_ids)
            assert (len(group.segment_ids), merged.records) == (4, 2_000)
            wait(lambda: not admin.describe_tiering(["merged"]).topics[0].stale_tables)
            admin.alter_topic("merged", retention_ms=KEPT_MS)
        produce(kept, "merged", 2_100, 2_200)
        until_retention_took(kept, "not-merged")
        assert rows.select("offset").distinct().count() == rows.count() == 2_100
        now = icecore_spark.read(spark, "merged", bootstrap=kept.bootstrap)
        assert len(now.inputFiles()) == 1 and now.count() == 2_200
        folder = rows.inputFiles()[0].removeprefix("file://").rpartition("/")[0]
    wait(lambda: start_of(kept, "merged") >= 2_000)
    wait(lambda: not [*Path(folder).glob("*.parquet")])


def wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


HOLD_S = 5
"""A busy machine may hold up a renewal for a second or two."""


def test_a_hold_is_renewed_while_a_job_works(kept: LocalCluster) -> None:
    create(kept, "renewed", partitions=1)
    with Admin(kept.bootstrap) as admin:

        def owners() -> list[str]:
            (described,) = admin.describe_topics(["renewed"])
            return [each.owner for each in described.holds]

        until_s = time.monotonic() + 1.5 * HOLD_S
        with icecore_spark.hold(
            "renewed", bootstrap=kept.bootstrap, hold_s=HOLD_S, owner="job"
        ) as held:
            admin.hold_snapshot("renewed", HOLD_S * 1_000, owner="nobody")
            assert owners() == ["job", "nobody"]
            wait(lambda: owners() == ["job"])  # what is not renewed ends by itself
            wait(lambda: time.monotonic() > until_s)
            assert owners() == ["job"]
        held.close()
        assert not owners()


def test_wrong_holds(spark: SparkSession, kept: LocalCluster) -> None:
    with pytest.raises(UnknownTopicError):
        icecore_spark.hold("nothing", bootstrap=kept.bootstrap)
    with pytest.raises(ConfigurationError, match="hold_s is 1 to"):
        icecore_spark.hold("held", bootstrap=kept.bootstrap, hold_s=0)
    with pytest.raises(ConfigurationError, match=r"hold\(…\).as_of"):
        icecore_spark.read(spark, "held", bootstrap=kept.bootstrap, asOf="yesterday")
