"""Measures the cost of consumers for a node while there is nothing to consume.

    python -m benchmarks.idle [--consumers 500] [--processes 2] [--partitions 16]

Three nodes, RF 3, and consumers at the end of a topic into which nobody produces. Their polls
become longer while nothing comes, so what counts begins only after ``--settle`` seconds. The same
nodes without consumers are measured first, for heartbeats and upkeep cost something, too. Progress
goes to stderr; stdout gets one JSON line: CPU of each process in milliseconds per second, and of
the busiest node in microseconds per second and consumer, the idle cost taken off.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.lifetime import exit_with
from benchmarks.harness.machine import cost_of, describe
from benchmarks.harness.runner import progress
from icecore.blocking import Admin
from icecore.dev import LocalCluster

TOPIC = "idle"
STEP_S = 1.0


@contextlib.contextmanager
def _clients(bootstrap: str, counts: list[int]) -> Iterator[dict[str, int]]:
    """Pids of client processes whose consumers wait; killed at the end.

    Raises:
        RuntimeError: One ended.
    """
    with contextlib.ExitStack() as stack:
        processes = []
        for count in counts:
            command = [sys.executable, "-m", "benchmarks.idle_client", bootstrap, TOPIC, str(count)]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"a client has ended with status {process.wait()}")
        yield {f"client-{number}": each.pid for number, each in enumerate(processes, 1)}


def cpu_ms_per_s(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """By process, over so many seconds."""
    before = {name: cost_of(pid).cpu_s for name, pid in pids.items()}
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        time.sleep(STEP_S)
    took_s = time.monotonic() - began_s
    return {
        name: round(1000 * (cost_of(pid).cpu_s - before[name]) / took_s, 2)
        for name, pid in pids.items()
    }


def us_per_consumer(
    idle: Mapping[str, float], loaded: Mapping[str, float], consumers: int
) -> float:
    """CPU of the node that has most to do with them, per second and consumer."""
    more_ms = max(loaded[name] - idle[name] for name in idle if name.startswith("node"))
    return round(1000 * more_ms / consumers, 2)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """CPU without consumers, and with them."""
    counts = [
        options.consumers * (number + 1) // options.processes
        - options.consumers * number // options.processes
        for number in range(options.processes)
    ]
    with LocalCluster(folder, 3) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=options.partitions, replication_factor=3)
        time.sleep(STEP_S)
        progress("nodes without consumers")
        idle = cpu_ms_per_s(cluster.pids, options.seconds)
        with _clients(cluster.bootstrap, counts) as clients:
            progress(f"{options.consumers} consumers wait; {options.settle:g} s to settle")
            time.sleep(options.settle)
            loaded = cpu_ms_per_s({**cluster.pids, **clients}, options.seconds)
    return {
        "cpu_ms_per_s": loaded,
        "cpu_ms_per_s_without": idle,
        "node_cpu_us_per_s_and_consumer": us_per_consumer(idle, loaded, options.consumers),
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--consumers", type=int, default=500)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--settle", type=float, default=35.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    if not 0 < options.processes <= options.consumers:
        parser.error("there must be a consumer for each process")
    with tempfile.TemporaryDirectory(prefix="icecore-idle-", dir=options.folder) as folder:
        found = measure(Path(folder), options)
    about = {
        "consumers": options.consumers,
        "partitions": options.partitions,
        "machine": describe(options.folder),
    }
    print(json.dumps({"benchmark": "idle", **found, **about}))
    return 0


if __name__ == "__main__":
    exit_with(main)
