"""MinIO, an S3 server for tests and benchmarks, started on loopback and stopped by whoever uses it.

The program is looked for in the cache that ``make setup-minio`` builds it into, which all checkouts
share, in PATH, and where Go installs programs. Tests that need it are left out without it.
"""

import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.s3 import BUCKET, PASSWORD, REGION, USER, S3Server

_READY_S = 20.0


def minio_program() -> str | None:
    """Return the path of the MinIO program; None = it is not installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icecore"
    of_go = Path(os.environ.get("GOBIN") or Path.home() / "go" / "bin")
    places = os.pathsep.join((str(cache), os.environ.get("PATH", ""), str(of_go)))
    return shutil.which("minio", path=places)


@contextlib.contextmanager
def running_minio(folder: Path, log: Path | None = None) -> Iterator[S3Server]:
    """A server with one bucket, whose region it insists on.

    Args:
        folder: Where it keeps its buckets.
        log: For what it complains of; where ours goes without.
    """
    program = minio_program()
    assert program is not None
    (folder / BUCKET).mkdir(parents=True)
    first, second = free_ports(2)
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": USER,
        "MINIO_ROOT_PASSWORD": PASSWORD,
        "MINIO_SITE_REGION": REGION,
        "MINIO_CI_CD": "1",
    }
    address = f"127.0.0.1:{first}"
    command = [program, "server", "--quiet", "--address", address]
    command += ["--console-address", f"127.0.0.1:{second}", str(folder)]
    with contextlib.ExitStack() as stack:
        errors = None if log is None else stack.enter_context(log.open("wb"))
        silent = subprocess.DEVNULL
        started = subprocess.Popen(command, env=environment, stdout=silent, stderr=errors)
        process = stack.enter_context(started)
        try:
            _wait(f"http://{address}/minio/health/ready")
            _wait(f"http://127.0.0.1:{second}")  # pages come up by themselves
            yield S3Server("minio", f"http://{address}", f"http://127.0.0.1:{second}")
        finally:
            process.terminate()


def _wait(url: str) -> None:
    until = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
