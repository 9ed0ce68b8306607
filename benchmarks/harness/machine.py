"""The facts that a figure needs beside it to mean anything later: machine, versions, revision. Also
the costs of running processes. Linux only: it reads /proc."""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("grpcio", "protobuf", "numpy", "pyarrow", "rocksdict", "google-crc32c", "awscrt")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def describe(folder: Path) -> dict[str, Any]:
    """Machine, file system of ``folder``, versions and git revision."""
    return {
        "name": name(folder),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "packages": dict(_versions()),
        "revision": _revision(),
    }


def name(folder: Path) -> str:
    """A machine as far as figures depend on it: processor, cores, disk and file system."""
    keys = ("model name", "cpu family", "model")
    model, family, number = (_first("/proc/cpuinfo", key) for key in keys)
    cpu = f"{model} (family {family}, model {number})"
    return f"{cpu}, {os.cpu_count()} cores, {_disk(folder)}, {_file_system(folder)}"


def _disk(folder: Path) -> str:
    """The kind of disk that holds the folder, as its driver calls it."""
    device = os.stat(folder if folder.exists() else folder.parent).st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for block in (place, place.parent):  # a partition lies in its disk
        if (driver := block / "device" / "driver").exists():
            return f"disk of {driver.resolve().name}"
    return "disk of an unknown kind"


def _first(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "absent"


def _file_system(folder: Path) -> str:
    """Type of the mount that holds the folder: the longest mount point above it."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, each, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, each
    return kind


def _revision() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


@dataclass(frozen=True, slots=True)
class Cost:
    """The resources that a process has used so far."""

    cpu_s: float
    peak_rss_bytes: int


def cost_of(pid: int) -> Cost:
    """CPU seconds and peak resident memory of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])  # utime and stime
    peak_kib = int(_first(f"/proc/{pid}/status", "VmHWM").split()[0])
    return Cost(ticks / _TICKS_PER_S, peak_kib << 10)


def rss_bytes(pid: int) -> int:
    """Resident memory of a running process."""
    return int(_first(f"/proc/{pid}/status", "VmRSS").split()[0]) << 10


def reset_peaks(pids: Mapping[str, int]) -> None:
    """Let the peak memory of running processes count from now on."""
    for pid in pids.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")
