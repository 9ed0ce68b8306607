"""The port of the engine ``rocksdb``: an ordered database whose changes are atomic.

Production has ``rocks_database.py``; the simulator has one of its own that loses unsynced changes
in a power cut. Both pass ``tests/conformance/log_database_suite.py``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DatabaseChange:
    """One atomic change: first ranges [lower, upper) are deleted, then pairs are put."""

    puts: Sequence[tuple[bytes, bytes]] = ()
    cuts: Sequence[tuple[bytes, bytes]] = ()


class LogDatabase(Protocol):
    """One database. Thread-safe; each call blocks.

    Raises OutOfSpaceError and OutOfResourcesError for a shortage, StorageError for damage.
    """

    def write(self, change: DatabaseChange) -> None:
        """Apply a change: all of it, or, when this raises, nothing. Durable after ``sync``; without
        it a crash may lose it, and then all that was written after it."""
        ...

    def sync(self) -> None:
        """Make everything that was written durable. Raises SyncFailedError: the process must
        end."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        ...

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """The last pair with ``lower`` <= its key <= ``key``."""
        ...

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with ``lower`` <= key < ``upper``, in order."""
        ...

    def close(self) -> None:
        """Close; idempotent."""
        ...
