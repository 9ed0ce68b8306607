"""The servers of another system: known by pid only, their output in files, ended together."""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
STOP_S = 20.0
LOG_TAIL = 2_000


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, for servers that can't take any and tell which."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


class Processes:
    """Started one by one, stopped at once.

    Args:
        folder: Where each writes what it prints; exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> dict[str, int]:
        """By name."""
        return {name: each.pid for name, each in self._running.items()}

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start one; Ctrl-C is not for it."""
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def complaint(self) -> str:
        """The end of what one of them wrote, of one that has ended if there is any."""
        ended = [name for name, each in self._running.items() if each.poll() is not None]
        return self._log((ended or list(self._running))[0]).read_text()[-LOG_TAIL:]

    def have_ended(self) -> bool:
        """Return whether any has ended by itself."""
        return any(each.poll() is not None for each in self._running.values())

    def hold(self) -> None:
        """Take the processors away from all of them."""
        for each in self._running.values():
            each.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Give the processors back."""
        for each in self._running.values():
            each.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask all to end, and kill those that don't."""
        for each in self._running.values():
            each.send_signal(signal.SIGTERM)
        self.go_on()  # who is held hears nothing
        end_s = time.monotonic() + STOP_S
        for each in self._running.values():
            try:
                each.wait(max(0.1, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        self._running = {}

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"
