"""A Spark cluster of processes of its own, a master and two workers on loopback: spark-submit reads
a topic there, tiered in part, and an executor without the package says what to ship."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from icecore.blocking import Producer
from icecore.dev import LocalCluster
from tests.spark.test_tiered_read import create, source, tier
from tests.tidy.tree import ROOT

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 60.0
FOLDERS = [ROOT, *(ROOT / name for name in ("node", "coordinator", "replication"))]
SCRIPT = """
import json, os, sys, time
from pyspark.sql import SparkSession, functions as F
from icecore import spark as icecore_spark

session = SparkSession.builder.getOrCreate()
rows = icecore_spark.read(session, "submitted", bootstrap=sys.argv[1], minPartitions=4)
value = F.from_json(F.col("value").cast("string"), "number long, amount long")
table = rows.select("tags", value.alias("v"))
total = table.agg(F.count("*"), F.sum("v.amount")).collect()[0]
def folder(_):
    time.sleep(0.5)  # or one executor takes them all
    return os.getcwd()

folders = session.sparkContext.parallelize(range(8), 8).map(folder).collect()
print(json.dumps({"total": list(total), "executors": len(set(folders))}))
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }


def daemon(folder: Path, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    with (folder / name).open("wb") as log:
        return subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", *arguments],
            cwd=folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def told(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < deadline, log.read_text()[-4_000:]
        time.sleep(0.1)
    return found[0]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With two workers."""
    folder = tmp_path_factory.mktemp("standalone")
    deploy = "org.apache.spark.deploy"
    place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    running = [daemon(folder, "master", f"{deploy}.master.Master", *place)]
    try:
        url = told(folder / "master", r"spark://127\.0\.0\.1:\d+")
        for number in range(2):
            name = f"worker-{number}"
            sizes = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / name) + ".d"]
            running.append(daemon(folder, name, f"{deploy}.worker.Worker", *place, *sizes, url))
        for number in range(2):
            told(folder / f"worker-{number}", "Successfully registered with master")
        yield url
    finally:
        for each in reversed(running):
            each.terminate()
        for each in running:
            each.wait()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Half of a topic in object storage."""
    folder = tmp_path_factory.mktemp("half")
    (folder / "bucket").mkdir()
    url = (folder / "bucket").as_uri()
    with LocalCluster(folder / "c", nodes=1, tier_url=url) as running:
        create(running, "submitted", partitions=2)
        for start in (0, 1_000):
            rows = source(start, start + 1_000)
            values = [
                json.dumps({"number": row.number, "amount": row.amount}).encode()
                for row in rows.itertuples()
            ]
            with Producer(running.bootstrap) as producer:
                producer.send_batch("submitted", values, keys=list(rows.key))
            if not start:
                tier(running, "submitted")
        yield running


def submit(
    master: str,
    cluster: LocalCluster,
    folder: Path,
    *conf: str,
    python: Path = Path(sys.executable),
) -> "subprocess.CompletedProcess[str]":
    script = folder / "read.py"
    script.write_text(SCRIPT)
    settings = [
        "spark.executor.memory=512m",
        "spark.driver.memory=512m",
        "spark.scheduler.minRegisteredResourcesRatio=1.0",  # both are there before it begins
        *conf,
    ]
    flags = [part for each in settings for part in ("--conf", each)]
    return subprocess.run(
        [
            SPARK_HOME / "bin" / "spark-submit",
            "--master",
            master,
            "--conf",
            "spark.ui.enabled=false",
            *flags,
            script,
            cluster.bootstrap,
        ],
        env={**environment(), "PYSPARK_PYTHON": str(python)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_submitted_script_reads_hot_and_cold(
    master: str, half: LocalCluster, tmp_path: Path
) -> None:
    done = submit(master, half, tmp_path)
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"total": [2_000, int(source(0, 2_000).amount.sum())], "executors": 2}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_executors_without_the_package_say_what_to_ship(
    master: str, half: LocalCluster, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    (bare / "icecore").mkdir(parents=True)
    (bare / "icecore" / "__init__.py").write_text(
        "raise ModuleNotFoundError('No module named icecore', name='icecore')"
    )
    python = tmp_path / "python"  # Spark hands PYTHONPATH and interpreter of the driver on
    python.write_text(
        f'#!/bin/sh\n[ -z "$SPARK_EXECUTOR_DIRS" ] || export PYTHONPATH={bare}:$PYTHONPATH\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = submit(master, half, tmp_path, "spark.task.maxFailures=1", python=python)
    assert done.returncode != 0
    assert "this Spark executor can't import icecore" in done.stderr
    assert "spark.archives" in done.stderr
