"""Measures each process's peak memory under full load, with a stuck consumer and a stopped
follower.

    python -m benchmarks.memory [--minutes 10]

Three nodes, RF 3, 16 partitions of 1 KiB records, sent as fast as they are acknowledged. Beside
that: a consumer whose application takes nothing any more, another one that is stopped as a process
(SIGSTOP) with answers under way, and a third of the time later a node that is stopped, too: it
follows two thirds of the partitions, and those it led move. It comes back for the last third, and
has everything to copy that it missed. Topics are replaced as they grow, so that the disk lasts.

Each process has a bound (``BOUNDS_MIB``): what its settings let it hold, times the copies that are
alive at a time, and what interpreter and libraries take. Progress goes to stderr; stdout gets one
JSON line with bound, peak and the medians of the first and the last quarter by process. Exits with
1 when a bound does not hold.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.lifetime import exit_with
from benchmarks.harness.machine import describe
from benchmarks.harness.runner import progress
from icecore.blocking import Admin
from icecore.dev import LocalCluster

PARTITIONS = 16
WATCHED = "watched"
BOUNDS_MIB = {"node": 640, "coordinator": 160, "producer": 340, "stuck": 210, "frozen": 210}
"""Node: 64 produce requests + 64 tail cache + 2 x 16 sent to followers + 2 x 16 received + 4 x 8
fetch answers, each of them twice (gRPC's copy beside ours), 64 RocksDB, 80 of its own.
Producer: 64 buffered, as Arrow, as batches and as requests, 2 x 8 of chunks, 130. Consumers: 16
fetched, 2 x 4 per node under way, each twice, 130."""
SAMPLE_S = 1.0


@contextlib.contextmanager
def _client(act: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A client process that has begun; killed at the end, for it may be stopped.

    Raises:
        RuntimeError: It ended.
    """
    command = [sys.executable, "-m", "benchmarks.memory_client", act, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"{act} has ended with status {process.wait()}")
            yield process
        finally:
            process.kill()


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Samples:
    """Resident memory of named processes over time."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._mib: dict[str, list[float]] = {name: [] for name in pids}

    def watch(self, seconds: float, producer: "subprocess.Popen[str]") -> None:
        """Sample for so long.

        Raises:
            RuntimeError: The load has ended.
        """
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            if producer.poll() is not None:
                raise RuntimeError(f"the producer has ended with status {producer.returncode}")
            for name, pid in self._pids.items():
                self._mib[name].append(_resident_mib(pid))
            time.sleep(SAMPLE_S)
        progress(" ".join(f"{name}={mib[-1]:.0f}" for name, mib in self._mib.items()) + " MiB")

    def result(self) -> dict[str, dict[str, Any]]:
        """By process: bound, peak, and whether it grew."""
        return {name: figures_of(name, mib) for name, mib in self._mib.items()}


def figures_of(name: str, mib: list[float]) -> dict[str, Any]:
    """Return the figures of one process, from its samples. Its name up to a dash selects the
    bound."""
    bound, quarter = BOUNDS_MIB[name.partition("-")[0]], max(1, len(mib) // 4)
    return {
        "bound_mib": bound,
        "peak_mib": round(max(mib)),
        "first_quarter_mib": round(statistics.median(mib[:quarter])),
        "last_quarter_mib": round(statistics.median(mib[-quarter:])),
        "holds": max(mib) <= bound,
    }


def measure(folder: Path, seconds: float) -> dict[str, dict[str, Any]]:
    """Load for so long; figures by process."""
    with LocalCluster(folder, 3) as cluster, contextlib.ExitStack() as stack:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(WATCHED, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap
        producer = stack.enter_context(_client("produce", bootstrap, WATCHED, str(PARTITIONS)))
        stuck, frozen = (
            stack.enter_context(_client("consume", bootstrap, WATCHED)) for _ in range(2)
        )
        frozen.send_signal(signal.SIGSTOP)
        clients = {"producer": producer.pid, "stuck": stuck.pid, "frozen": frozen.pid}
        samples = Samples({**cluster.pids, **clients})
        progress("load with a stuck and a stopped consumer")
        samples.watch(seconds / 3, producer)
        progress("and a stopped node")
        cluster.node(3).pause()
        samples.watch(seconds / 3, producer)
        cluster.node(3).resume()
        progress("and the node is back")
        samples.watch(seconds / 3, producer)
        return samples.result()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error("--minutes must be positive")
    with tempfile.TemporaryDirectory(prefix="icecore-memory-", dir=options.folder) as folder:
        found = measure(Path(folder), 60 * options.minutes)
    about = {"minutes": options.minutes, "machine": describe(options.folder)}
    print(json.dumps({"benchmark": "memory", "processes": found, **about}))
    return int(not all(each["holds"] for each in found.values()))


if __name__ == "__main__":
    exit_with(main)
