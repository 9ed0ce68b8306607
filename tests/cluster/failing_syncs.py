"""Runs a program in which each sync below one folder fails as soon as a file ``fail`` lies there.

``python failing_syncs.py FOLDER PROGRAM ARGUMENTS…``: a disk that breaks while a node uses it.
"""

import errno
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path


def failing(real: Callable[[int], None], folder: Path) -> Callable[[int], None]:
    """A sync that fails there."""
    fail = folder / "fail"

    def sync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if (path == folder or folder in path.parents) and fail.exists():
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    return sync


if __name__ == "__main__":
    broken = Path(sys.argv[1])
    os.fdatasync = failing(os.fdatasync, broken)  # type: ignore[assignment]
    os.fsync = failing(os.fsync, broken)  # type: ignore[assignment]
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
