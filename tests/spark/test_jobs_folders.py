"""Jobs whose folders have names that Spark could take for patterns."""

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from icecore.dev import LocalCluster
from tests.spark import test_jobs_reconcile
from tests.spark.clusters import PATTERN
from tests.spark.test_jobs import create, produce, run

tiered = test_jobs_reconcile.tiered


@pytest.mark.parametrize("is_url", [False, True], ids=["path", "url"])
def test_a_table_is_reconciled(
    spark: SparkSession, tiered: tuple[LocalCluster, str], tmp_path: Path, is_url: bool
) -> None:
    """A copy of the bucket: Delta's library would follow a link, and say the name behind it."""
    cluster, url = tiered
    bucket = tmp_path / PATTERN
    shutil.copytree(urlsplit(url).path, bucket)
    made = test_jobs_reconcile.run(
        spark, cluster, "--table", bucket.as_uri() if is_url else str(bucket)
    )
    assert (made.status, made.error, made.findings) == ("done", "", 0)


def test_latest_goes_on(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "latest-pattern")
    given = ("latest", "latest-pattern", "--to", tmp_path / PATTERN)
    for number in range(2):
        produce(cluster, "latest-pattern", [(b"k%d" % number, b"v")])
        made = run(spark, cluster, *given)
        assert (made.status, made.error) == ("done", "")
    assert made.records_written == 2
