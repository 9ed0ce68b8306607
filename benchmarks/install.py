"""Measures the cost of a client before it does anything: its environment, its import, its first
help.

    make bench-install    # or: python -m benchmarks.install

One JSON line. Sizes are those of the packages that `pip install icecore` brings, as they lie in
this environment, compiled files included; times are the shortest of some, and say something about a
machine that does nothing else. What they should be: 120 MB, 60 ms, 400 ms.
"""

import argparse
import json
import subprocess
import sys
import time
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.harness.machine import describe

ROOT = Path(__file__).parents[1]
OURS = (
    ROOT / "icecore",
    ROOT / "replication" / "icecore_replication",
    ROOT / "node" / "icecore_node",
    ROOT / "coordinator" / "icecore_coordinator",
)
"""Folders that the wheel holds, servers included."""
RUNS = 7
_IMPORT = """
import time
began = time.perf_counter()
import icecore
print(time.perf_counter() - began)
"""


def client_packages() -> dict[str, Distribution]:
    """By name: what a plain `pip install icecore` brings, without icecore."""
    found: dict[str, Distribution] = {}
    open_names = _needed(distribution("icecore"))
    while open_names:
        name = open_names.pop()
        if name not in found:
            found[name] = distribution(name)
            open_names += _needed(found[name])
    return found


def _needed(package: Distribution) -> list[str]:
    """Without those of extras, and of other Pythons."""
    wanted = map(Requirement, package.requires or ())
    return [
        each.name.lower().replace("_", "-")
        for each in wanted
        if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def sizes_bytes() -> dict[str, int]:
    """By package, ours included, the largest first."""
    found = {name: _size_bytes(package) for name, package in client_packages().items()}
    tag = f"{sys.implementation.cache_tag}.pyc"
    ours = [path for folder in OURS for path in folder.rglob("*") if path.is_file()]
    found["icecore"] = sum(
        path.stat().st_size for path in ours if path.suffix != ".pyc" or path.name.endswith(tag)
    )
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _size_bytes(package: Distribution) -> int:
    paths = {Path(str(package.locate_file(each))) for each in package.files or ()}
    return sum(path.stat().st_size for path in paths if path.is_file())


def import_ms() -> float:
    """Return the shortest time of ``import icecore`` in milliseconds, without the interpreter's own
    start."""
    times = []
    for _ in range(RUNS):
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT], cwd=ROOT, check=True, capture_output=True, text=True
        )
        times.append(float(done.stdout))
    return round(min(times) * 1000, 1)


def help_ms() -> float:
    """From the shell's point of view."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        command = [sys.executable, "-m", "icecore.cli", "--help"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return round(min(times) * 1000, 1)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    sizes = {name: round(size / 1e6, 1) for name, size in sizes_bytes().items()}
    line = {
        "benchmark": "install",
        "client_mb": round(sum(sizes.values()), 1),
        "import_ms": import_ms(),
        "help_ms": help_ms(),
        "packages_mb": {name: size for name, size in sizes.items() if size},
        **describe(ROOT),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
