"""Measures the disk and transport of this machine: every result is compared with these limits.

RF writers append the same user bytes in parallel, each to files of its own, buffered, one fdatasync
per MiB: what RF nodes on this machine must do at least. Files are *fresh* (space reserved, never
written) or *recycled* (overwritten in place: no page is touched for the first time, no metadata
changes). The figure is user bytes per second, the median of five runs after a discarded one. Beside
it: how long one fsync of 1 KiB takes, and what a bare gRPC hop does (``benchmarks/hop.py``).

    python -m benchmarks.harness.limit [--rf 3] [--files 16] [--mib 128] [--folder DIR]
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import hop
from benchmarks.harness.machine import describe
from benchmarks.harness.warm_memory import warm_memory

MIB = 1 << 20
RUNS = 5


def measure(
    folder: Path, replication_factor: int, files: int, mib: int, runs: int = RUNS
) -> dict[str, float]:
    """Fresh and recycled limits in user MB/s (10^6 bytes) for one replication factor.

    Args:
        folder: On the disk to measure; what is written there is removed again.
        replication_factor: How many writers.
        files: Per writer, written in turn.
        mib: User data of one run; each writer writes all of it.
        runs: Whose median counts, after a discarded one.
    """
    with warm_memory(2 * replication_factor * mib * MIB):
        return _measured(folder, replication_factor, files, mib, runs)


def _measured(
    folder: Path, replication_factor: int, files: int, mib: int, runs: int
) -> dict[str, float]:
    per_file = -(-mib // files)
    fresh = [_run(folder, replication_factor, files, per_file, None) for _ in range(runs + 1)]
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        again = [
            _run(folder, replication_factor, files, per_file, Path(kept)) for _ in range(runs + 1)
        ]
    return {
        "fresh_mb_s": round(statistics.median(fresh[1:]), 1),
        "recycled_mb_s": round(statistics.median(again[1:]), 1),
    }


def sync_ms(folder: Path, length_bytes: int = 1024, times: int = 200) -> float:
    """Median of appending so much to a reserved file and having the disk hold it."""
    block, taken = os.urandom(length_bytes), []
    with tempfile.TemporaryDirectory(dir=folder) as own:
        descriptor = _open(Path(own) / "file", length_bytes * times)
        for number in range(times):
            began = time.perf_counter()
            os.pwrite(descriptor, block, number * length_bytes)
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - began)
        os.close(descriptor)
    return round(1000 * statistics.median(taken), 3)


def _run(folder: Path, writers: int, files: int, per_file_mib: int, recycled: Path | None) -> float:
    """User MB/s of one run."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        home = recycled or Path(own)
        opened = [
            [_open(home / f"{writer}-{number}", per_file_mib * MIB) for number in range(files)]
            for writer in range(writers)
        ]
        os.sync()
        start_line = threading.Barrier(writers + 1)
        threads = [
            threading.Thread(target=_write, args=(start_line, each, per_file_mib))
            for each in opened
        ]
        for thread in threads:
            thread.start()
        start_line.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        elapsed_s = time.perf_counter() - began
        for descriptors in opened:
            for descriptor in descriptors:
                os.close(descriptor)
    return files * per_file_mib * MIB / elapsed_s / 1e6


def _open(path: Path, length: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    if not os.fstat(descriptor).st_size:
        os.posix_fallocate(descriptor, 0, length)
    return descriptor


def _write(start_line: threading.Barrier, descriptors: list[int], per_file_mib: int) -> None:
    # pwrite and fdatasync release the interpreter lock, so threads are as good as processes here.
    block = os.urandom(MIB)
    write: Callable[[int, bytes, int], int] = os.pwrite
    start_line.wait()
    for step in range(per_file_mib):
        for descriptor in descriptors:
            if write(descriptor, block, step * MIB) != MIB:
                raise OSError("short write")
            os.fdatasync(descriptor)


def main() -> None:
    """Print one JSON line per replication factor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rf", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    about = describe(arguments.folder)
    others = {"sync_ms": sync_ms(arguments.folder), **hop.measure()}
    for replication_factor in arguments.rf:
        figures = measure(arguments.folder, replication_factor, arguments.files, arguments.mib)
        settings = {"rf": replication_factor, "files": arguments.files, "mib": arguments.mib}
        print(json.dumps({"benchmark": "limit", **settings, **figures, **others, "machine": about}))


if __name__ == "__main__":
    main()
