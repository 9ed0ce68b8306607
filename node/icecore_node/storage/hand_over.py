"""Sealed logs of other engines become files of the segment engine, in the background.

Engines differ in how they keep what is appended. What is sealed lies in one kind of file, so that
look-ups, scrub, copies and tiering exist once. A log is copied in steps; then, in this order: its
file is durable under its name and equals what was sealed; the record of the replica names its new
location, in one commit; the old engine drops its bytes. A crash before the commit leaves a file
that the next attempt replaces, one after it leaves bytes that the old engine is told of at the next
start (``LogSalvage.strays``). Reads go by the record, so they find one whole log at any time.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from icecore.errors import SHORTAGES, IcecoreError, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.ports import DiskFailedError, DiskLostError
from icecore_node.storage.control.control_store import SEALED, ReplicaRow
from icecore_node.storage.control.disk_identity import engine_of
from icecore_node.storage.disk_choice import DiskChoice
from icecore_node.storage.engine import KnownLog, LogEnd, NotAsSealed
from icecore_node.storage.replica_catalog import ReplicaCatalog

STEP_BYTES: Final = 4 << 20
_log = logging.getLogger(__name__)


class SealedCopy(Protocol):
    """A sealed log that is on its way to the engine of sealed logs. Used by one thread."""

    def append(self, data: bytes) -> None:
        """The next batches, whole."""
        ...

    def sync(self) -> None:
        """All are there: make them durable. Nobody sees them yet."""
        ...

    def finish(self, remember: Callable[[LogEnd], None]) -> None:
        """Put the log in its place, durably, and use it; ``remember`` is told where it ends, and
        when it raises the log is not used. What lay in that place was not in use, and goes.

        Raises:
            NotAsSealed: What was copied is not what was sealed.
        """
        ...

    def abandon(self) -> None:
        """Leave nothing of it, unless it was finished. Never fails."""
        ...


class SealedLogs(Protocol):
    """Takes sealed logs of other engines."""

    def receive(self, log: KnownLog) -> SealedCopy:
        """Begin a copy; what is left of an earlier one goes."""
        ...


@dataclass(slots=True)
class _Copying:
    """A log that is on its way."""

    row: ReplicaRow
    location: str
    """Name of the location that gets it."""
    copy: SealedCopy
    next_offset: int


class HandOver:
    """Moves what is sealed to its last location. One caller of ``step`` at a time.

    Args:
        catalog: Of all replicas.
        files: What takes sealed logs, by location, for each disk; none = they stay where they are.
    """

    def __init__(self, catalog: ReplicaCatalog, files: Mapping[str, SealedLogs]) -> None:
        self._catalog = catalog
        self._placement = DiskChoice(catalog)
        self._files = files
        self._due: dict[SegmentId, None] = {}
        self._copying: _Copying | None = None

    def note(self, row: ReplicaRow) -> None:
        """A replica was sealed, or found sealed: it is copied if need be. On any thread."""
        if self._files and _is_due(row):
            self._due[row.segment_id] = None

    def step(self) -> bool:
        """Copy about 4 MiB. Returns whether there is more to do now; after a shortage there is
        not, although something is left."""
        copying = self._copying or self._next()
        if copying is None:
            return False
        self._copying = None
        segment_id = copying.row.segment_id
        try:
            if self._is_current(copying) and not self._copy(copying):
                self._copying = copying
                return True
        except DiskFailedError:
            raise
        except (DiskLostError, *SHORTAGES) as error:  # later, perhaps to another disk
            event(_log, logging.WARNING, "hand_over_waits", segment_id=segment_id, error=error)
            self._due[segment_id] = None
            copying.copy.abandon()
            return False
        except (IcecoreError, NotAsSealed) as error:  # the scrub judges; nothing has moved
            event(_log, logging.ERROR, "not_handed_over", segment_id=segment_id, error=error)
        copying.copy.abandon()
        return bool(self._due)

    def _next(self) -> _Copying | None:
        for segment_id in list(self._due):
            self._due.pop(segment_id, None)
            row = self._catalog.control.row(segment_id)
            if row is None or not _is_due(row):
                continue
            try:
                [placed] = self._placement.placed([replace(row, engine=SEGMENT_ENGINE)])
                copy = self._files[placed.engine].receive(self._catalog.known(row))
            except DiskFailedError:
                raise
            except IcecoreError as error:
                event(_log, logging.WARNING, "hand_over_waits", segment_id=segment_id, error=error)
                self._due[segment_id] = None
                return None
            return _Copying(row, placed.engine, copy, row.base_offset)
        return None

    def _is_current(self, copying: _Copying) -> bool:
        """Return whether the record is still what the copy was begun for, but for its digest."""
        row = self._catalog.control.row(copying.row.segment_id)
        return row is not None and replace(row, full_digest=b"") == replace(
            copying.row, full_digest=b""
        )

    def _copy(self, copying: _Copying) -> bool:
        """One step; whether the log has been handed over."""
        row = copying.row
        if copying.next_offset < row.end_offset:
            reader = self._catalog.engine_named(row.engine).reader
            data, end = reader.read(row.segment_id, copying.next_offset, STEP_BYTES, row.end_offset)
            if end <= copying.next_offset:
                raise StorageError(f"segment {row.segment_id} ends at {end} while it is copied")
            copying.copy.append(data)
            copying.next_offset = end
            return False
        copying.copy.sync()
        with self._catalog.changing:
            if self._is_current(copying):
                copying.copy.finish(lambda end: self._remember(copying, end))
                self._catalog.engine_named(row.engine).drop([self._catalog.identity(row)])
        event(_log, logging.INFO, "handed_over", segment_id=row.segment_id, engine=row.engine)
        return True

    def _remember(self, copying: _Copying, end: LogEnd) -> None:
        self._catalog.control.change_row(
            copying.row.segment_id, engine=copying.location, end_position=end.position
        )

    def drop_strays(self) -> None:
        """At the start: engines let go of what another one keeps since an earlier process."""
        for name, engine in self._catalog.in_use():
            rows = map(self._catalog.control.row, engine.salvage.strays())
            gone = [row for row in rows if row is not None and row.engine != name]
            if gone:
                engine.drop([self._catalog.identity(row) for row in gone])


def _is_due(row: ReplicaRow) -> bool:
    is_elsewhere = engine_of(row.engine) != SEGMENT_ENGINE
    return row.state == SEALED and is_elsewhere and not row.damage
