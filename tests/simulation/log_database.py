"""The database of the engine ``rocksdb`` in the simulator: one life's handle of it.

What it keeps is in ``log_disk.py``. Its syncs fail when those of the disk do.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from icecore.errors import StorageError
from icecore_node.ports import SyncFailedError
from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange
from tests.simulation.disk import DiskFaults
from tests.simulation.log_disk import SimLogDisk
from tests.simulation.machine import Machine
from tests.simulation.process import SimProcess


class SimLogDatabase:
    """icecore_node.storage.rocksdb_engine.log_database.LogDatabase: one life's handle."""

    def __init__(
        self,
        disk: SimLogDisk,
        process: SimProcess | None = None,
        machine: Machine | None = None,
        faults: DiskFaults | None = None,
    ) -> None:
        self._disk = disk
        self._process = process
        self._machine = machine or Machine()
        self._faults = faults or DiskFaults()
        self._closed = False

    def _use(self, operation: str) -> SimLogDisk:
        if self._process is not None:
            self._process.check()
        if self._closed:
            raise StorageError("the database is closed")
        self._machine.check(f"database {operation}")
        return self._disk

    def write(self, change: DatabaseChange) -> None:
        """See ``LogDatabase.write``."""
        disk = self._use("write")
        self._machine.changing()
        disk.change(change)

    def sync(self) -> None:
        """See ``LogDatabase.sync``."""
        disk = self._use("sync")
        self._machine.changing()
        if self._faults.failing_syncs > 0:
            self._faults.failing_syncs -= 1
            self._faults.failed_syncs += 1
            disk.forget_unsynced()
            raise SyncFailedError("simulated: the log of the database could not be synced")
        disk.sync()

    def get(self, key: bytes) -> bytes | None:
        """See ``LogDatabase.get``."""
        return self._use("read").pairs.values.get(key)

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """See ``LogDatabase.floor``."""
        pairs = self._use("read").pairs
        position = bisect_right(pairs.keys, key) - 1
        if position < 0 or pairs.keys[position] < lower:
            return None
        found = pairs.keys[position]
        return found, pairs.values[found]

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See ``LogDatabase.scan``."""
        pairs = self._use("read").pairs
        keys = pairs.keys[bisect_left(pairs.keys, lower) : bisect_left(pairs.keys, upper)]
        return iter([(key, pairs.values[key]) for key in keys])

    def close(self) -> None:
        """See ``LogDatabase.close``."""
        self._closed = True
