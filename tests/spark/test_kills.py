"""A driver that is killed (SIGKILL, its JVM with it) at random points of its micro-batches and
restarted from its checkpoints: reads and writes leave each record once.

``SPARK_KILLS=20`` is the long form; a start takes ten seconds, so it takes minutes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from tests.support.spark_pipeline import SOURCE, TARGET
from tests.tidy.tree import ROOT

KILLS = int(os.environ.get("SPARK_KILLS", "2"))
RECORDS = 1_000 + 1_000 * KILLS
RECORDS_PER_BATCH = 40
KILL_S_MAX = 0.5
"""After a micro-batch has begun: a fast machine reads thousands of records in a second or two."""
START_S = 240.0
SPARKS_OWN = ("DAGScheduler.submitMissingTasks", "Python worker failed to connect back")
"""Signs that Spark itself ended a driver, so whoever looks after it starts it again. Once in some
hundred starts its scheduler could not serialise a stage while both queries began. It waits ten
seconds for a Python process to start, which is too short on a busy machine."""
SPARE_STARTS = 2
"""For drivers that ended so before they could be killed."""


def begin(cluster: LocalCluster, folder: Path, records: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.support.spark_pipeline", cluster.bootstrap]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(folder), str(records)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )


def said(folder: Path) -> str:
    """Return the drivers' log without the frames of Java itself, which would push the cause out."""
    lines = (folder / "log").read_text().splitlines()
    return "\n".join(line for line in lines if "at java.base/" not in line)[-20_000:]


def is_sparks_own(folder: Path) -> bool:
    """Return whether Spark itself ended a driver."""
    return any(sign in said(folder) for sign in SPARKS_OWN)


def planned(folder: Path) -> int:
    """Return how many micro-batches were begun, by both queries. Spark keeps files of the last
    only.
    """
    count = 0
    for query in ("to-table", "to-topic"):
        names = [each.name for each in (folder / query / "offsets").glob("*")]
        count += max((int(name) + 1 for name in names if name.isdecimal()), default=0)
    return count


def die_at_the_first_offsets(folder: Path) -> None:
    """Leave what a driver leaves that was killed while it wrote the first offsets of its queries.
    One in some dozens is, so that it would be found by chance otherwise."""
    for query in ("to-table", "to-topic"):
        offsets = folder / query / "offsets"
        offsets.mkdir(parents=True)
        (offsets / ".0.6c2c4f1e-7c0e-4c55-8f0e-3a5a0e0c9d51.tmp").write_bytes(b"v1\n{")


def kill_at_work(running: "subprocess.Popen[bytes]", folder: Path, rng: random.Random) -> bool:
    """Kill it somewhen after it has begun another micro-batch; whether it was still running."""
    before, deadline = planned(folder), time.monotonic() + START_S
    was_running = False
    try:
        while planned(folder) == before and running.poll() is None:
            assert time.monotonic() < deadline, said(folder)
            time.sleep(0.02)
        time.sleep(rng.uniform(0, KILL_S_MAX))
        was_running = running.poll() is None
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    return was_running


def kill_often(cluster: LocalCluster, folder: Path, rng: random.Random) -> int:
    """Start and kill it so many times as are asked for; how often it was killed at work."""
    kills = 0
    for _ in range(KILLS + SPARE_STARTS):
        if kills == KILLS:
            break
        running = begin(cluster, folder, RECORDS_PER_BATCH)
        if kill_at_work(running, folder, rng):
            kills += 1
            continue
        assert running.returncode, "there is too little to read"
        assert is_sparks_own(folder), said(folder)
    return kills


def ends_well(cluster: LocalCluster, folder: Path) -> bool:
    """Let it read to the end; whether it could."""
    last = begin(cluster, folder, RECORDS)
    try:
        return last.wait(timeout=START_S) == 0
    finally:
        if last.poll() is None:
            os.killpg(last.pid, signal.SIGKILL)
        last.wait()


@pytest.mark.slow
@pytest.mark.every(2, turn=1)
@pytest.mark.timeout(600 + 120 * KILLS)
def test_each_record_once_over_kills(tiering: LocalCluster, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Admin(tiering.bootstrap) as admin:
        for topic in (SOURCE, TARGET):
            admin.create_topic(topic, partitions=3, replication_factor=1)
    values = [b"%d" % number for number in range(RECORDS)]
    with Producer(tiering.bootstrap) as producer:
        producer.send_batch(SOURCE, values, keys=values)
    die_at_the_first_offsets(tmp_path)
    assert kill_often(tiering, tmp_path, rng) == KILLS, said(tmp_path)
    if not ends_well(tiering, tmp_path):
        assert is_sparks_own(tmp_path), said(tmp_path)
        assert ends_well(tiering, tmp_path), said(tmp_path)
    in_table = json.loads((tmp_path / "values.json").read_text())
    assert Counter(map(int, in_table)) == Counter(range(RECORDS))
    with Consumer(tiering.bootstrap, TARGET, stop_at_end=True) as consumer:
        found = Counter(int(record.value or b"-1") for record in consumer)
    assert found == Counter(range(RECORDS))
