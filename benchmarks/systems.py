"""The systems of one measurement: started when first needed, stopped when another shape is, or at
the end, by Ctrl-C too."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self

from benchmarks.cases import OURS
from benchmarks.cluster import Icecore, Missing, System
from benchmarks.lifetime import uninterrupted
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats

PEERS: dict[str, Callable[[Path], System]] = {"kafka": Kafka, "nats": Nats}
"""What ours are compared with; each has as many nodes as it likes, three."""


class Systems:
    """Use as a context manager.

    Args:
        folder: For the data of all; what is in it is removed with each system.
        on_start: Called with a new one before it is handed out.
    """

    def __init__(self, folder: Path, on_start: Callable[[System], None]) -> None:
        self._folder, self._on_start = folder, on_start
        self._running: dict[str, tuple[System, contextlib.ExitStack]] = {}
        self._missing: dict[str, Missing] = {}
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """All that run, for a measurement that has the machine to itself."""
        for name in list(self._running):
            self._stop(name)

    def get(self, name: str, rf: int) -> System:
        """A running system; ours has as many nodes as replicas are wanted.

        Raises:
            Missing: It can't run here.
        """
        if name in self._missing:
            raise self._missing[name]
        if name in self._running:
            system, _ = self._running[name]
            if name not in OURS or system.nodes == rf:
                return system
            self._stop(name)
        return self._start(name, rf)

    def _start(self, name: str, rf: int) -> System:
        self._started += 1
        folder = self._folder / f"{name}-{self._started}"
        system: System = Icecore(name, folder, rf) if name in OURS else PEERS[name](folder)
        with contextlib.ExitStack() as stack:  # undone unless the last line is reached
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                stack.enter_context(system)
            except Missing as error:
                self._missing[name] = error
                raise
            self._on_start(system)
            self._running[name] = (system, stack.pop_all())
        return system

    def _stop(self, name: str) -> None:
        _, stack = self._running.pop(name)
        with uninterrupted():
            stack.close()
