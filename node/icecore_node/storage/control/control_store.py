"""What a node must never forget and cannot derive: promises, seals, intents, who it is.

A small SQLite file beside the segments, every commit synced, one commit per list. A lost promise
is a lost fence and therefore lost data, so this is no part of the index database. A reserve file
gives back a few MiB when the disk is full: fences and seals must still be storable then.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from icecore.errors import (
    FencedError,
    IcecoreError,
    NotReplicaError,
    OutOfResourcesError,
    OutOfSpaceError,
    StorageError,
    WrongClusterError,
)
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.store import SegmentIdentity

T = TypeVar("T")

PREPARED, CONFIRMED, SEALED, QUARANTINED = "prepared", "confirmed", "sealed", "quarantined"
RESERVE_BYTES = 4 << 20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS promises (segment_id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS intents (
  segment_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, name TEXT NOT NULL,
  token INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS replicas (
  segment_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, topic_id BLOB NOT NULL,
  partition INTEGER NOT NULL, epoch INTEGER NOT NULL, base_offset INTEGER NOT NULL,
  state TEXT NOT NULL, damage TEXT NOT NULL, rebuilding INTEGER NOT NULL,
  snapshot BLOB NOT NULL, start_timestamp_ms INTEGER NOT NULL,
  end_offset INTEGER NOT NULL, end_position INTEGER NOT NULL, last_header_crc32c INTEGER NOT NULL,
  end_timestamp_ms INTEGER NOT NULL, high_watermark INTEGER NOT NULL,
  seal_digest BLOB NOT NULL, full_digest BLOB NOT NULL
);
"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica as the control store remembers it; field names are column names."""

    segment_id: int
    generation: int
    topic_id: bytes
    partition: int
    epoch: int
    base_offset: int = -1
    state: str = PREPARED
    damage: str = ""
    """Why it is UNKNOWN; empty when nothing is known against it. Only a new file clears it."""
    rebuilding: int = 0
    """1 = created again after a loss: not intact until ``certify`` or ``seal``."""
    snapshot: bytes = b""
    start_timestamp_ms: int = 0
    end_offset: int = -1
    end_position: int = -1
    last_header_crc32c: int = 0
    end_timestamp_ms: int = 0
    high_watermark: int = 0
    seal_digest: bytes = b""
    full_digest: bytes = b""

    @classmethod
    def prepared(cls, identity: SegmentIdentity, rebuilding: int) -> "ReplicaRow":
        """The row of a replica that was just created."""
        return cls(
            identity.segment_id,
            identity.generation,
            identity.topic_id,
            identity.partition,
            identity.epoch,
            rebuilding=rebuilding,
        )

    def identity(self, cluster_id: bytes) -> SegmentIdentity:
        """Its identity; the base offset is -1 while prepared."""
        return SegmentIdentity(
            cluster_id,
            self.topic_id,
            self.partition,
            self.segment_id,
            self.generation,
            self.epoch,
            self.base_offset,
        )

    def confirmed(self, base_offset: int, snapshot: bytes, start_timestamp_ms: int) -> "ReplicaRow":
        """The row once base and starting state are fixed."""
        return replace(
            self,
            state=CONFIRMED,
            base_offset=base_offset,
            snapshot=snapshot,
            start_timestamp_ms=start_timestamp_ms,
        )


@dataclass(frozen=True, slots=True)
class DeleteIntent:
    """A deletion that was ordered and may not have ended."""

    segment_id: int
    generation: int
    name: str
    token: int


_COLUMNS = tuple(column.name for column in fields(ReplicaRow))
_PUT_REPLICA = (
    f"INSERT OR REPLACE INTO replicas ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join('?' * len(_COLUMNS))})"
)


