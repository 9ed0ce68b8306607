"""The embedded metadata store: one SQLite file, exclusive to one coordinator process.

Calls block the loop for the time of one small transaction and its fsync (WAL, synchronous=FULL),
which is less than handing it to a thread would cost. A lock on a file beside the database keeps a
second process out; the coordinator epoch keeps out one that lost the lock without noticing.
"""

import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from icecore.errors import ConfigurationError, StorageError, SupersededError
from icecore.model import CoordinatorEpoch
from icecore_coordinator.stores.metadata_store import Compare, Stored

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT
NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS token (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL);
INSERT OR IGNORE INTO token VALUES (0, 0);
CREATE TABLE IF NOT EXISTS revision (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL);
INSERT OR IGNORE INTO revision VALUES (0, 1);
"""

NODE_FILE = "control.db"
"""Only a node's data folder has it."""
_REPLACE = "UPDATE records SET value = ?, version = version + 1 WHERE key = ? AND version = ?"


class SqliteDatabase:
    """An open and locked database file; what of a store outlives one coordinator in a simulation.

    Args:
        path: Of the file, its folder is created; ``:memory:`` lives as long as this object.

    Raises:
        ConfigurationError: another process uses the file.
        StorageError: the file is no usable database.
    """

    def __init__(self, path: Path | str) -> None:
        self._lock = None if str(path) == ":memory:" else lock_beside(Path(path))
        try:
            self.connection = sqlite3.connect(str(path), isolation_level=None)
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute("PRAGMA synchronous=FULL")
            self.connection.executescript(SCHEMA)
        except sqlite3.Error as error:
            self.close()
            raise StorageError(f"metadata store {path}: {error}") from error

    def close(self) -> None:
        """Close and unlock. Idempotent."""
        if hasattr(self, "connection"):
            self.connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class SqliteStore:
    """``MetadataStore`` in SQLite: one coordinator's handle, with its coordinator epoch.

    Args:
        database: A path, which this store then owns and closes; or a database that others use
            too, one after the other or competing for the coordinator epoch.

    Raises:
        ConfigurationError, StorageError: as ``SqliteDatabase``.
    """

    def __init__(self, database: SqliteDatabase | Path | str) -> None:
        self._coordinator_epoch = 0
        self._revision = 1
        self.is_followed = False  # a file has one process, so nobody else follows it
        self._is_owner = not isinstance(database, SqliteDatabase)
        self._database = (
            database if isinstance(database, SqliteDatabase) else SqliteDatabase(database)
        )
        self._db = self._database.connection

    async def acquire_coordinator_epoch(self) -> CoordinatorEpoch:
        """See ``MetadataStore.acquire_coordinator_epoch``."""
        try:
            row = self._db.execute("UPDATE token SET value = value + 1 RETURNING value").fetchone()
            # Read behind it: from now on nobody else can change the store.
            self._revision = int(self._db.execute("SELECT value FROM revision").fetchone()[0])
        except sqlite3.Error as error:
            raise StorageError(f"metadata store: {error}") from error
        self._coordinator_epoch = CoordinatorEpoch(row[0])
        return self._coordinator_epoch

    @property
    def revision(self) -> int:
        """See ``MetadataStore.revision``."""
        return self._revision

    async def get(self, key: str) -> Stored | None:
        """See ``MetadataStore.get``."""
        rows = self._read("SELECT * FROM records WHERE key = ?", (key,))
        return rows[0] if rows else None

    async def scan(self, prefix: str, after: str = "", limit: int = 0) -> list[Stored]:
        """See ``MetadataStore.scan``."""
        # One lower bound: of two SQLite takes the first and reads all pages before this one again.
        begin, least = (">", after) if after >= prefix else (">=", prefix)
        return self._read(
            f"SELECT * FROM records WHERE key {begin} ? AND key < ? ORDER BY key LIMIT ?",
            (least, prefix + "\U0010ffff", limit or -1),
        )

    def _read(self, query: str, parameters: tuple[str | int, ...]) -> list[Stored]:
        try:
            return list(map(Stored._make, self._db.execute(query, parameters)))
        except sqlite3.Error as error:
            raise StorageError(f"metadata store: {error}") from error

    async def txn(
        self,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        """See ``MetadataStore.txn``."""
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                self._check_coordinator_epoch()
                holds = self._write(compares, puts, deletes)
                is_changed = holds and bool(puts or deletes)
                if is_changed:
                    db.execute("UPDATE revision SET value = value + 1")
                db.execute("COMMIT" if holds else "ROLLBACK")
                self._revision += is_changed
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StorageError(f"metadata store: {error}") from error
        return holds

    async def adopt(
        self,
        puts: Sequence[Stored],
        deletes: Sequence[str],
        coordinator_epoch: int,
        revision: int,
    ) -> None:
        """See ``MetadataStore.adopt``."""
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                self._check_coordinator_epoch()
                db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in deletes])
                db.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", puts)
                db.execute("UPDATE token SET value = max(value, ?)", (coordinator_epoch,))
                db.execute("UPDATE revision SET value = max(value + 1, ?)", (revision,))
                db.execute("COMMIT")
                self._revision = max(self._revision + 1, revision)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StorageError(f"metadata store: {error}") from error

    def _write(
        self, compares: Sequence[Compare], puts: Sequence[tuple[str, str]], deletes: Sequence[str]
    ) -> bool:
        """Return whether all compares hold; what was written is of no use otherwise. A record that
        is there and replaced, the usual case, is compared and written in one step."""
        db, expected = self._db, {each.key: each.version for each in compares}
        replaced = [(value, key, expected[key]) for key, value in puts if expected.get(key)]
        updated = {key for _, key, _ in replaced}
        if len(expected) != len(compares) or len(updated) != len(replaced):
            replaced, updated = [], set()  # a key that is named twice
        if not all(
            self._version(each.key) == each.version for each in compares if each.key not in updated
        ):
            return False
        if replaced and db.executemany(_REPLACE, replaced).rowcount != len(replaced):
            return False
        db.executemany(
            "INSERT INTO records VALUES (?, ?, 1) ON CONFLICT (key) DO UPDATE "
            "SET value = excluded.value, version = version + 1",
            [each for each in puts if each[0] not in updated],
        )
        db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in deletes])
        return True

    def _check_coordinator_epoch(self) -> None:
        newest = int(self._db.execute("SELECT value FROM token").fetchone()[0])
        if self._coordinator_epoch == 0 or self._coordinator_epoch != newest:
            raise SupersededError(
                f"coordinator epoch {self._coordinator_epoch} is not the newest ({newest})"
            )

    def _version(self, key: str) -> int:
        row = self._db.execute("SELECT version FROM records WHERE key = ?", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    async def close(self) -> None:
        """See ``MetadataStore.close``."""
        self._coordinator_epoch = 0
        if self._is_owner:
            self._database.close()


def lock_beside(path: Path) -> int:
    """Hold ``<path>.lock`` until the process ends or closes it."""
    if (path.parent / NODE_FILE).exists():
        raise ConfigurationError(
            f"{path.parent} is the data folder of a node: give --data the coordinator's own folder"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"data folder {path.parent} cannot be used: {error.strerror}. Give --data a "
            "folder that this user may write"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigurationError(
            f"{path} is already in use by another coordinator; stop it or give --data another"
            " folder. Coordinators that stand by for each other need etcd.endpoints, and a folder"
            " each"
        ) from error
    return lock
