"""The job rewrite against a topic of many small tiered segments, while Spark reads it."""

import json
import threading
import time
from collections.abc import Callable

import pytest
from pyspark.sql import Row, SparkSession

from icecore import spark as icecore_spark
from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster
from icecore.spark.jobs import arguments
from icecore.spark.jobs.runner import perform
from icecore.spark.runs.report import Metrics, Report
from icecore.topic_settings import TopicSettings
from tests.spark.clusters import plain_url

RECORDS = 12_000
HOT = 100
TOPIC = "small"


@pytest.fixture(scope="module")
def tiered(tiering: LocalCluster) -> tuple[LocalCluster, str]:
    """A cluster with a topic of which many small segments lie in object storage alone."""
    with Admin(tiering.bootstrap) as admin:
        _wait(lambda: bool(admin.describe_tiering().tier_urls))
        settings = TopicSettings(
            partitions=2,
            replication_factor=1,
            segment_bytes=64 << 10,
            tier="on",
            local_retention_ms=0,
        )
        admin.create_topic(TOPIC, settings)
        for start in range(0, RECORDS, 1000):
            fill(tiering, range(start, start + 1000))
        admin.roll_topic(TOPIC)
        _wait(lambda: is_remote(admin))
        fill(tiering, range(RECORDS, RECORDS + HOT))
        return tiering, plain_url(tiering)


def fill(cluster: LocalCluster, numbers: range) -> None:
    with Producer(cluster.bootstrap, batch_bytes=16 << 10) as producer:
        for n in numbers:
            value = json.dumps({"n": n, "pad": "x" * 200}).encode()
            producer.send(TOPIC, value, key=b"%d" % n, tags=("odd",) if n % 2 else ())


def is_remote(admin: Admin) -> bool:
    [found] = admin.describe_tiering([TOPIC]).topics
    left = found.waiting_segments + found.uploading_segments + found.stale_tables
    sealed = [each for each in admin.list_segments(TOPIC) if each.end_offset >= 0]
    records = sum(each.end_offset - each.base_offset for each in sealed)
    return not left and records >= RECORDS and found.remote_only_segments == len(sealed)


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(spark: SparkSession, cluster: LocalCluster, job: str, *given: str) -> Metrics:
    asked = arguments.parse([job, TOPIC, "--bootstrap", cluster.bootstrap, *given])
    report = Report(job, asked.topic)
    perform(spark, asked, report)
    return report.metrics


def summed(spark: SparkSession, cluster: LocalCluster) -> Row:
    rows = icecore_spark.read(spark, TOPIC, bootstrap=cluster.bootstrap, tiered="files-or-nodes")
    found = rows.selectExpr("count(*)", "count(distinct key)", "sum(offset)", "sum(length(value))")
    return found.first()  # type: ignore[return-value]


def segments(cluster: LocalCluster) -> int:
    with Admin(cluster.bootstrap) as admin:
        return len(admin.list_segments(TOPIC))


def remote_only(cluster: LocalCluster) -> int:
    with Admin(cluster.bootstrap) as admin:
        return admin.describe_tiering([TOPIC]).topics[0].remote_only_segments


def test_small_segments_become_few_while_spark_reads(
    spark: SparkSession, tiered: tuple[LocalCluster, str]
) -> None:
    cluster, url = tiered
    wanted = summed(spark, cluster)
    # A tail that was empty when all were rolled rolls with its first record: one more may come.
    remote = remote_only(cluster)
    assert remote > 15 and wanted[0] == wanted[1] == RECORDS + HOT
    planned = run(spark, cluster, "rewrite", "--dry-run")
    assert (planned.status, planned.steps_done) == ("planned", 0)
    assert planned.records_read >= RECORDS
    assert remote_only(cluster) >= remote
    seen: list[Row] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set() or len(seen) < 2:
            seen.append(summed(spark, cluster))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        made = run(spark, cluster, "rewrite", "--tasks", "2")
    finally:
        ended.set()
        reader.join()
    assert (made.status, made.error, made.segments_left) == ("done", "", 0)
    assert made.segments_merged >= remote and made.steps_done >= 2
    assert made.records_written == made.records_read >= RECORDS
    assert 0 < made.bytes_written < made.bytes_read
    assert set(seen) == {wanted}
    assert summed(spark, cluster) == wanted
    # Of each partition a merged one, the one that is written and the one more.
    assert segments(cluster) <= 6
    with Admin(cluster.bootstrap) as admin:
        _wait(lambda: is_remote(admin))
        _wait(lambda: not admin.describe_tiering([TOPIC]).topics[0].stale_tables)
    agreed = run(spark, cluster, "reconcile", "--table", url)
    assert (agreed.status, agreed.findings, agreed.error) == ("done", 0, "")
    run(spark, cluster, "rewrite")  # of the one more, where it came late
    again = run(spark, cluster, "rewrite")
    assert (again.status, again.steps_done, again.segments_merged) == ("done", 0, 0)


def test_what_can_t_be_merged(
    spark: SparkSession, tiered: tuple[LocalCluster, str], capfd: pytest.CaptureFixture[str]
) -> None:
    cluster, _ = tiered
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("hot", TopicSettings(replication_factor=1))
    asked = arguments.parse(["rewrite", "hot", "--bootstrap", cluster.bootstrap])
    report = Report("rewrite", "hot")
    perform(spark, asked, report)
    assert (report.metrics.status, report.metrics.steps_done) == ("done", 0)
    assert "no segments fit together" in capfd.readouterr().err
    asked.topic = "nobody"
    perform(spark, asked, report)
    assert report.metrics.status == "failed" and "UNKNOWN_TOPIC" in report.metrics.error
