"""The small ports of one simulated process: clock, chance, and its SQLite and metadata stores.

The databases are real SQLite in memory, kept by the world across crashes: a committed transaction
is durable and an open one is rolled back, which is what SQLite promises. Here they only learn to
refuse zombies, to take time, and to lose an answer after the commit.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from icecore.errors import StorageError
from icecore_coordinator.stores.metadata_store import Compare, MetadataStore, Stored
from tests.simulation.loop import SimLoop
from tests.simulation.machine import Machine, Trouble
from tests.simulation.process import SimProcess

EPOCH_MS = 1_700_000_000_000
"""Wall clock at virtual time 0."""


@dataclass
class Skew:
    """The error of a host's wall clock; changes take effect at once."""

    ms: int = 0


class SimClock:
    """icecore.rpc.ports.Clock of one process."""

    def __init__(self, loop: SimLoop, skew: Skew | None = None, rate: float = 1.0) -> None:
        self._loop = loop
        self._skew = skew or Skew()
        self._rate = rate

    def now_ms(self) -> int:
        """Wall clock."""
        return EPOCH_MS + self._skew.ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> float:
        """Virtual time, a little fast or slow as clocks are."""
        return self._loop.time() * 1000 * self._rate


class SimRng:
    """icecore.rpc.ports.Rng."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def bytes(self, count: int) -> bytes:
        """Seeded bytes."""
        return self._random.randbytes(count)


class SimConnection:
    """The part of sqlite3.Connection that stores use, for one life of a process.

    Transactions may fail where they begin or where they end; one that fails at its end may have
    been carried out all the same, as SQLite says of an I/O error at COMMIT.
    """

    def __init__(
        self, connection: sqlite3.Connection, process: SimProcess, machine: Machine | None = None
    ) -> None:
        if connection.in_transaction:
            connection.rollback()
        self._connection = connection
        self._process = process
        self._machine = machine or Machine()

    def execute(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """One statement. Raises sqlite3.OperationalError when it meets trouble."""
        self._process.check()
        operation = _OPERATIONS.get(query.split(maxsplit=1)[0], "control change")
        if operation == "control commit":
            self._machine.changing()
        trouble = self._machine.begin(operation)
        if trouble is None:
            return self._connection.execute(query, values)
        if trouble.partly and operation == "control commit":
            self._connection.execute(query, values)
        raise _sqlite_error(trouble)

    def __getattr__(self, name: str) -> Any:
        self._process.check()
        return getattr(self._connection, name)


_OPERATIONS = {
    "SELECT": "control read",
    "BEGIN": "control begin",
    "COMMIT": "control commit",
    "ROLLBACK": "control rollback",
    "PRAGMA": "control pragma",
}


def _sqlite_error(trouble: Trouble) -> sqlite3.OperationalError:
    """``disk I/O error``, or ``database or disk is full`` of a kind that is named so."""
    is_full = trouble.kind.endswith("_full")
    error = sqlite3.OperationalError(
        f"simulated: {'database or disk is full' if is_full else 'disk I/O error'}"
    )
    error.sqlite_errorcode = sqlite3.SQLITE_FULL if is_full else sqlite3.SQLITE_IOERR
    return error


def memory_database() -> sqlite3.Connection:
    """A database that lives as long as its world."""
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


@dataclass
class StoreFaults:
    """The faults of a metadata store; the world sets these."""

    delay_s: float = 0.001
    """Mean time of an operation."""
    failing: float = 0.0
    """Probability that an operation fails and changes nothing."""
    ambiguous: float = 0.0
    """Probability that a transaction commits and then reports StorageError."""
    count: Callable[[str], None] = lambda kind: None

    def heal(self) -> None:
        """Nothing goes wrong from now on."""
        self.delay_s, self.failing, self.ambiguous = 0.001, 0.0, 0.0


class SimMetadataStore:
    """icecore_coordinator.stores.metadata_store.MetadataStore for one life of a coordinator.

    Args:
        inner: This life's view of the records that outlive it.
        process: Whose view it is.
        rng: Source of delays and losses.
        faults: None = it only takes its time.
    """

    def __init__(
        self,
        inner: MetadataStore,
        process: SimProcess,
        rng: random.Random,
        faults: StoreFaults | None = None,
    ) -> None:
        self._inner = inner
        self._process = process
        self._rng = rng
        self._faults = faults or StoreFaults()

    async def _pass_time(self) -> None:
        self._process.check()
        await asyncio.sleep(self._rng.expovariate(1.0 / self._faults.delay_s))
        self._process.check()

    async def _begin(self) -> None:
        await self._pass_time()
        if self._faults.failing and self._rng.random() < self._faults.failing:
            self._faults.count("store_failing")
            raise StorageError("simulated: the store is out of order")

    async def acquire_coordinator_epoch(self) -> int:
        """See MetadataStore."""
        await self._begin()
        return await self._inner.acquire_coordinator_epoch()

    @property
    def revision(self) -> int:
        """See MetadataStore."""
        return self._inner.revision

    @property
    def is_followed(self) -> bool:
        """See MetadataStore."""
        return self._inner.is_followed

    async def get(self, key: str) -> Stored | None:
        """See MetadataStore."""
        await self._begin()
        return await self._inner.get(key)

    async def scan(self, prefix: str, after: str = "", limit: int = 0) -> list[Stored]:
        """See MetadataStore."""
        await self._begin()
        return await self._inner.scan(prefix, after, limit)

    async def txn(
        self,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        """See MetadataStore."""
        await self._begin()
        done = await self._inner.txn(compares, puts, deletes)
        if self._faults.ambiguous and self._rng.random() < self._faults.ambiguous:
            self._faults.count("store_ambiguous")
            raise StorageError("simulated: the answer of the transaction was lost")
        await self._pass_time()
        return done

    async def adopt(
        self,
        puts: Sequence[Stored],
        deletes: Sequence[str],
        coordinator_epoch: int,
        revision: int,
    ) -> None:
        """See MetadataStore."""
        await self._begin()
        await self._inner.adopt(puts, deletes, coordinator_epoch, revision)
        await self._pass_time()

    async def close(self) -> None:
        """See MetadataStore."""
        self._process.check()
        await self._inner.close()
