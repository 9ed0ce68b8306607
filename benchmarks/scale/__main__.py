"""Measure how cost grows with numbers: partitions, sealed segments, records of metadata.

    python -m benchmarks.scale partitions 1000 [--steps create idle failover restart delete]
    python -m benchmarks.scale segments 10000
    python -m benchmarks.scale metadata 100000 [--metadata etcd] [--among 10000]

``partitions`` starts real processes; ``segments`` makes sealed replicas of one partition in one
node's store and starts it on them; ``metadata`` starts a coordinator over so many sealed segments
that nobody produced, and with etcd another one that takes over. Several numbers are measured one
after the other, so that their ratios show how a cost grows. Consumers that wait are measured by
``benchmarks.idle``. Progress goes to stderr; stdout gets one JSON line for each number.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.lifetime import exit_with
from benchmarks.harness.machine import describe
from benchmarks.scale import cluster, etcd, metadata, store
from icecore.process.system import tune_process

STEPS = ("create", "idle", "failover", "restart", "delete")


def _partitions(folder: Path, number: int, options: argparse.Namespace) -> dict[str, Any]:
    return cluster.measure(folder, number, options.steps, options.within)


def _metadata(folder: Path, number: int, options: argparse.Namespace) -> dict[str, Any]:
    module = etcd if options.metadata == "etcd" else metadata
    found: dict[str, Any] = module.measure(folder, number, options.among)
    return {"store": options.metadata, **found}


MEASURES: dict[str, Callable[[Path, int, argparse.Namespace], dict[str, Any]]] = {
    "partitions": _partitions,
    "segments": lambda folder, number, _: store.measure(folder, number),
    "metadata": _metadata,
}


def main() -> int:
    """Entry point."""
    tune_process()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=sorted(MEASURES))
    parser.add_argument("numbers", type=int, nargs="+")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--within", type=float, default=60.0, help="seconds; longer is never")
    parser.add_argument("--metadata", choices=("sqlite", "etcd"), default="sqlite")
    parser.add_argument("--among", type=int, default=metadata.PARTITIONS, help="partitions")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    for number in options.numbers:
        if number < 1:
            parser.error("a number of things is at least 1")
        with tempfile.TemporaryDirectory(prefix="icecore-scale-", dir=options.folder) as folder:
            found = MEASURES[options.what](Path(folder), number, options)
        line = {"benchmark": f"scale_{options.what}", **found}
        print(json.dumps({**line, "machine": describe(options.folder)}), flush=True)
    return 0


if __name__ == "__main__":
    exit_with(main)
