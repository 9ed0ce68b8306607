"""The SQLite file behind the control store: every commit synced, one transaction at a time.

A reserve file gives back a few MiB when the disk is full: fences and seals must still be storable
then. The parts of the control store share one lock and these commits, so that facts of several
parts change together.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icecore.errors import IcecoreError, OutOfResourcesError, OutOfSpaceError, StorageError
from icecore.process.log import event
from icecore_node.storage.files.locks import Lock

RESERVE_BYTES = 4 << 20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS promises (segment_id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS intents (segment_id INTEGER PRIMARY KEY, token INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS replicas (
  segment_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, topic_id BLOB NOT NULL,
  partition INTEGER NOT NULL, epoch INTEGER NOT NULL, base_offset INTEGER NOT NULL,
  state TEXT NOT NULL, damage TEXT NOT NULL, rebuilding INTEGER NOT NULL,
  snapshot BLOB NOT NULL, start_timestamp_ms INTEGER NOT NULL,
  end_offset INTEGER NOT NULL, end_position INTEGER NOT NULL, length_bytes INTEGER NOT NULL,
  last_header_crc32c INTEGER NOT NULL,
  end_timestamp_ms INTEGER NOT NULL, high_watermark INTEGER NOT NULL,
  seal_digest BLOB NOT NULL, full_digest BLOB NOT NULL, engine TEXT NOT NULL
);
"""
_ADDED = {
    "flush_interval_ms": "INTEGER NOT NULL DEFAULT 0",
    "flush_bytes": "INTEGER NOT NULL DEFAULT 0",
}
"""Columns of ``replicas`` that files of earlier versions lack."""
_log = logging.getLogger(__name__)


class ControlDatabase:
    """One open file, and single values in it by name.

    Whoever commits holds ``lock`` until what is kept in memory says the same.
    """

    def __init__(self, source: Path | sqlite3.Connection) -> None:
        """
        Args:
            source: The database file, or a connection that outlives this object (the simulator
                keeps one per disk).

        Raises:
            StorageError: The file is damaged; a node without its promises must not start.
            OutOfResourcesError: No descriptors or memory to open it.
        """
        self.lock = Lock()
        self._owns_connection = isinstance(source, Path)
        self._reserve = source.with_suffix(".reserve") if isinstance(source, Path) else None
        try:
            if isinstance(source, Path):
                source = sqlite3.connect(source, check_same_thread=False, isolation_level=None)
                source.execute("PRAGMA journal_mode=WAL")
            self._connection = source
            source.execute("PRAGMA synchronous=FULL")
            source.executescript(_SCHEMA)
            _add_columns(source)
        except sqlite3.Error as error:
            raise _error(error, "open") from error

    def load(self, query: str) -> list[tuple[Any, ...]]:
        """All rows of a query. Raises StorageError when the file is damaged."""
        try:
            return list(self._connection.execute(query))
        except sqlite3.Error as error:
            raise _error(error, "read") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def commit(self, change: Callable[[sqlite3.Connection], None]) -> None:
        """Apply one synced transaction; a full disk costs the reserve file, then one retry. The
        caller holds ``lock``."""
        try:
            with self._transaction() as connection:
                change(connection)
        except sqlite3.Error as error:
            problem = _error(error, "write")
            if not isinstance(problem, OutOfSpaceError) or not self._release_reserve():
                raise problem from error
            try:
                with self._transaction() as connection:
                    change(connection)
            except sqlite3.Error as second:
                raise _error(second, "write") from second

    def keep_reserve(self) -> None:
        """Create the reserve file again if it was used up and there is space; never fails."""
        reserve = self._reserve
        if reserve is None or (reserve.exists() and reserve.stat().st_size == RESERVE_BYTES):
            return
        try:
            # Written, not allocated: on some file systems only written blocks are really ours.
            reserve.write_bytes(bytes(RESERVE_BYTES))
        except OSError as error:
            event(_log, logging.WARNING, "control_reserve_missing", error=error)
            reserve.unlink(missing_ok=True)

    def _release_reserve(self) -> bool:
        if self._reserve is None or not self._reserve.exists():
            return False
        event(_log, logging.ERROR, "control_reserve_used", reserve_bytes=RESERVE_BYTES)
        self._reserve.unlink()
        return True

    def get(self, key: str) -> bytes | None:
        """A value of ``meta``."""
        with self.lock:
            row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,))
            found = row.fetchone()
        return None if found is None else bytes(found[0])

    def get_number(self, key: str) -> int:
        """A number of ``meta``, 0 when it was never set."""
        return int(self.get(key) or b"0")

    def put(self, **values: bytes | int | None) -> None:
        """Set values of ``meta`` in one synced commit; None removes."""

        def change(connection: sqlite3.Connection) -> None:
            for key, value in values.items():
                if value is None:
                    connection.execute("DELETE FROM meta WHERE key = ?", (key,))
                else:
                    data = str(value).encode() if isinstance(value, int) else value
                    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, data))

        with self.lock:
            self.commit(change)

    def close(self) -> None:
        """Close the file (not a connection that was passed in)."""
        if self._owns_connection:
            with self.lock:
                self._connection.close()


def _add_columns(connection: sqlite3.Connection) -> None:
    """Each by itself: what a crash left undone is done by the next start."""
    have = {name for _, name, *_ in connection.execute("PRAGMA table_info(replicas)")}
    for name, kind in _ADDED.items():
        if name not in have:
            connection.execute(f"ALTER TABLE replicas ADD COLUMN {name} {kind}")


def _error(error: sqlite3.Error, what: str) -> IcecoreError:
    code = getattr(error, "sqlite_errorcode", 0)
    kind: type[IcecoreError] = StorageError
    if code & 0xFF == sqlite3.SQLITE_FULL:
        kind = OutOfSpaceError
    elif code & 0xFF == sqlite3.SQLITE_NOMEM or code == sqlite3.SQLITE_IOERR_NOMEM:
        kind = OutOfResourcesError
    elif code & 0xFF == sqlite3.SQLITE_CANTOPEN and not _is_descriptor_left():
        kind = OutOfResourcesError  # SQLite does not tell what kept it from opening a file
    return kind(f"control store {what}: {error}")


def _is_descriptor_left() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
