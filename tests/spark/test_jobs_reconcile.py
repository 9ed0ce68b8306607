"""The job reconcile against a topic that is in part in object storage: it agrees, and it notices a
table that lacks records or has other ones."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster
from icecore.spark.jobs import arguments, reconcile
from icecore.spark.jobs.runner import perform
from icecore.spark.runs.report import Metrics, Report
from icecore.topic_settings import TopicSettings
from tests.spark.clusters import PATTERN, plain_url

RECORDS = 3_000
TOPIC = "reconciled"


@pytest.fixture(scope="module")
def tiered(tiering: LocalCluster) -> tuple[LocalCluster, str]:
    """A cluster with a topic of which a part is tiered, and where."""
    with Admin(tiering.bootstrap) as admin:
        _wait(lambda: bool(admin.describe_tiering().tier_urls))
        settings = TopicSettings(partitions=2, replication_factor=1, tier="on")
        admin.create_topic(TOPIC, settings)
        fill(tiering, range(RECORDS))
        admin.roll_topic(TOPIC)
        _wait(lambda: sum(bool(each.is_tiered) for each in admin.list_segments(TOPIC)) >= 2)
        _wait(lambda: not admin.describe_tiering([TOPIC]).topics[0].stale_tables)
        fill(tiering, range(RECORDS, RECORDS + 500))
        return tiering, plain_url(tiering)


def fill(cluster: LocalCluster, numbers: range) -> None:
    with Producer(cluster.bootstrap) as producer:
        for n in numbers:
            tags = ("odd",) if n % 2 else ()
            headers = (("h", b"%d" % n),) if n % 3 else ()
            value = json.dumps({"n": n, "pad": "x" * 100}).encode()
            producer.send(
                TOPIC, value if n % 7 else None, key=b"%d" % n, tags=tags, headers=headers
            )


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(spark: SparkSession, cluster: LocalCluster, *given: str) -> Metrics:
    asked = arguments.parse(["reconcile", TOPIC, "--bootstrap", cluster.bootstrap, *given])
    report = Report("reconcile", TOPIC)
    perform(spark, asked, report)
    return report.metrics


def test_all_accounts_agree(spark: SparkSession, tiered: tuple[LocalCluster, str]) -> None:
    cluster, url = tiered
    made = run(spark, cluster, "--table", url)
    assert (made.status, made.error, made.findings) == ("done", "", 0)
    assert made.records_read == RECORDS + 500
    assert run(spark, cluster).status == "done"
    planned = run(spark, cluster, "--table", url, "--dry-run")
    assert (planned.status, planned.records_read) == ("planned", 0)


def test_a_table_that_differs(
    spark: SparkSession,
    tiered: tuple[LocalCluster, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, url = tiered
    whole = reconcile._table_files
    changed = tmp_path / "changed.parquet"

    def files(*given: object) -> list[str]:
        first, *rest = whole(*given)  # type: ignore[arg-type]
        rows = pq.read_table(first.removeprefix("file://"))
        values = rows.column("value").to_pylist()
        place = next(index for index, value in enumerate(values) if value)
        values[place] = b"forged"
        column = pa.array(values, rows.schema.field("value").type)
        rows = rows.set_column(rows.schema.get_field_index("value"), "value", column)
        pq.write_table(rows, changed)
        return [str(changed), *rest]

    monkeypatch.setattr(reconcile, "_table_files", files)
    made = run(spark, cluster, "--table", url)
    assert (made.status, made.findings) == ("differs", 1)
    monkeypatch.setattr(reconcile, "_table_files", lambda *given: whole(*given)[1:])
    made = run(spark, cluster, "--table", url)
    assert (made.status, made.findings) == ("differs", 1)


def test_a_table_that_is_not_there(
    spark: SparkSession, tiered: tuple[LocalCluster, str], tmp_path: Path
) -> None:
    made = run(spark, tiered[0], "--table", tmp_path.as_uri())
    assert made.status == "failed"
    assert "there is no table of the topic at" in made.error


@pytest.mark.parametrize("is_url", [False, True], ids=["path", "url"])
def test_a_table_in_a_folder_that_looks_like_a_pattern(
    spark: SparkSession, tiered: tuple[LocalCluster, str], tmp_path: Path, is_url: bool
) -> None:
    """A copy of the bucket: Delta's library would follow a link, and say the name behind it."""
    cluster, url = tiered
    bucket = tmp_path / PATTERN
    shutil.copytree(urlsplit(url).path, bucket)
    made = run(spark, cluster, "--table", bucket.as_uri() if is_url else str(bucket))
    assert (made.status, made.error, made.findings) == ("done", "", 0)
