"""Reads of replicas: each from the engine that keeps it, and what is remembered instead of read."""

from icecore.errors import InvalidRequestError, NotReplicaError
from icecore.model import SegmentId
from icecore_node.storage.control.control_store import SEALED
from icecore_node.storage.engine import LogTail, Verification
from icecore_node.storage.replica_catalog import ReplicaCatalog
from icecore_replication.digest import current_digest


class ReplicaReader:
    """``LogReader`` over all engines; used by any number of threads."""

    def __init__(self, catalog: ReplicaCatalog) -> None:
        self._catalog = catalog

    def holds(self, segment_id: SegmentId) -> bool:
        """See ``LogReader.holds``."""
        return self._catalog.holds(segment_id)

    def tail(self, segment_id: SegmentId) -> LogTail:
        """See ``LogReader.tail``."""
        return self._catalog.ask(segment_id, lambda engine: engine.reader.tail(segment_id))

    def read(
        self, segment_id: SegmentId, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """See ``LogReader.read``."""
        return self._catalog.ask(
            segment_id,
            lambda engine: engine.reader.read(segment_id, offset, max_bytes, end_offset),
        )

    def offset_for_time(
        self, segment_id: SegmentId, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """See ``LogReader.offset_for_time``."""
        return self._catalog.ask(
            segment_id,
            lambda engine: engine.reader.offset_for_time(segment_id, timestamp_ms, end_offset),
        )

    def tail_at(self, segment_id: SegmentId, end_offset: int) -> LogTail | None:
        """See ``LogReader.tail_at``."""
        return self._catalog.ask(
            segment_id, lambda engine: engine.reader.tail_at(segment_id, end_offset)
        )

    def headers(self, segment_id: SegmentId, end_offset: int) -> list[bytes]:
        """See ``LogReader.headers``."""
        return self._catalog.ask(
            segment_id, lambda engine: engine.reader.headers(segment_id, end_offset)
        )

    def full_digest(self, segment_id: SegmentId) -> bytes:
        """As ``LogReader.full_digest``, but read once: from then on it is remembered.

        Raises:
            InvalidRequestError: The replica is not sealed here.
        """
        control = self._catalog.control
        row = control.row(segment_id)
        if row is None or row.state != SEALED:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        if known := current_digest(row.full_digest):
            return known
        digest = self._catalog.ask(segment_id, lambda engine: engine.reader.full_digest(segment_id))
        control.change_row(segment_id, full_digest=digest)
        return digest

    def verification(self, segment_id: SegmentId) -> Verification:
        """See ``LogReader.verification``. When a log is handed over meanwhile it is read again
        from its beginning, where it is then."""
        return _Verification(self._catalog, segment_id)

    def appends_block(self, segment_id: SegmentId) -> bool:
        """Return whether an append to this replica may wait for a disk."""
        row = self._catalog.control.row(segment_id)
        engine = None if row is None else self._catalog.engines.get(row.engine)
        return engine is None or engine.appends_block

    def starting_state(self, segment_id: SegmentId) -> tuple[bytes, int]:
        """The producer snapshot and ``max_append_timestamp_ms`` that ``confirm`` stored.

        Raises:
            NotReplicaError: There is no such replica.
        """
        row = self._catalog.row(segment_id)
        return row.snapshot, row.start_timestamp_ms


class _Verification:
    """``Verification`` of whoever keeps the log when a step begins."""

    def __init__(self, catalog: ReplicaCatalog, segment_id: SegmentId) -> None:
        self._catalog = catalog
        self._segment_id = segment_id
        self._begin()

    def _begin(self) -> None:
        self._location = self._catalog.row(self._segment_id).engine
        self._walk = self._catalog.ask(
            self._segment_id, lambda engine: engine.reader.verification(self._segment_id)
        )

    @property
    def digest(self) -> bytes:
        """See ``Verification.digest``."""
        return self._walk.digest

    def step(self, max_bytes: int) -> int:
        """See ``Verification.step``."""
        try:
            return self._walk.step(max_bytes)
        except NotReplicaError:
            if self._catalog.row(self._segment_id).engine == self._location:
                raise
            self._begin()
            return self._walk.step(max_bytes)
