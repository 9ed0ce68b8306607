"""The small ports of one simulated process: clock, chance, and its SQLite and metadata stores.

The databases are real SQLite in memory, kept by the world across crashes: a committed transaction
is durable and an open one is rolled back, which is what SQLite promises. Here they only learn to
refuse zombies, to take time, and to lose an answer after the commit.
"""

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from typing import Any

from coordinator.metadata_store import Compare, MetadataStore, Stored
from icecore.errors import StorageError
from tests.simulation.loop import SimLoop
from tests.simulation.process import SimProcess

EPOCH_MS = 1_700_000_000_000
"""Wall clock at virtual time 0."""


class SimClock:
    """icecore.ports.Clock. ``skew_ms`` shifts the wall clock of one process and may change."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Wall clock."""
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> float:
        """Virtual time."""
        return self._loop.time() * 1000


class SimRng:
    """icecore.ports.Rng."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def bytes(self, count: int) -> bytes:
        """Seeded bytes."""
        return self._random.randbytes(count)


class SimConnection:
    """The part of sqlite3.Connection that stores use, for one life of a process."""

    def __init__(self, connection: sqlite3.Connection, process: SimProcess) -> None:
        if connection.in_transaction:
            connection.rollback()
        self._connection = connection
        self._process = process

    def __getattr__(self, name: str) -> Any:
        self._process.check()
        return getattr(self._connection, name)


def memory_database() -> sqlite3.Connection:
    """A database that lives as long as its world."""
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


class SimMetadataStore:
    """coordinator.metadata_store.MetadataStore for one life of a coordinator.

    Args:
        inner: This life's view of the records that outlive it.
        process: Whose view it is.
        rng: Source of delays and losses.
        ambiguous: Probability that a transaction commits and then reports StorageError.
    """

    def __init__(
        self,
        inner: MetadataStore,
        process: SimProcess,
        rng: random.Random,
        *,
        ambiguous: float = 0.0,
    ) -> None:
        self._inner = inner
        self._process = process
        self._rng = rng
        self.ambiguous = ambiguous

    async def _pass_time(self) -> None:
        self._process.check()
        await asyncio.sleep(self._rng.expovariate(1000.0))
        self._process.check()

    async def acquire_token(self) -> int:
        """See MetadataStore."""
        await self._pass_time()
        return await self._inner.acquire_token()

    async def get(self, key: str) -> Stored | None:
        """See MetadataStore."""
        await self._pass_time()
        return await self._inner.get(key)

    async def scan(self, prefix: str) -> list[Stored]:
        """See MetadataStore."""
        await self._pass_time()
        return await self._inner.scan(prefix)

    async def txn(
        self,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        """See MetadataStore."""
        await self._pass_time()
        done = await self._inner.txn(compares, puts, deletes)
        if self.ambiguous and self._rng.random() < self.ambiguous:
            raise StorageError("simulated: the answer of the transaction was lost")
        await self._pass_time()
        return done

    async def close(self) -> None:
        """See MetadataStore."""
        self._process.check()
        await self._inner.close()
