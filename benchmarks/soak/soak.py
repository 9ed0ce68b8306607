"""Keeps a cluster busy for long, and fails when memory, threads or descriptors of a process grow.

    python -m benchmarks.soak [--minutes 60] [--records-per-s 800] [--spark]

Three nodes with tiering and retention, and the clients of ``soak/load.py``; with
``--spark`` Spark reads beside them (``soak/spark.py``). After a
quarter of the time everything that is kept for a while has been kept and let go of, so from then on
each process must stay as it is. Each ten seconds a line of figures goes to stderr, and to a file as
JSON. The table at the end has each process at a quarter of the time and at the end: resident
memory, threads, descriptors, and what is on its disk. Each of the two is the median of some
samples around that moment. Exits with 1 when a process has grown by more than ``GROWTH_MAX``, or
when a client met an error. A run of less than half an hour may fail without a leak: the caches
of nodes take some six minutes to fill, which is more than a quarter of it.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import describe
from benchmarks.harness.runner import progress
from benchmarks.soak.load import KEEP_S_MAX, TOPIC, Counts, Load, create_topics
from icecore import extras
from icecore.dev import LocalCluster

EVERY_S = 10.0
GROWTH_MAX = 0.10
"""Share by which resident memory may be larger at the end than at a quarter of the time."""
THREADS_MAX, DESCRIPTORS_MAX = 32, 32
"""So many more may there be at the end: what runs or is open just then differs. The node that
writes tables has up to 25 threads for a moment, one for each commit behind a checkpoint."""
CLIENTS = "clients"
SPARK_ENDS_WITHIN_S = 120.0
_MIB = 1 << 20


@dataclass(slots=True)
class SparkRun:
    """Counts of Spark's reads, as its process told them at its end."""

    counts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one process at one moment."""

    resident_mib: float
    threads: int
    descriptors: int
    disk_mib: float


def sample_of(pid: int, folder: Path | None) -> Sample:
    """Return the figures of a process whose files are in a folder."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return Sample(
        resident_mib=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        disk_mib=_used_bytes(folder) / _MIB if folder is not None else 0.0,
    )


def _used_bytes(folder: Path) -> int:
    """Return the bytes that all files in a folder take; files may go meanwhile."""
    used = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                used += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return used


@dataclass(frozen=True, slots=True)
class Course:
    """A process over the whole time, in two moments."""

    quarter: Sample
    end: Sample

    def complaints(self) -> list[str]:
        """Return what has grown."""
        found, before, after = [], self.quarter, self.end
        if after.resident_mib > before.resident_mib * (1 + GROWTH_MAX):
            found.append(
                f"resident memory {before.resident_mib:.0f} -> {after.resident_mib:.0f} MiB"
            )
        if after.threads > before.threads + THREADS_MAX:
            found.append(f"threads {before.threads} -> {after.threads}")
        if after.descriptors > before.descriptors + DESCRIPTORS_MAX:
            found.append(f"descriptors {before.descriptors} -> {after.descriptors}")
        return found


