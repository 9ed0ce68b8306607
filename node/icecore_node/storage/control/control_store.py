"""The control store: promises, replica records and delete orders, which no node can derive.

All engines share one, in one SQLite file. Every commit is synced (``control_database.py``), and a
list takes one commit. A lost promise is a lost fence and therefore lost data, so the control store
is no part of the index database. Promises (``control_promises.py``) and the identity of the disk
(``disk_identity.py``) are parts of it. This module holds the replicas: their records, damage and
pending deletions.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from icecore.errors import NotReplicaError
from icecore.model import CoordinatorEpoch, Epoch, Generation, SegmentId
from icecore.topic_settings import SEGMENT_ENGINE, FlushBounds
from icecore_node.storage.control.control_database import ControlDatabase
from icecore_node.storage.control.control_promises import (
    Promises,
    put_coordinator_epoch,
    put_epochs,
)
from icecore_node.storage.control.disk_identity import DiskIdentity, KnownDisks, LastStop, engine_of
from icecore_node.storage.control.known_buckets import KnownBuckets
from icecore_node.storage.engine import SegmentIdentity

PREPARED, CONFIRMED, SEALED, QUARANTINED = "prepared", "confirmed", "sealed", "quarantined"


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica as the control store remembers it; field names are column names."""

    segment_id: SegmentId
    generation: Generation
    topic_id: bytes
    partition: int
    epoch: Epoch
    base_offset: int = -1
    state: str = PREPARED
    damage: str = ""
    """Why it is UNKNOWN; empty when nothing is known against it. Only a new file clears it."""
    rebuilding: int = 0
    """1 = a copy, or created again after a loss: not intact until ``certify`` or ``seal``."""
    snapshot: bytes = b""
    start_timestamp_ms: int = 0
    end_offset: int = -1
    end_position: int = -1
    length_bytes: int = 0
    last_header_crc32c: int = 0
    end_timestamp_ms: int = 0
    high_watermark: int = 0
    seal_digest: bytes = b""
    full_digest: bytes = b""
    engine: str = SEGMENT_ENGINE
    """Name of the location that has the bytes now (``disk_identity.py``): the engine of its
    identity,
    until the replica is sealed and handed over."""
    flush_interval_ms: int = 0
    """0 = all that was appended is synced, and always was."""
    flush_bytes: int = 0

    @classmethod
    def prepared(cls, identity: SegmentIdentity, rebuilding: int) -> "ReplicaRow":
        """The row of a replica that was just created."""
        return cls(
            segment_id=identity.segment_id,
            generation=identity.generation,
            topic_id=identity.topic_id,
            partition=identity.partition,
            epoch=identity.epoch,
            rebuilding=rebuilding,
            engine=identity.engine,
            flush_interval_ms=identity.flush.interval_ms if identity.flush else 0,
            flush_bytes=identity.flush.length_bytes if identity.flush else 0,
        )

    @property
    def flush(self) -> FlushBounds | None:
        """Bounds of what its log may leave unsynced; None = every append is synced."""
        if not self.flush_interval_ms:
            return None
        return FlushBounds(self.flush_interval_ms, self.flush_bytes)

    def identity(self, cluster_id: bytes) -> SegmentIdentity:
        """Its identity; the base offset is -1 while prepared."""
        return SegmentIdentity(
            cluster_id=cluster_id,
            topic_id=self.topic_id,
            partition=self.partition,
            segment_id=self.segment_id,
            generation=self.generation,
            epoch=self.epoch,
            base_offset=self.base_offset,
            engine=engine_of(self.engine),
            flush=self.flush,
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
            source: See ``ControlDatabase``.

        Raises:
            StorageError: The file is damaged; a node without its promises must not start.
            OutOfResourcesError: No descriptors or memory to open it.
        """
        self.database = database = ControlDatabase(source)
        """Also for what is remembered by name alone."""
        found = database.load(f"SELECT {', '.join(_COLUMNS)} FROM replicas")
        rows = [ReplicaRow(**dict(zip(_COLUMNS, row, strict=True))) for row in found]
        self._rows = {row.segment_id: row for row in rows}
        self.promises = Promises(database)
        self.disk = DiskIdentity(database)
        self.last_stop = LastStop(database)
        self.known_disks = KnownDisks(database)
        self.known_buckets = KnownBuckets(database)
        database.keep_reserve()

    # --- replicas -----------------------------------------------------------------------------

    def row(self, segment_id: SegmentId) -> ReplicaRow | None:
        """The row of a replica."""
        return self._rows.get(segment_id)

    def rows(self) -> list[ReplicaRow]:
        """All replicas, by segment id."""
        with self.database.lock:
            return sorted(self._rows.values(), key=lambda row: row.segment_id)

    def put_rows(
        self, rows: Sequence[ReplicaRow], promises: Iterable[tuple[SegmentId, Epoch]] = ()
    ) -> None:
        """Write rows and raise promises (lower ones are ignored) in one synced commit."""
        with self.database.lock:
            self._put_rows(rows, promises)

    def change_row(self, segment_id: SegmentId, **changes: object) -> ReplicaRow:
        """Change fields of one row in one synced commit. Raises NotReplicaError without a row."""
        with self.database.lock:  # other threads may change other fields of it, or delete it
            row = self._rows.get(segment_id)
            if row is None:
                raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
            row = replace(row, **changes)  # type: ignore[arg-type]
            self._put_rows([row])
            return row

    def end_async(self, segment_ids: Iterable[SegmentId]) -> None:
        """All of these logs is synced, and stays so: one synced commit."""
        with self.database.lock:
            rows = [row for one in segment_ids if (row := self._rows.get(one)) and row.flush]
            self._put_rows([replace(row, flush_interval_ms=0, flush_bytes=0) for row in rows])

    def condemn(self, damage: Mapping[SegmentId, str]) -> None:
        """These replicas are UNKNOWN, each for its reason, in one synced commit; an earlier reason
        stays."""
        with self.database.lock:
            found = [(self._rows.get(segment_id), why) for segment_id, why in damage.items()]
            self._put_rows(
                [replace(row, damage=why) for row, why in found if row and not row.damage]
            )

    def _put_rows(
        self, rows: Sequence[ReplicaRow], promises: Iterable[tuple[SegmentId, Epoch]] = ()
    ) -> None:
        higher = self.promises.higher(promises)
        if not rows and not higher:
            return

        def change(connection: sqlite3.Connection) -> None:
            values = [tuple(getattr(row, name) for name in _COLUMNS) for row in rows]
            connection.executemany(_PUT_REPLICA, values)
            put_epochs(connection, higher.items())

        self.database.commit(change)
        self._rows.update((row.segment_id, row) for row in rows)
        self.promises.note(higher.items())

    # --- deletion -----------------------------------------------------------------------------

    def intents(self) -> list[SegmentId]:
        """Segment ids of replicas whose deletion was ordered and may not have ended."""
        with self.database.lock:
            query = "SELECT segment_id FROM intents ORDER BY segment_id"
            return [segment_id for (segment_id,) in self.database.load(query)]

    def put_intents(
        self, segment_ids: Sequence[SegmentId], coordinator_epoch: CoordinatorEpoch
    ) -> None:
        """Remember deletions before their first side effect, in one synced commit.

        Raises FencedError for an old coordinator epoch.
        """
        with self.database.lock:
            self.promises.check_coordinator_epoch(coordinator_epoch)

            def change(connection: sqlite3.Connection) -> None:
                rows = [(segment_id, coordinator_epoch) for segment_id in segment_ids]
                connection.executemany("INSERT OR REPLACE INTO intents VALUES (?, ?)", rows)
                put_coordinator_epoch(connection, coordinator_epoch)

            self.database.commit(change)
            self.promises.note([], coordinator_epoch)

    def finish_intents(self, segment_ids: Sequence[SegmentId]) -> None:
        """The files are gone: forget replicas and intents in one commit. Their promises stay."""

        def change(connection: sqlite3.Connection) -> None:
            ids = [(segment_id,) for segment_id in segment_ids]
            connection.executemany("DELETE FROM replicas WHERE segment_id = ?", ids)
            connection.executemany("DELETE FROM intents WHERE segment_id = ?", ids)

        with self.database.lock:
            self.database.commit(change)
            for segment_id in segment_ids:
                self._rows.pop(segment_id, None)

    def close(self) -> None:
        """Close the file (not a connection that was passed in)."""
        self.database.close()
