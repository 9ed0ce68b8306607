"""Jobs on a real Spark cluster: a standalone master and two workers, spark-submit, and executors
that have this package from the zip only."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq
import pyspark

from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from icecore.spark.jobs.package import package
from icecore.spark.virtual_machine import provide_java

HOME = Path(pyspark.__file__).parent
RECORDS = 2_000
WORKER = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "700m")


def environment(folder: Path) -> dict[str, str]:
    """Without the tree: what is imported must come from the zip."""
    found = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    provide_java(found)
    kept = {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    return found | kept


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one with two workers."""
    folder = tmp_path_factory.mktemp("spark")
    log = folder / "log"
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        with log.open("ab") as out:
            given = [HOME / "bin" / "spark-class", *command, *where]
            process = subprocess.Popen(given, env=environment(folder), stdout=out, stderr=out)
        started.append(process)

    def wait(pattern: str, count: int = 1) -> str:
        deadline = time.monotonic() + 90
        while len(found := re.findall(pattern, log.read_text())) < count:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return str(found[0])

    try:
        start("org.apache.spark.deploy.master.Master", "--port", "0")
        url = wait(r"Starting Spark master at (spark://\S+)")
        for _ in range(2):
            start(*WORKER, url)
        wait("Successfully registered with master", 2)
        yield url
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def submit(master: str, folder: Path, *given: object) -> dict[str, object]:
    """The last line of a job that spark-submit has run."""
    archive, script = package(folder / "shipped")
    command = [HOME / "bin" / "spark-submit", "--master", master, "--py-files", archive]
    for setting in ("spark.ui.enabled=false", "spark.executor.memory=512m"):
        command += ["--conf", setting]
    done = subprocess.run(
        [*map(str, command), str(script), *map(str, given)],
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(400)
def test_a_topic_through_a_cluster(master: str, cluster: LocalCluster, tmp_path: Path) -> None:
    with Admin(cluster.bootstrap) as admin:
        for topic in ("far", "back"):
            admin.create_topic(topic, partitions=2, replication_factor=1)
    with Producer(cluster.bootstrap) as producer:
        for n in range(RECORDS):
            producer.send("far", json.dumps({"n": n}).encode(), key=b"%d" % (n % 100))
    where = ("--bootstrap", cluster.bootstrap)
    made = submit(master, tmp_path, "export", "far", *where, "--to", tmp_path / "out")
    assert (made["status"], made["records_written"]) == ("done", RECORDS)
    table = tmp_path / "out" / "table"
    rows = [n for path in table.rglob("*.parquet") for n in pq.read_table(path)["n"].to_pylist()]
    assert sorted(rows) == list(range(RECORDS))
    given = ("--from", table, "--state", tmp_path / "state", "--key", "record_key")
    made = submit(master, tmp_path, "backfill", "back", *where, *given)
    assert (made["status"], made["records_written"]) == ("done", RECORDS)
    with Consumer(cluster.bootstrap, "back", stop_at_end=True) as consumer:
        found = sorted(json.loads(each.value or b"")["n"] for each in consumer)
    assert found == list(range(RECORDS))
