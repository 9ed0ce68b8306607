"""A real S3 server for tests: MinIO, started on loopback and stopped by whoever uses it.

The program is looked for in PATH and where Go installs it; without it these tests are skipped.
``make setup-minio`` builds it in five minutes.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUCKET = "icecore-tests"
REGION = "eu-central-1"
USER, PASSWORD = "icecore-tests", "not-a-secret"
_READY_S = 20.0


@dataclass(frozen=True)
class Minio:
    """A server that runs."""

    endpoint: str
    console: str
    """Of its web pages, which do not take S3 requests."""
    folder: Path
    """A bucket is a folder in it."""


def minio_program() -> str | None:
    """Where it is, if it is."""
    beside = Path(os.environ.get("GOBIN") or Path.home() / "go" / "bin") / "minio"
    return shutil.which("minio") or (str(beside) if beside.exists() else None)


@contextlib.contextmanager
def running_minio(folder: Path, log: Path | None = None) -> Iterator[Minio]:
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
            yield Minio(f"http://{address}", f"http://127.0.0.1:{second}", folder)
        finally:
            process.terminate()


def free_ports(count: int) -> list[int]:
    """Of loopback, which nobody has at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


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
