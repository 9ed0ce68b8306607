"""``LogDatabase`` on RocksDB: one column family, whose write-ahead log is the truth after a crash.

A record that a crash tore off at the end of that log was never synced, and is dropped; anything
else that is wrong with it keeps the database from opening (``tolerate_corrupted_tail_records``).
Then the whole folder is kept under another name, and an empty one takes its place: its logs are
missing, so they are UNKNOWN, and nothing is deleted on a node's own judgement.

Traps of rocksdict and RocksDB: writes hold the GIL, also while RocksDB makes them wait for its own
background work, so they are told not to wait (``no_slowdown``) and are tried again; ``sync=True``
would hold it through the sync, ``flush_wal`` does not. After a write that failed RocksDB takes no
more until it is opened again, which the next write does: it is a node whose disk was full.
"""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import rocksdict

from icecore.errors import (
    SHORTAGES,
    ConfigurationError,
    OutOfResourcesError,
    OutOfSpaceError,
    StorageError,
)
from icecore.process.log import event
from icecore_node.ports import SyncFailedError
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.index.rocks import rocks_error
from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange

FOLDER: Final = "rocksdb"
_WRITE_BUFFER_BYTES = 32 << 20
_WRITE_BUFFERS = 4
_MANIFEST_BYTES = 64 << 10
_WAIT_S = 0.002
_WAITS_MAX = 5_000
_WAIT_SIGN = "Result incomplete"
_log = logging.getLogger(__name__)


class RocksLogDatabase:
    """One database in its own folder, made when something is first written, or when it is there.

    Args:
        path: Its folder.
        open_files_max: Descriptors it may hold.
    """

    def __init__(self, path: Path, *, open_files_max: int = 64) -> None:
        self._path = path
        self._open_files_max = open_files_max
        self._database: Any = None
        self._is_closed = False
        self._refuses = False
        """RocksDB takes no writes until it is opened again."""
        self._opening = Lock()

    # --- opening ------------------------------------------------------------------------------

    def _opened(self) -> Any:
        """The open database. Raises ConfigurationError when another process has it."""
        if self._database is None:
            with self._opening:
                if self._is_closed:
                    raise StorageError(f"database {self._path} is closed")
                if self._database is None:
                    self._database = self._open_or_begin()
        return self._database

    def _open_or_begin(self) -> Any:
        try:
            return self._open()
        except Exception as error:
            # rocksdict raises bare Exception for everything RocksDB reports
            if isinstance(found := rocks_error(error, f"database {self._path}"), SHORTAGES):
                raise found from error
            if "lock" in str(error).lower():
                raise ConfigurationError(
                    f"database {self._path} is already in use: {error}"
                ) from error
            aside = self._aside_path()
            event(_log, logging.CRITICAL, "database_damaged", aside=aside, error=error)
        try:
            self._path.rename(aside)
            return self._open()
        except Exception as error:
            raise rocks_error(error, f"database {self._path}") from error

    def _aside_path(self) -> Path:
        number = 1
        while (path := self._path.with_name(f"{self._path.name}.damaged.{number}")).exists():
            number += 1
        return path

    def _open(self) -> Any:
        if not self._path.exists():
            _make_durable(self._path)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_max_write_buffer_number(_WRITE_BUFFERS)
        options.set_manifest_preallocation_size(_MANIFEST_BYTES)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_keep_log_file_num(2)
        options.set_max_open_files(self._open_files_max)
        return rocksdict.Rdict(str(self._path), options)

    def _open_again(self) -> None:
        """After a write that failed: what was written before it is in the log, and comes back."""
        with self._opening:
            if not self._refuses:
                return
            database, self._database = self._database, None
            _close(database)
            del database  # RocksDB lets go of its lock with the last who holds it
            try:
                self._database = self._open()
            except Exception as error:
                found = rocks_error(error, f"database {self._path}")
                if not isinstance(found, SHORTAGES):  # a reader may still be in it
                    found = OutOfResourcesError(f"database {self._path}: {error}")
                raise found from error
            self._refuses = False

    # --- changes ------------------------------------------------------------------------------

    def write(self, change: DatabaseChange) -> None:
        """See ``LogDatabase.write``."""
        if self._refuses:
            self._open_again()
        database = self._opened()
        try:
            for _ in range(_WAITS_MAX):
                try:
                    database.write(_batch(change), _options())
                    return
                except Exception as error:
                    if _WAIT_SIGN not in str(error):
                        raise
                time.sleep(_WAIT_S)
        except Exception as error:
            self._refuses = True
            raise rocks_error(error, f"database {self._path}") from error
        raise OutOfResourcesError(f"database {self._path}: RocksDB is behind with its own work")

    def sync(self) -> None:
        """See ``LogDatabase.sync``; releases the GIL."""
        try:
            self._opened().flush_wal(True)
        except Exception as error:
            raise SyncFailedError(f"database {self._path}: {error}") from error

    # --- reads --------------------------------------------------------------------------------

    def _readable(self) -> Any:
        """The open database; None when there is none, so that a node that has no such logs needs
        none."""
        if self._database is None and not self._path.exists():
            return None
        return self._opened()

    def get(self, key: bytes) -> bytes | None:
        """See ``LogDatabase.get``."""
        database = self._readable()
        try:
            value: bytes | None = None if database is None else database.get(key)
        except Exception as error:
            raise self._failed(error) from error
        return value

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """See ``LogDatabase.floor``."""
        database = self._readable()
        if database is None:
            return None
        try:
            iterator = database.iter()
            iterator.seek_for_prev(key)
            if not iterator.valid():
                iterator.status()  # raises when it stopped for damage
                return None
            found: bytes = iterator.key()
            if found < lower:
                return None
            value: bytes = iterator.value()
        except Exception as error:
            raise self._failed(error) from error
        return found, value

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See ``LogDatabase.scan``."""
        database = self._readable()
        if database is None:
            return
        try:
            options = rocksdict.ReadOptions()
            options.set_iterate_upper_bound(upper)
            iterator = database.iter(options)
            iterator.seek(lower)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        """Return the error to raise for a read. A read that met the database while it was opened
        again says nothing about its contents."""
        if isinstance(error, rocksdict.DbClosedError) and not self._is_closed:
            return OutOfSpaceError(f"database {self._path} is being opened again: {error}")
        return rocks_error(error, f"database {self._path}")

    def close(self) -> None:
        """See ``LogDatabase.close``."""
        with self._opening:
            self._is_closed = True
            database, self._database = self._database, None
        _close(database)


def _make_durable(path: Path) -> None:
    """RocksDB syncs what is in its folder, and leaves the folder's own name to others."""
    path.mkdir()
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _close(database: Any) -> None:
    try:
        if database is not None:
            database.close()
    except Exception as error:
        # For example, the last flush found no space. What opens it next replays what is missing.
        event(_log, logging.WARNING, "database_close_failed", error=error)


def _batch(change: DatabaseChange) -> Any:
    batch = rocksdict.WriteBatch(raw_mode=True)
    for lower, upper in change.cuts:
        batch.delete_range(lower, upper)
    for key, value in change.puts:
        batch.put(key, value)
    return batch


def _options() -> Any:
    options = rocksdict.WriteOptions()
    options.no_slowdown = True
    return options
