"""A Spark cluster of processes of its own on loopback: jobs and a script, given to spark-submit, go
through a topic that is tiered in part, with this package from the zip only; and an executor without
the package says what to ship."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from icecore.spark.jobs.package import package
from icecore.spark.sessions import provide_java
from tests.spark.test_tiered_read import create, source, tier

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 240.0
RECORDS = 2_000
SCRIPT = """
import json, os, sys
from pyspark.sql import SparkSession, functions as F
from icecore import spark as icecore_spark
from icecore.spark.jobs.__main__ import run

session = SparkSession.builder.getOrCreate()
rows = icecore_spark.read(session, "submitted", bootstrap=sys.argv[1], minPartitions=4)
value = F.from_json(F.col("value").cast("string"), "number long, amount long")
table = rows.select("tags", value.alias("v"))
total = table.agg(F.count("*"), F.sum("v.amount")).collect()[0]

def where(_):
    import icecore
    return [(os.getcwd(), icecore.__file__)]

# A barrier: both tasks run at once, each on an executor with one core.
found = session.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(where).collect()
folders, files = zip(*found)
print(json.dumps({"total": list(total), "executors": len(set(folders)), "files": files}))
sys.exit(run(sys.argv[2:]))
"""


def environment(folder: Path) -> dict[str, str]:
    """Without the tree: what is imported must come from the zip."""
    found = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    provide_java(found)
    return (
        {"PYSPARK_PYTHON": sys.executable}
        | found
        | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
    )


def daemon(folder: Path, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    with (folder / name).open("wb") as log:
        return subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", *arguments],
            cwd=folder,
            env=environment(folder),
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
    """The address of one whose worker has room for two executors."""
    folder = tmp_path_factory.mktemp("standalone")
    deploy = "org.apache.spark.deploy"
    place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    started = [daemon(folder, "master", f"{deploy}.master.Master", *place)]
    try:
        url = told(folder / "master", r"spark://127\.0\.0\.1:\d+")
        sizes = ["--cores", "2", "--memory", "1200m"]
        started.append(daemon(folder, "worker", f"{deploy}.worker.Worker", *place, *sizes, url))
        told(folder / "worker", "Successfully registered with master")
        yield url
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait()


@pytest.fixture(scope="module")
def half(tiering: LocalCluster) -> LocalCluster:
    """Half of a topic in object storage."""
    create(tiering, "submitted", partitions=2)
    for start in (0, RECORDS // 2):
        rows = source(start, start + RECORDS // 2)
        values = [
            json.dumps({"number": row.number, "amount": row.amount}).encode()
            for row in rows.itertuples()
        ]
        with Producer(tiering.bootstrap) as producer:
            producer.send_batch("submitted", values, keys=list(rows.key))
        if not start:
            tier(tiering, "submitted")
    return tiering


def submit(
    master: str, folder: Path, script: Path, *given: object, cores: int, archive: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a script on executors with one core each."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(cores),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # all are there before it begins
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "1",
    }
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", master]
    if archive is not None:
        command += ["--py-files", archive]
    for name, text in settings.items():
        command += ["--conf", f"{name}={text}"]
    return subprocess.run(
        [*map(str, command), str(script), *map(str, given)],
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )


def printed(done: "subprocess.CompletedProcess[str]") -> list[dict[str, object]]:
    """The objects that a script has printed; a job's is its last line."""
    assert done.returncode == 0, done.stderr[-4_000:]
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("{"), done.stdout
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.every(2, turn=0)
@pytest.mark.timeout(1500)
def test_a_topic_through_a_cluster(master: str, half: LocalCluster, tmp_path: Path) -> None:
    """A job by the script that is shipped; then a script that reads on two executors and runs
    another job, which writes what the first one has made."""
    where = ("--bootstrap", half.bootstrap)
    archive, shipped = package(tmp_path / "shipped")
    job = ("export", "submitted", *where, "--to", tmp_path / "out")
    done = submit(master, tmp_path, shipped, *job, cores=1, archive=archive)
    [made] = printed(done)
    assert (made["status"], made["records_written"]) == ("done", RECORDS)
    table = tmp_path / "out" / "table"
    files = table.rglob("*.parquet")
    rows = [n for path in files for n in pq.read_table(path)["number"].to_pylist()]
    assert sorted(rows) == list(range(RECORDS))

    with Admin(half.bootstrap) as admin:
        admin.create_topic("back", partitions=2, replication_factor=1)
    script = tmp_path / "read.py"
    script.write_text(SCRIPT)
    given = ("--from", table, "--state", tmp_path / "state", "--key", "record_key")
    job = (half.bootstrap, "backfill", "back", *where, *given)
    done = submit(master, tmp_path, script, *job, cores=2, archive=archive)
    found, made = printed(done)
    assert found["total"] == [RECORDS, int(source(0, RECORDS).amount.sum())]
    assert found["executors"] == 2
    assert all("icecore-spark.zip" in str(file) for file in found["files"])  # type: ignore[attr-defined]
    assert (made["status"], made["records_written"]) == ("done", RECORDS)
    with Consumer(half.bootstrap, "back", stop_at_end=True) as consumer:
        rows = sorted(json.loads(each.value or b"")["number"] for each in consumer)
    assert rows == list(range(RECORDS))


@pytest.mark.slow
@pytest.mark.every(2, turn=1)
@pytest.mark.timeout(1500)
def test_executors_without_the_package_say_what_to_ship(
    master: str, half: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    script = tmp_path / "read.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    done = submit(master, tmp_path, script, half.bootstrap, cores=1)
    assert done.returncode != 0
    assert "this Spark executor can't import icecore" in done.stderr
    assert "spark.archives" in done.stderr
