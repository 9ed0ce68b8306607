"""Fixtures of tests with a real Spark: one session for all of them, on two threads."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from icecore import spark as icecore_spark
from icecore.dev import LocalCluster
from tests.support.fast import default_waits, fast_waits  # noqa: F401 - fixtures for all tests here
from tests.tidy.tree import ROOT


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Its Python processes import the tree that is tested."""
    folders = [ROOT, *(ROOT / name for name in ("node", "coordinator", "replication"))]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = icecore_spark.session(
        "local[2]",
        conf={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Shared by the tests of one module: they use topics of their own and kill nothing."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """For tests that kill nodes."""
    settings = {"lease_ms": 3000}
    with LocalCluster(tmp_path / "c", nodes=3, coordinator_settings=settings) as running:
        yield running
