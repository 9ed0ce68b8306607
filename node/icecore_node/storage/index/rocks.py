"""The ``Index`` port on RocksDB: derived data in column families, damaged means rebuilt.

Writes go to RocksDB's log unsynced and ``flush`` syncs that log about once a second: the index may
lag behind the data and never leads it. Every call holds the GIL except ``flush``, so batches stay
small. Two traps of rocksdict are avoided on purpose: ``set_iterate_lower_bound`` sets the *upper*
bound, and ``sync=True`` holds the GIL through the fsync.
"""

import logging
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import rocksdict

from icecore.errors import (
    SHORTAGES,
    ConfigurationError,
    IcecoreError,
    OutOfResourcesError,
    OutOfSpaceError,
    StorageError,
)
from icecore.process.log import event
from icecore_node.storage.index.points import FAMILIES

_OUT_OF_RESOURCES = ("Too many open files", "Cannot allocate memory")
_OUT_OF_SPACE = ("No space left", "Disk quota exceeded", "File too large", "Space limit reached")
_WRITE_BUFFER_BYTES = 16 << 20
_WAL_BYTES_MAX = 64 << 20
_log = logging.getLogger(__name__)


def rocks_error(error: Exception, what: str) -> IcecoreError:
    """Return the error to raise for an error of RocksDB; only its text tells which kind it is."""
    text = str(error)
    kind: type[IcecoreError] = StorageError
    if any(sign in text for sign in _OUT_OF_SPACE):
        kind = OutOfSpaceError
    elif any(sign in text for sign in _OUT_OF_RESOURCES):
        kind = OutOfResourcesError
    return kind(f"{what}: {text}")


class RocksIndex:
    """One RocksDB database in its own folder."""

    def __init__(
        self, path: Path, families: Iterable[str] = FAMILIES, *, open_files_max: int = 256
    ) -> None:
        """
        Open, or create; a database that does not open is removed and created empty.

        Args:
            path: Its folder.
            families: Its column families.
            open_files_max: Descriptors it may hold.

        Raises:
            ConfigurationError: Another process has it open.
            OutOfSpaceError: No space to create it.
            OutOfResourcesError: No descriptors or memory to open it: it is not damaged.
        """
        self._path = path
        self._open_files_max = open_files_max
        self._families = tuple(families)
        self._was_full = False
        try:
            self._open(path)
        except Exception as error:
            # rocksdict raises bare Exception for everything RocksDB reports
            if isinstance(found := rocks_error(error, "index open"), SHORTAGES):
                raise found from error
            if "lock" in str(error).lower():
                raise ConfigurationError(f"index {path} is already in use: {error}") from error
            event(_log, logging.ERROR, "index_rebuilt", path=path, error=error)
            self._create()

    def _create(self) -> None:
        """Create an empty database in place of the one that is there."""
        shutil.rmtree(self._path, ignore_errors=True)
        try:
            self._open(self._path)
        except Exception as second:
            raise rocks_error(second, "index open") from second

    def wipe(self) -> None:
        """Throw everything away and begin empty."""
        self.close()
        self._was_full = False
        self._create()

    def _open(self, path: Path) -> None:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
        options.set_max_total_wal_size(_WAL_BYTES_MAX)
        options.set_manifest_preallocation_size(64 << 10)
        options.set_keep_log_file_num(2)
        options.set_max_open_files(self._open_files_max)
        self._db: Any = rocksdict.Rdict(
            str(path), options, column_families={name: _family() for name in self._families}
        )
        self._columns = {name: self._db.get_column_family(name) for name in self._families}
        self._handles = {name: self._db.get_column_family_handle(name) for name in self._families}

    def write(self, puts: Iterable[tuple[str, bytes, bytes]]) -> None:
        """One atomic, unsynced batch."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        put, handles = batch.put, self._handles
        for family, key, value in puts:
            put(key, value, handles[family])
        try:
            self._db.write(batch)
        except Exception as error:
            raise self._failed(error, "write") from error

    def _failed(self, error: Exception, what: str) -> IcecoreError:
        """Return the error to raise for a change that failed.

        After a write that found no space, RocksDB refuses later writes with another text.
        """
        found = rocks_error(error, f"index {what}")
        if isinstance(found, OutOfSpaceError):
            self._was_full = True
        elif self._was_full and "previous error" in str(error):
            found = OutOfSpaceError(f"index {what}: {error}")
        return found

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key."""
        try:
            value: bytes | None = self._columns[family].get(key)
        except Exception as error:
            raise rocks_error(error, "index read") from error
        return value

    def floor(self, family: str, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """The last (key, value) with ``lower`` <= its key <= ``key``."""
        try:
            iterator = self._columns[family].iter()
            iterator.seek_for_prev(key)
            if not iterator.valid():
                iterator.status()  # raises when it stopped for damage
                return None
            found: bytes = iterator.key()
            value: bytes = iterator.value()
        except Exception as error:
            raise rocks_error(error, "index read") from error
        return (found, value) if found >= lower else None

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with ``lower`` <= key < ``upper``, in order."""
        try:
            options = rocksdict.ReadOptions()
            options.set_iterate_upper_bound(upper)
            iterator = self._columns[family].iter(options)
            iterator.seek(lower)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:
            raise rocks_error(error, "index read") from error

    def delete_range(self, family: str, lower: bytes, upper: bytes) -> None:
        """Forget all keys in [lower, upper)."""
        try:
            self._columns[family].delete_range(lower, upper)
        except Exception as error:
            raise self._failed(error, "delete") from error

    def flush(self) -> None:
        """Sync the write-ahead log; releases the GIL."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise self._failed(error, "flush") from error

    def close(self) -> None:
        """Close; idempotent. Later calls raise StorageError."""
        if not self._columns:
            return
        self._columns.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:
            # For example, the last flush found no space. The next start replays what is missing.
            event(_log, logging.WARNING, "index_close_failed", error=error)


def _family() -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    return options
