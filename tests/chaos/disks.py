"""Disks that are small enough to fill: a tmpfs below a node's data folder, which needs root."""

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

DISK_BYTES = int(os.environ.get("DISK_MIB", "96")) << 20


class SmallDisks:
    """A small file system under the data folder of some nodes; use as a context manager."""

    def __init__(self, folder: Path, node_ids: Sequence[int]) -> None:
        self._mounts = [folder / f"node-{node_id}" for node_id in node_ids]

    def __enter__(self) -> None:
        for mount in self._mounts:
            mount.mkdir(parents=True)
            options = f"size={DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", mount], check=True)

    def __exit__(self, *_: object) -> None:
        for mount in self._mounts:
            subprocess.run(["umount", "-l", mount], check=False)


def fill(folder: Path, leave_bytes: int) -> Path:
    """Take a disk's space away, or what it got back since; delete the file to give it back."""
    ballast = folder / "ballast"
    while True:
        with ballast.open("ab") as file:
            disk = os.statvfs(folder)
            length = disk.f_bavail * disk.f_frsize - leave_bytes
            try:
                if length > 0:
                    os.posix_fallocate(file.fileno(), file.tell(), length)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            else:
                return ballast
        # Somebody else has taken some of it since we looked.
