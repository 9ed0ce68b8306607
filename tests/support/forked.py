"""Servers of test clusters as forks of a process that has imported them.

An interpreter that imports a server takes 0.4 s of a processor, and a run of all tests starts
hundreds of them. A fork of a process that has already imported it, and done nothing else, is as
much a process: it has its own pid, session, memory, descriptors and end, and takes 0.15 s.
Commands that are not simply a server of ours, such as one below ``nsenter``, are executed as ever.
So are all where the run measures coverage, those that a test gives a PYTHONPATH, and those of
``test_clean_stop``, whose interpreters have to come to their ends. What ``icecore dev`` starts is
no test's own, so it is executed, too.
"""

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import IO

import pytest

from icecore.process import launch, members

_PROGRAMS = {
    tuple(launch.command(module)): f"{module}.__main__"
    for module in ("icecore_node", "icecore_coordinator")
}

_EXECUTED = members.start_process


class ForkedProcess:
    """A :class:`icecore.process.members.ClusterProcess` that ``multiprocessing`` has forked."""

    def __init__(self, process: ForkServerProcess, command: Sequence[str]) -> None:
        assert process.pid is not None
        self._process = process
        self._command = command
        self.pid = process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Look whether it has ended."""
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(list(self._command), timeout or 0)
        return status

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


@contextmanager
def servers_are_forked() -> Iterator[None]:
    """Fork the servers of every :class:`icecore.dev.LocalCluster` that starts meanwhile."""
    if "COVERAGE_PROCESS_START" in os.environ:
        yield
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])

    def start(
        command: Sequence[str], log: IO[bytes], folder: Path, environment: Mapping[str, str]
    ) -> members.ClusterProcess:
        size = len(launch.command("any"))
        module = _PROGRAMS.get(tuple(command[:size]))
        if module is None or "PYTHONPATH" in environment:  # a test puts modules of its own first
            return _EXECUTED(command, log, folder, environment)
        return _fork(context, module, command, Path(log.name), folder, environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "start_process", start)
        yield


@contextmanager
def servers_are_executed() -> Iterator[None]:
    """Undo :func:`servers_are_forked` for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "start_process", _EXECUTED)
        yield


def _fork(
    context: ForkServerContext,
    module: str,
    command: Sequence[str],
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> ForkedProcess:
    arguments = list(command[len(launch.command(module)) - 1 :])
    process = context.Process(
        target=_serve, args=(module, arguments, log, folder, dict(environment)), daemon=True
    )
    process.start()
    return ForkedProcess(process, command)


def _serve(
    module: str, arguments: list[str], log: Path, folder: Path, environment: dict[str, str]
) -> None:
    """Run the server in the fork: make what ``exec`` would have made of it, and call its entry."""
    os.setsid()
    os.chdir(folder)
    with log.open("ab") as output, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.exit(importlib.import_module(module).main())
