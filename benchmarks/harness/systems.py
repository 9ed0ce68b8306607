"""The systems that are compared, of which one at a time has the machine.

A system is started when it is first needed, and stopped when another shape of it is, or at the end,
by Ctrl-C too. While one is measured the others stand still: what idles takes its share of
processors and caches. A peer that takes a minute to get warm is held as it is; ours is stopped, and
starts anew within seconds. Where ours are compared with each other in short turns they stay beside
each other: what one of them costs when it idles, it costs each of them.
"""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self

from benchmarks.cluster import Icecore, Missing, System
from benchmarks.gates.base import BaseCluster, Tree
from benchmarks.harness.cases import BASE, is_ours
from benchmarks.harness.lifetime import uninterrupted
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats

PEERS: dict[str, Callable[[Path], System]] = {"kafka": Kafka, "nats": Nats}
"""The systems that ours are compared with. Each chooses its number of nodes: three."""

PEER_STARTS = 2
"""Attempts to start a peer: taken ports, a slow disk or its own haste must not count as its
figures."""
PEER_FAILURES_MAX = 3
"""Failures of a started peer after which it is left out for good."""


class Systems:
    """Use as a context manager.

    Args:
        folder: For the data of all; what is in it is removed with each system.
        on_start: Called with a new one before it is handed out, while the others stand still.
        base: The code of the system ``base``, if there is one.
        are_ours_beside: Whether ours run on while others of ours are measured.
    """

    def __init__(
        self,
        folder: Path,
        on_start: Callable[[System], None],
        base: Tree | None = None,
        are_ours_beside: bool = False,
    ) -> None:
        self._folder, self._on_start = folder, on_start
        self._base, self._are_ours_beside = base, are_ours_beside
        self._running: dict[str, tuple[System, contextlib.ExitStack]] = {}
        self._held: set[str] = set()
        self._missing: dict[str, Missing] = {}
        self._failures: dict[str, int] = {}
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """All that run, for a measurement that has the machine to itself."""
        for name in list(self._running):
            self._stop(name)

    def stop_ours(self) -> None:
        """Those of ours that run; peers stay as they are."""
        for name in [each for each in self._running if is_ours(each)]:
            self._stop(name)

    def get(self, name: str, rf: int) -> System:
        """A running system; ours has as many nodes as replicas are wanted. The others stand still.

        Raises:
            Missing: It can't run here.
        """
        if name in self._missing:
            raise self._missing[name]
        for other in [each for each in self._running if each != name]:
            if not (self._are_ours_beside and is_ours(name) and is_ours(other)):
                self._rest(other)
        if name in self._running:
            system, _ = self._running[name]
            if not is_ours(name) or system.nodes == rf:
                self.wake(system)
                return system
            self._stop(name)
        for left in reversed(range(1 if is_ours(name) else PEER_STARTS)):
            try:
                return self._start(name, rf)
            except Missing as error:
                self._missing[name] = error
                raise
            except Exception as error:
                if is_ours(name):
                    raise
                if not left:
                    self._missing[name] = Missing(str(error))
                    raise self._missing[name] from error
        raise AssertionError("every try returned or raised")

    def is_running(self, system: System) -> bool:
        """Return whether it is there, perhaps held."""
        return any(system is each for each, _ in self._running.values())

    def wake(self, system: System) -> None:
        """Let it go on if it was held, beside whatever else runs."""
        if system.name in self._held:
            self._held.discard(system.name)
            system.go_on()

    def _rest(self, name: str) -> None:
        system, _ = self._running[name]
        if name in self._held:
            return
        if system.hold():
            self._held.add(name)
        else:
            self._stop(name)

    def drop(self, name: str) -> None:
        """A peer that failed; it is started anew when it is needed, a few times."""
        if name in self._running:
            self._stop(name)
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= PEER_FAILURES_MAX:
            self._missing[name] = Missing(
                f"{name} that does not fail: it did {self._failures[name]} times"
            )

    def _start(self, name: str, rf: int) -> System:
        self._started += 1
        folder = self._folder / f"{name}-{self._started}"
        system = self._made(name, folder, rf)
        with contextlib.ExitStack() as stack:  # undone unless the last line is reached
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(system)
            self._on_start(system)
            self._running[name] = (system, stack.pop_all())
        return system

    def _made(self, name: str, folder: Path, rf: int) -> System:
        if name == BASE:
            if self._base is None:
                raise Missing("a base to compare with: BASE=<commit>")
            return BaseCluster(name, self._base, folder, rf)
        return Icecore(name, folder, rf) if is_ours(name) else PEERS[name](folder)

    def _stop(self, name: str) -> None:
        _, stack = self._running.pop(name)
        self._held.discard(name)
        with uninterrupted():
            stack.close()
