"""Fixtures of tests with a real Spark: one session for all tests of a process, on two threads, and
clusters that its tests share.

With ``-n 3 --dist loadgroup`` each group below has a process, and so a JVM, of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.sql import SparkSession

from icecore import spark as icecore_spark
from icecore.dev import LocalCluster
from tests.spark.clusters import with_bucket
from tests.support.clusters import LEASE_MS, running
from tests.support.fast import default_waits, fast_waits  # noqa: F401 - fixtures for all tests here
from tests.support.s3 import S3Server, s3_access
from tests.tidy.tree import ROOT

HERE = Path(__file__).parent
GROUPS = {
    "spark-a": (
        *(
            "cookbook",
            "front",
            "kills",
            "notebook",
            "read",
            "standalone",
            "tiered_read",
            "tiered_table",
        ),
        *("values", "write"),
    ),
    "spark-b": (
        *("faults", "held", "jobs", "jobs_folders", "jobs_reconcile", "jobs_rewrite", "stream"),
    ),
}
"""Files that share a JVM and clusters; each group takes about as long as the other. With three of
them at once Spark's own limit of ten seconds for the start of a Python process ran out."""
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Options of every JVM, those of submitted scripts and executors included. A JVM lives for seconds:
the optimising compiler and the threads of another collector cost more than they save."""

TIMEOUT_S = 900
"""Time limit of a test; the first one starts a JVM and a cluster, perhaps on a busy machine."""


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say to which group a test belongs."""
    of_file = {f"test_{name}": group for group, names in GROUPS.items() for name in names}
    for item in items:
        if HERE in item.path.parents:
            if item.path.stem not in of_file:
                raise pytest.UsageError(f"{item.path}: name its group in {__file__}")
            item.add_marker(pytest.mark.xdist_group(of_file[item.path.stem]))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@contextmanager
def _environment() -> Iterator[None]:
    """Python processes import the tree that is tested; JVMs are made for tests."""
    folders = [ROOT, *(ROOT / name for name in ("node", "coordinator", "replication"))]
    given = os.environ.get("JDK_JAVA_OPTIONS", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("JDK_JAVA_OPTIONS", " ".join([*JAVA_OPTIONS, given]).strip())
        yield


@pytest.fixture(scope="module", autouse=True)
def _processes_of_spark() -> Iterator[None]:
    """Restore the environment, so that later tests of this process find it unchanged."""
    with _environment():
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, moto: S3Server) -> Iterator[SparkSession]:
    """The session of this process; its JVM ends with it. Processes of Spark may read the S3 server
    of the tests."""
    with _environment(), pytest.MonkeyPatch.context() as patch:
        for name, value in s3_access(moto).items():
            patch.setenv(name, value)
        session = icecore_spark.session(
            "local[2]",
            conf={
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.session.timeZone": "UTC",
                "spark.driver.memory": "1g",
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            },
        )
    session.sparkContext.setLogLevel("ERROR")
    gateway = SparkContext._gateway
    yield session
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # which the JVM takes for the end of this process
    gateway.proc.wait(timeout=60)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One node without an object store, for tests that kill nothing. Topics have names that no
    other file uses."""
    with running(LocalCluster(tmp_path_factory.mktemp("cluster"), 1)) as started:
        yield started


@pytest.fixture(scope="session")
def tiering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with an object store. Who kills one of them takes ``mortal``."""
    settings = {"lease_ms": LEASE_MS}
    folder = tmp_path_factory.mktemp("tiering")
    with with_bucket(folder, 3, is_link=True, coordinator_settings=settings) as started:
        yield started


@pytest.fixture
def mortal(tiering: LocalCluster) -> Iterator[LocalCluster]:
    """The same, for tests that kill nodes: what they leave dead is started again."""
    yield tiering
    for node_id in tiering.addresses:
        if not tiering.node(node_id).is_running:
            tiering.start_node(node_id)