def course_of(samples: Sequence[Sample]) -> Course:
    """Return the medians around a quarter of the time, and of the last tenth."""
    tenth = max(1, len(samples) // 10)
    quarter = len(samples) // 4
    around = samples[max(0, quarter - tenth // 2) : quarter + (tenth + 1) // 2]
    return Course(_median(around or samples[:1]), _median(samples[-tenth:]))


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(
        statistics.median(each.resident_mib for each in samples),
        round(statistics.median(each.threads for each in samples)),
        round(statistics.median(each.descriptors for each in samples)),
        statistics.median(each.disk_mib for each in samples),
    )


def table_of(courses: Mapping[str, Course]) -> str:
    """Return the table for people."""
    head = (
        f"{'process':12} {'resident MiB':>16} {'threads':>12} {'descriptors':>12} {'disk MiB':>12}"
    )
    lines = [head]
    for name, course in courses.items():
        a, b = course.quarter, course.end
        cells = [
            f"{a.resident_mib:.0f} -> {b.resident_mib:.0f}",
            f"{a.threads} -> {b.threads}",
            f"{a.descriptors} -> {b.descriptors}",
            f"{a.disk_mib:.0f} -> {b.disk_mib:.0f}",
        ]
        widths = (16, 12, 12, 12)
        row = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{name:12} {row}")
    return "\n".join(lines)


@contextlib.contextmanager
def spark_beside(bootstrap: str) -> Iterator[SparkRun]:
    """Let Spark read in a process of its own; what it did is known at the end."""
    command = [sys.executable, "-m", "benchmarks.soak.spark", bootstrap, TOPIC]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    run = SparkRun()
    try:
        yield run
        said, _ = process.communicate("", timeout=SPARK_ENDS_WITHIN_S)
        run.counts = json.loads(said.splitlines()[-1]) if said else {}
    finally:
        process.kill()
        process.wait()


def verdict(courses: Mapping[str, Course], counts: Counts) -> list[str]:
    """Return all that is wrong; the clients' process is shown, and not judged."""
    found = [
        f"{name}: {complaint}"
        for name, course in courses.items()
        if name != CLIENTS
        for complaint in course.complaints()
    ]
    if counts.errors:
        found.append(f"{counts.errors} errors of clients, the first: {counts.first_errors}")
    if not (counts.read and counts.read_from_oldest and counts.looks):
        found.append(f"a client did nothing: {counts}")
    return found


def spark_verdict(counts: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with Spark's reads. Retention overtakes some: the more, the shorter it
    is, and the busier the machine."""
    if counts.get("reads") and counts["rows"] and not counts["ended"]:
        return []
    return [f"Spark: {counts or 'it said nothing'}"]


def watch(cluster: LocalCluster, load: Load, seconds: float, out: Path) -> dict[str, Course]:
    """Sample all processes for so long, into a file as well."""
    samples: dict[str, list[Sample]] = {}
    began_s = time.monotonic()
    with out.open("w") as lines:
        while (past_s := time.monotonic() - began_s) < seconds:
            pids = {**cluster.pids, CLIENTS: os.getpid()}
            folders = {name: cluster.folder / name for name in cluster.pids}
            now = {name: sample_of(pid, folders.get(name)) for name, pid in pids.items()}
            for name, sample in now.items():
                samples.setdefault(name, []).append(sample)
            row = {"s": round(past_s), "counts": asdict(load.counts)}
            row["processes"] = {name: asdict(sample) for name, sample in now.items()}
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            figures = [
                f"{name} {each.resident_mib:.0f} MiB, {each.threads} threads,"
                f" {each.descriptors} fds"
                for name, each in now.items()
            ]
            progress(f"{past_s:.0f} s, {load.counts.sent} sent: " + "; ".join(figures))
            time.sleep(max(0.0, min(EVERY_S, seconds - past_s)))
    if ended := cluster.dead():
        raise RuntimeError(", ".join(f"{each.name} {each.end}" for each in ended))
    return {name: course_of(each) for name, each in samples.items()}


def soak(folder: Path, seconds: float, records_per_s: int, out: Path, *, with_spark: bool) -> int:
    """Do all of it; the status to exit with."""
    tier = folder / "objects"
    tier.mkdir(parents=True)
    with LocalCluster(folder / "cluster", 3, tier_url=tier.as_uri()) as cluster:
        create_topics(cluster.bootstrap, min(KEEP_S_MAX, seconds / 6))
        load = Load(cluster.bootstrap, records_per_s)
        load.start()
        spark = (
            spark_beside(cluster.bootstrap) if with_spark else contextlib.nullcontext(SparkRun())
        )
        try:
            with spark as run:
                courses = watch(cluster, load, seconds, out)
        finally:
            load.stop()
    print(table_of(courses))
    done = {"counts": asdict(load.counts), "spark": run.counts, "machine": describe(folder)}
    print(json.dumps(done))
    complaints = verdict(courses, load.counts)
    if with_spark:
        complaints += spark_verdict(run.counts)
    for each in complaints:
        print(f"GROWN OR WRONG: {each}")
    return int(bool(complaints))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--records-per-s", type=int, default=800)
    parser.add_argument("--spark", action="store_true", help="Spark reads beside the others")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, default=Path("build/soak.jsonl"))
    options = parser.parse_args()
    if options.minutes <= 0 or options.records_per_s <= 0:
        parser.error("--minutes and --records-per-s must be positive")
    if options.spark:
        extras.check("spark")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="icecore-soak-", dir=options.folder) as folder:
        seconds = 60 * options.minutes
        rate, out = options.records_per_s, options.out
        return soak(Path(folder), seconds, rate, out, with_spark=options.spark)
