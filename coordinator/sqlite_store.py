"""The embedded metadata store: one SQLite file, exclusive to one coordinator process.

Calls block the loop for the time of one small transaction and its fsync (WAL, synchronous=FULL),
which is less than handing it to a thread would cost. A lock on a file beside the database keeps a
second process out; the token keeps out one that lost the lock without noticing.
"""

import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from coordinator.metadata_store import Compare, Stored
from icecore.errors import ConfigurationError, FencedError, StorageError

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT
NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS token (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL);
INSERT OR IGNORE INTO token VALUES (0, 0);
"""


class SqliteStore:
    """``MetadataStore`` in a SQLite file.

    Args:
        path: Of the database file; ``:memory:`` for simulations and tests. A ``:memory:`` store
            lives as long as this object: ``close`` keeps its records, so that a test can hand it
            to the next coordinator.

    Raises:
        ConfigurationError: another process uses the file.
        StorageError: the file is no usable database.
    """

    def __init__(self, path: Path | str) -> None:
        self._token = 0
        self._in_memory = str(path) == ":memory:"
        self._lock: int | None = None if self._in_memory else _lock_beside(Path(path))
        try:
            self._db = sqlite3.connect(str(path), isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            self._unlock()
            raise StorageError(f"metadata store {path}: {error}") from error

    async def acquire_token(self) -> int:
        """See ``MetadataStore.acquire_token``."""
        try:
            row = self._db.execute("UPDATE token SET value = value + 1 RETURNING value").fetchone()
        except sqlite3.Error as error:
            raise StorageError(f"metadata store: {error}") from error
        self._token = int(row[0])
        return self._token

    async def get(self, key: str) -> Stored | None:
        """See ``MetadataStore.get``."""
        row = self._db.execute("SELECT * FROM records WHERE key = ?", (key,)).fetchone()
        return None if row is None else Stored(*row)

    async def scan(self, prefix: str) -> list[Stored]:
        """See ``MetadataStore.scan``."""
        rows = self._db.execute(
            "SELECT * FROM records WHERE key >= ? AND key < ? ORDER BY key",
            (prefix, prefix + "\U0010ffff"),
        )
        return [Stored(*row) for row in rows]

    async def txn(
        self,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        """See ``MetadataStore.txn``."""
        return self._txn(self._token, compares, puts, deletes)

    def _txn(
        self,
        token: int,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str],
    ) -> bool:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                self._check_token(token)
                holds = all(self._version(each.key) == each.version for each in compares)
                if holds:
                    db.executemany(
                        "INSERT INTO records VALUES (?, ?, 1) ON CONFLICT (key) DO UPDATE "
                        "SET value = excluded.value, version = version + 1",
                        puts,
                    )
                    db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in deletes])
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StorageError(f"metadata store: {error}") from error
        return holds

    def _check_token(self, token: int) -> None:
        newest = int(self._db.execute("SELECT value FROM token").fetchone()[0])
        if token == 0 or token != newest:
            raise FencedError(f"coordinator token {token} is not the newest ({newest})")

    def _version(self, key: str) -> int:
        row = self._db.execute("SELECT version FROM records WHERE key = ?", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    def another_writer(self) -> "SharedSqliteStore":
        """A second handle on the same records with a token of its own (tests, simulations)."""
        return SharedSqliteStore(self)

    async def close(self) -> None:
        """See ``MetadataStore.close``."""
        self._token = 0
        if not self._in_memory:
            self._db.close()
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class SharedSqliteStore:
    """Another coordinator's view of a ``SqliteStore``: same records, its own token."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._token = 0

    async def acquire_token(self) -> int:
        """See ``MetadataStore.acquire_token``. The other views are fenced from here on."""
        mine = self._store._token
        self._token = await self._store.acquire_token()
        self._store._token = mine
        return self._token

    async def get(self, key: str) -> Stored | None:
        """See ``MetadataStore.get``."""
        return await self._store.get(key)

    async def scan(self, prefix: str) -> list[Stored]:
        """See ``MetadataStore.scan``."""
        return await self._store.scan(prefix)

    async def txn(
        self,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        """See ``MetadataStore.txn``."""
        return self._store._txn(self._token, compares, puts, deletes)

    async def close(self) -> None:
        """See ``MetadataStore.close``."""
        self._token = 0


def _lock_beside(path: Path) -> int:
    """Hold ``<path>.lock`` until the process ends or closes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigurationError(
            f"{path} is already in use by another coordinator; stop it or give --data another"
            " folder"
        ) from error
    return lock
