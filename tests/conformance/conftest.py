"""A disk that can be filled: a small tmpfs, where this user may mount one."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SMALL_DISK_BYTES = 48 << 20
"""RocksDB alone preallocates 17 MiB of it."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "none", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, timeout=10)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)
