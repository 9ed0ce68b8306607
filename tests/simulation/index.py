"""The index database of the simulator: sorted maps that lose the end of their log in a power cut.

Writes are numbered batches; ``flush`` makes all so far durable. A power cut keeps the durable
batches and a seeded number of the later ones, in order, as a write-ahead log does. A SIGKILL loses
nothing: written pages outlive the process. A block that rots is noticed by its checksum: reading
any key in it fails until the database is made anew.
"""

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping

from icecore.errors import StorageError
from tests.simulation.machine import Machine, io_error
from tests.simulation.process import SimProcess

Put = tuple[str, bytes, bytes]
Change = list[Put] | tuple[str, bytes, bytes]


class SortedMap:
    """A dict with its keys in order."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        start, end = bisect_left(self.keys, lower), bisect_left(self.keys, upper)
        for key in self.keys[start:end]:
            del self.values[key]
        del self.keys[start:end]

    def copy(self) -> "SortedMap":
        other = SortedMap()
        other.values = dict(self.values)
        other.keys = list(self.keys)
        return other


class SimIndexDisk:
    """The disk of one index database: its durable part, and its write-ahead log."""

    def __init__(self) -> None:
        self.families: dict[str, SortedMap] = {}
        self._durable: dict[str, SortedMap] = {}
        self._log: list[Change] = []
        self.is_rotten = False
        """True = each read or write meets damage, until the database is wiped."""
        self.rotten: set[tuple[str, bytes]] = set()
        """(family, key) of entries whose block can't be read any more."""

    def change(self, change: Change) -> None:
        """Apply and log one batch of puts, or one (family, lower, upper) range deletion."""
        _apply(self.families, change)
        self._log.append(change)

    def flush(self) -> None:
        for change in self._log:
            _apply(self._durable, change)
        self._log.clear()

    def durable(self, family: str) -> Mapping[bytes, bytes]:
        """Return the entries of a family that survive any power cut."""
        return self._durable[family].values if family in self._durable else {}

    def power_cut(self, rng: random.Random) -> None:
        """Lose a tail of the unflushed batches."""
        survivors = self._log[: rng.randint(0, len(self._log))]
        self._log.clear()
        for change in survivors:
            _apply(self._durable, change)
        self.families = {name: family.copy() for name, family in self._durable.items()}

    def wipe(self) -> None:
        """The database is gone (damaged and removed)."""
        self.families, self._durable, self._log = {}, {}, []
        self.rotten.clear()
        self.is_rotten = False


class SimIndex:
    """icecore_node.ports.Index: one life's handle of an index database."""

    def __init__(
        self, disk: SimIndexDisk, process: SimProcess | None, machine: Machine | None = None
    ) -> None:
        self._disk = disk
        self._process = process
        self._machine = machine or Machine()
        self._closed = False

    def _use(self, operation: str) -> SimIndexDisk:
        if self._process is not None:
            self._process.check()
        if self._closed:
            raise StorageError("index is closed")
        if self._disk.is_rotten:
            raise StorageError("simulated: a block of the index is damaged")
        self._machine.check(f"index {operation}")
        return self._disk

    def _change(self, operation: str) -> SimIndexDisk:
        disk = self._use(operation)
        self._machine.changing()
        return disk

    def _family(self, operation: str, family: str) -> SortedMap:
        return self._use(operation).families.setdefault(family, SortedMap())

    def _check(self, family: str, keys: Iterable[bytes]) -> None:
        """Raises StorageError when one of them can't be read."""
        rotten = self._disk.rotten
        if rotten and any((family, key) in rotten for key in keys):
            raise io_error("index", f"{family}: checksum mismatch")

    def write(self, puts: Iterable[tuple[str, bytes, bytes]]) -> None:
        """One atomic batch."""
        changed = [(family, bytes(key), bytes(value)) for family, key, value in puts]
        self._change("write").change(changed)

    def get(self, family: str, key: bytes) -> bytes | None:
        """As node.ports."""
        found = self._family("get", family).values.get(key)
        self._check(family, [key])
        return found

    def floor(self, family: str, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """As node.ports."""
        store = self._family("floor", family)
        position = bisect_right(store.keys, key) - 1
        if position < 0 or store.keys[position] < lower:
            return None
        found = store.keys[position]
        self._check(family, [found])
        return found, store.values[found]

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Over a snapshot of the range."""
        store = self._family("scan", family)
        keys = store.keys[bisect_left(store.keys, lower) : bisect_left(store.keys, upper)]
        self._check(family, keys)
        return iter([(key, store.values[key]) for key in keys])

    def delete_range(self, family: str, lower: bytes, upper: bytes) -> None:
        """Unsynced, like a write."""
        self._change("delete_range").change((family, bytes(lower), bytes(upper)))

    def flush(self) -> None:
        """Make everything so far durable."""
        self._change("flush").flush()

    def wipe(self) -> None:
        """Empty it."""
        if self._process is not None:
            self._process.check()
        self._disk.wipe()

    def close(self) -> None:
        """Flush and forget; idempotent."""
        if not self._closed:
            if not self._disk.is_rotten:
                self.flush()
            self._closed = True


def _apply(families: dict[str, SortedMap], change: Change) -> None:
    if isinstance(change, tuple):
        family, lower, upper = change
        families.setdefault(family, SortedMap()).delete_range(lower, upper)
    else:
        for family, key, value in change:
            families.setdefault(family, SortedMap()).put(key, value)
