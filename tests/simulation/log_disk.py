"""The database of active logs in the simulator, as it outlives a process: a sorted map that loses
unsynced changes.

A change is atomic, and the log of changes is kept in order: a power cut keeps those that were
synced and a seeded number of the later ones. A SIGKILL loses nothing. Changes that a failed sync
should have made durable are gone for good.
"""

import random

from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange
from tests.simulation.index import SortedMap


class SimLogDisk:
    """The disk of one database: its durable part, and its log."""

    def __init__(self) -> None:
        self.pairs = SortedMap()
        self.durable = SortedMap()
        self._log: list[DatabaseChange] = []

    def change(self, change: DatabaseChange) -> None:
        """Apply and log one change."""
        _apply(self.pairs, change)
        self._log.append(change)

    def sync(self) -> None:
        for change in self._log:
            _apply(self.durable, change)
        self._log.clear()

    def power_cut(self, rng: random.Random) -> None:
        """Lose a tail of the changes that were not synced."""
        if not self._log:
            return
        survivors = self._log[: rng.randint(0, len(self._log))]
        self._log.clear()
        for change in survivors:
            _apply(self.durable, change)
        self.pairs = self.durable.copy()

    def forget_unsynced(self) -> None:
        """A sync failed: what it was for will never be durable."""
        self._log.clear()
        self.pairs = self.durable.copy()

    def as_synced(self) -> "SimLogDisk":
        """Return the disk as a power cut that spares nothing would leave it, to look at."""
        disk = SimLogDisk()
        disk.pairs = self.durable
        return disk


def _apply(pairs: SortedMap, change: DatabaseChange) -> None:
    for lower, upper in change.cuts:
        pairs.delete_range(lower, upper)
    for key, value in change.puts:
        pairs.put(key, value)