class ControlStore:
    """Thread-safe; what is read often is kept in memory."""

    def __init__(self, source: Path | sqlite3.Connection) -> None:
        """
        Args:
            source: The database file, or a connection that outlives this object (the simulator
                keeps one per disk).

        Raises:
            StorageError: The file is damaged; a node without its promises must not start.
            OutOfResourcesError: No descriptors or memory to open it.
        """
        self._lock = Lock()
        self._owns_connection = isinstance(source, Path)
        self._reserve = source.with_suffix(".reserve") if isinstance(source, Path) else None
        try:
            if isinstance(source, Path):
                source = sqlite3.connect(source, check_same_thread=False, isolation_level=None)
                source.execute("PRAGMA journal_mode=WAL")
            self._connection = source
            source.execute("PRAGMA synchronous=FULL")
            source.executescript(_SCHEMA)
            query = f"SELECT {', '.join(_COLUMNS)} FROM replicas"
            rows = [ReplicaRow(*row) for row in source.execute(query)]
            promises = list(source.execute("SELECT segment_id, epoch FROM promises"))
        except sqlite3.Error as error:
            raise _error(error, "open") from error
        self._rows = {row.segment_id: row for row in rows}
        self._promises: dict[int, int] = dict(promises)
        self._max_token = self.get_number("max_token")
        self.keep_reserve()

    # --- transactions -------------------------------------------------------------------------

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

    def _commit(self, change: Callable[[sqlite3.Connection], None]) -> None:
        """Apply one synced transaction; a full disk costs the reserve file, then one retry."""
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
            _log.warning("no space for the reserve of the control store: %s", error)
            reserve.unlink(missing_ok=True)

    def _release_reserve(self) -> bool:
        if self._reserve is None or not self._reserve.exists():
            return False
        _log.error("disk full: the control store uses its reserve")
        self._reserve.unlink()
        return True

    # --- meta ---------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """A value of ``meta``."""
        with self._lock:
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

        with self._lock:
            self._commit(change)

    # --- who this node is ---------------------------------------------------------------------

    @property
    def cluster_id(self) -> bytes:
        """The cluster this disk belongs to; empty before the first registration."""
        return self.get("cluster_id") or b""

    @property
    def disk_id(self) -> bytes:
        """The cookie of this disk; empty until it was given one."""
        return self.get("disk_id") or b""

    @property
    def incarnation(self) -> int:
        """The last incarnation persisted, 0 when none."""
        return self.get_number("incarnation")

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind the disk to a cluster at the first registration, durably.

        Raises:
            WrongClusterError: It is bound to another one.
        """
        bound = self.cluster_id
        if bound and bound != cluster_id:
            raise WrongClusterError(
                f"this data belongs to cluster {bound.hex()}, not to {cluster_id.hex()}"
            )
        if not bound:
            self.put(cluster_id=cluster_id)

    @property
    def disk_counter(self) -> int:
        """The last one persisted, 0 when none."""
        return self.get_number("disk_counter")

    def keep_incarnation(self, incarnation: int, disk_counter: int) -> None:
        """Persist the incarnation and the counter that it begins with; before the first beat."""
        self.put(incarnation=incarnation, disk_counter=disk_counter)

    def raise_disk_counter(self) -> int:
        """Persist the next counter; a copy of this disk that was made before has a lower one."""
        counter = self.disk_counter + 1
        self.put(disk_counter=counter)
        return counter

    # --- replicas -----------------------------------------------------------------------------

    def row(self, segment_id: int) -> ReplicaRow | None:
        """The row of a replica."""
        return self._rows.get(segment_id)

    def rows(self) -> list[ReplicaRow]:
        """All replicas, by segment id."""
        with self._lock:
            return sorted(self._rows.values(), key=lambda row: row.segment_id)

    def put_rows(
        self, rows: Sequence[ReplicaRow], promises: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Write rows and raise promises (lower ones are ignored) in one synced commit."""
        with self._lock:
            self._put_rows(rows, promises)

    def change_row(self, segment_id: int, **changes: object) -> ReplicaRow:
        """Change fields of one row in one synced commit. Raises NotReplicaError without a row."""
        with self._lock:  # other threads may change other fields of it, or delete it
            row = self._rows.get(segment_id)
            if row is None:
                raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
            row = replace(row, **changes)  # type: ignore[arg-type]
            self._put_rows([row])
            return row

    def condemn(self, segment_ids: Iterable[int], damage: str) -> None:
        """These replicas are UNKNOWN, in one synced commit; an earlier reason stays."""
        with self._lock:
            found = [self._rows.get(segment_id) for segment_id in segment_ids]
            self._put_rows([replace(row, damage=damage) for row in found if row and not row.damage])

    def _put_rows(
        self, rows: Sequence[ReplicaRow], promises: Iterable[tuple[int, int]] = ()
    ) -> None:
        higher = {
            segment_id: epoch
            for segment_id, epoch in promises
            if epoch > self._promises.get(segment_id, 0)
        }
        if not rows and not higher:
            return

        def change(connection: sqlite3.Connection) -> None:
            values = [tuple(getattr(row, name) for name in _COLUMNS) for row in rows]
            connection.executemany(_PUT_REPLICA, values)
            connection.executemany("INSERT OR REPLACE INTO promises VALUES (?, ?)", higher.items())

        self._commit(change)
        self._rows.update((row.segment_id, row) for row in rows)
        self._promises.update(higher)

    # --- promises and the coordinator's token -------------------------------------------------

    @property
    def max_token(self) -> int:
        """The highest coordinator token seen."""
        return self._max_token

    def promised_epoch(self, segment_id: int) -> int:
        """The highest promised epoch, 0 when none."""
        return self._promises.get(segment_id, 0)

    def set_promises(self, promises: Sequence[tuple[int, int]], token: int) -> None:
        """One synced commit, or FencedError and no change when anything stored is higher."""
        with self._lock:
            self._check_token(token)
            for segment_id, epoch in promises:
                stored = self._promises.get(segment_id, 0)
                if epoch < stored:
                    raise FencedError(
                        f"segment {segment_id}: epoch {stored} is promised, {epoch} is stale",
                        segment_id=segment_id,
                        epoch=stored,
                    )
            is_known = all(self._promises.get(one) == epoch for one, epoch in promises)
            if is_known and token == self._max_token:
                return

            def change(connection: sqlite3.Connection) -> None:
                connection.executemany("INSERT OR REPLACE INTO promises VALUES (?, ?)", promises)
                _put_token(connection, token)

            self._commit(change)
            self._promises.update(promises)
            self._max_token = token

    def reset_token(self, token: int) -> None:
        """A person's word: the highest token seen is this one. For ``offline.py`` only."""
        with self._lock:
            self._commit(lambda connection: _put_token(connection, token))
            self._max_token = token

    def reset_promise(self, segment_id: int, epoch: int) -> None:
        """A person's word: this epoch is promised and no higher one. For ``offline.py`` only."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO promises VALUES (?, ?)", (segment_id, epoch))

        with self._lock:
            self._commit(change)
            self._promises[segment_id] = epoch

    def _check_token(self, token: int) -> None:
        if token < self._max_token:
            raise FencedError(
                f"coordinator token {token} is stale, {self._max_token} was seen",
                token=self._max_token,
            )

    # --- deletion -----------------------------------------------------------------------------

    def intents(self) -> list[DeleteIntent]:
        """Deletions to finish."""
        with self._lock:
            query = "SELECT segment_id, generation, name, token FROM intents ORDER BY segment_id"
            return [DeleteIntent(*row) for row in self._connection.execute(query)]

    def put_intents(self, intents: Sequence[DeleteIntent], token: int) -> None:
        """Remember deletions before their first side effect, in one synced commit.

        Raises FencedError for an old token.
        """
        with self._lock:
            self._check_token(token)

            def change(connection: sqlite3.Connection) -> None:
                rows = [
                    (each.segment_id, each.generation, each.name, each.token) for each in intents
                ]
                connection.executemany("INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?)", rows)
                _put_token(connection, token)

            self._commit(change)
            self._max_token = token

    def finish_intents(self, segment_ids: Sequence[int]) -> None:
        """The files are gone: forget replicas and intents in one commit. Their promises stay."""

        def change(connection: sqlite3.Connection) -> None:
            ids = [(segment_id,) for segment_id in segment_ids]
            connection.executemany("DELETE FROM replicas WHERE segment_id = ?", ids)
            connection.executemany("DELETE FROM intents WHERE segment_id = ?", ids)

        with self._lock:
            self._commit(change)
            for segment_id in segment_ids:
                self._rows.pop(segment_id, None)

    def close(self) -> None:
        """Close the file (not a connection that was passed in)."""
        if self._owns_connection:
            with self._lock:
                self._connection.close()


def _put_token(connection: sqlite3.Connection, token: int) -> None:
    values = ("max_token", str(token).encode())
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)


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
