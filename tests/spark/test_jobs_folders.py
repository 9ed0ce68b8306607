"""Jobs whose folders have names that Spark could take for patterns."""

from pathlib import Path

from pyspark.sql import SparkSession

from icecore.dev import LocalCluster
from tests.spark.clusters import PATTERN
from tests.spark.test_jobs import create, produce, run


def test_latest_goes_on(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "latest-pattern")
    given = ("latest", "latest-pattern", "--to", tmp_path / PATTERN)
    for number in range(2):
        produce(cluster, "latest-pattern", [(b"k%d" % number, b"v")])
        made = run(spark, cluster, *given)
        assert (made.status, made.error) == ("done", "")
    assert made.records_written == 2
