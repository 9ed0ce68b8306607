"""One process of a cluster on this machine: how it is started, watched, paused and read."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

_READY = re.compile(r"^icecore-(?:coordinator|node) ready .*?address=(\S+)", re.MULTILINE)
_LOG_TAIL_LINES = 15


class ClusterProcess(Protocol):
    """The part of :class:`subprocess.Popen` that a cluster needs of its processes."""

    @property
    def pid(self) -> int:
        """Process id, also after the end."""

    @property
    def returncode(self) -> int | None:
        """Exit status, ``-signal`` when killed, None while :meth:`poll` has not seen the end."""

    def poll(self) -> int | None:
        """Look whether it has ended, and return its status."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the status; raises :class:`subprocess.TimeoutExpired`."""

    def kill(self) -> None:
        """SIGKILL."""


def start_process(
    command: Sequence[str], log: IO[bytes], folder: Path, environment: Mapping[str, str]
) -> ClusterProcess:
    """Start a server in a session of its own, with both outputs in ``log``.

    Ctrl-C reaches this process only, which then ends the others in the right order. The working
    directory is the cluster's folder: the caller's may go away or hold anything.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=folder,
        env=environment,
    )


@dataclass(slots=True)
class Member:
    """One process of the cluster."""

    name: str
    arguments: list[str]
    """The interpreter's included."""
    listen: str
    """Address to listen on; after the first start, the address that it really got."""
    log_path: Path
    process: ClusterProcess | None = None
    log_start: int = 0
    expected_to_run: bool = False
    metrics_listen: str = ""
    extra: list[str] = field(default_factory=list)
    """More arguments; they win over all others."""
    prefix: list[str] = field(default_factory=list)
    """In front of the interpreter: a command that ends in exec, such as ``nsenter``. The port of a
    process with one is not reserved, so that of the coordinator has to be given."""

    @property
    def is_running(self) -> bool:
        """Return whether the process exists (paused ones do)."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the newest process; 0 before the first start."""
        return self.process.pid if self.process else 0

    @property
    def end(self) -> str:
        """Return how the newest process ended, in words; empty while it runs."""
        status = self.process.poll() if self.process else None
        if status is None:
            return ""
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def pause(self) -> None:
        """SIGSTOP: alive, silent, and with its connections open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """The last lines this process has printed since it was started."""
        return "\n".join(self._log().splitlines()[-lines:])

    def _log(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    def ready_address(self) -> str:
        """The address of the ready line; empty while there is none."""
        match = _READY.search(self._log())
        return match[1] if match else ""
