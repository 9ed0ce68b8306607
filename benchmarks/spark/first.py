"""Measure the first query of a Spark session and those after it, by each way to a topic.

    python -m benchmarks.spark.first [--records 2000000] [--rounds 3] [--threads 2]

Needs the extra ``spark``. The topic of ``spark_read`` lies in object storage as a whole. There are
three ways to it: the Parquet objects as nothing but files, ``icecore.spark.read``, and
``spark.read.format("icecore")``. Each has a session of its own in a process of its own, so that a
first query is one: it loads classes, compiles and starts Python. Its JVM runs already. The ways
take turns: the best of each counts, and the median of its ratios to the Parquet of the same turn.
Processor time is that of Spark's JVM and its Python processes, which a busy machine stretches less.
Rows are thrown away (``noop``). Progress goes to stderr; stdout gets one JSON line.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness.runner import progress
from benchmarks.spark.read import COLUMNS, TIERED, fill, tier
from icecore import spark as icecore_spark
from icecore.dev import LocalCluster
from icecore.spark.columns import SCHEMA

WAYS: Final = ("parquet", "read", "format")
LATER: Final = 4
"""Queries after the first one; the best of them counts."""
_ROOT: Final = Path(__file__).resolve().parents[2]


def rows(
    spark: SparkSession, way: str, bootstrap: str, columns: str, paths: Sequence[str]
) -> DataFrame:
    """The topic by one of the ways."""
    wanted = columns.split(",") if columns else SCHEMA.fieldNames()
    if way == "parquet":
        return spark.read.parquet(*paths).select(*wanted)
    if way == "read":
        return icecore_spark.read(spark, TIERED, bootstrap=bootstrap, columns=wanted)
    reading = spark.read.format("icecore").options(topic=TIERED, bootstrap=bootstrap)
    return reading.option("columns", ",".join(wanted)).load()


def cpu_s() -> float:
    """Processor time of all processes below this one, those that have ended left out."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    below = {os.getpid()}
    for _ in range(5):  # generations
        below |= {number for number, parent in parents.items() if parent in below}
    return sum(ticks[each] for each in below - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def one(way: str, bootstrap: str, columns: str, paths: Sequence[str], threads: int) -> None:
    """Be the process of one way: print seconds and processor time of each query."""
    spark = icecore_spark.session(f"local[{threads}]", conf={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    took_s: list[tuple[float, float]] = []
    for _ in range(1 + LATER):
        used_s, began_s = cpu_s(), time.perf_counter()
        found = rows(spark, way, bootstrap, columns, paths)
        found.write.format("noop").mode("overwrite").save()
        took_s.append((time.perf_counter() - began_s, cpu_s() - used_s))
    print(json.dumps(took_s))
    spark.stop()


def turn(bootstrap: str, columns: str, paths: Sequence[str], threads: int) -> dict[str, Any]:
    """Seconds of each way, one after the other: first, and best after it."""
    found: dict[str, Any] = {}
    for way in WAYS:
        command = [sys.executable, "-m", "benchmarks.spark.first", "--way", way]
        command += ["--bootstrap", bootstrap, "--columns", columns, "--threads", str(threads)]
        done = subprocess.run(
            command, input="\n".join(paths), stdout=subprocess.PIPE, text=True, check=True
        )
        took_s = json.loads(done.stdout.splitlines()[-1])
        found[way] = {}
        for name, each in (
            ("", [wall for wall, _ in took_s]),
            ("cpu_", [cpu for _, cpu in took_s]),
        ):
            first, *later = each
            found[way] |= {f"{name}first_s": round(first, 2), f"{name}then_s": round(min(later), 2)}
        progress(f"{way}: {found[way]}")
    return found


def compared(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The best of each way, and its median ratio to Parquet of the same turn."""
    found: dict[str, Any] = {}
    for way in WAYS:
        found[way] = {name: min(each[way][name] for each in turns) for name in turns[0][way]}
        for name in ("first", "then", "cpu_first", "cpu_then"):
            ratios = [each[way][f"{name}_s"] / each["parquet"][f"{name}_s"] for each in turns]
            found[way][f"{name}_ratio"] = round(median(ratios), 2)
    return found


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of Spark")
    parser.add_argument("--columns", default="", help="all unless given")
    parser.add_argument("--few", action="store_true", help="columns that are often enough")
    parser.add_argument("--way", choices=WAYS, help="one way; paths of objects on stdin")
    parser.add_argument("--bootstrap", default="", help="of the cluster of --way")
    arguments = parser.parse_args()
    threads, columns = arguments.threads, arguments.columns
    if arguments.few:
        columns = COLUMNS["few"]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    if arguments.way:
        one(arguments.way, arguments.bootstrap, columns, sys.stdin.read().split("\n"), threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        bucket = Path(folder) / "bucket"
        bucket.mkdir()
        with LocalCluster(f"{folder}/cluster", nodes=1, tier_url=bucket.as_uri()) as cluster:
            fill(cluster.bootstrap, TIERED, arguments.records, "none", "on")
            paths = [f"{bucket}/{key}" for key in tier(cluster.bootstrap)]
            progress(f"tiered: {len(paths)} files")
            turns = [
                turn(cluster.bootstrap, columns, paths, threads) for _ in range(arguments.rounds)
            ]
    print(json.dumps({"threads": threads, "columns": columns or "all", **compared(turns)}))


if __name__ == "__main__":
    main()
