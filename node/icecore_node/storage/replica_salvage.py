"""Which replicas are UNKNOWN, and what can be proved of them for who gives up data (R46, R82)."""

from collections.abc import Sequence
from functools import partial

from icecore.errors import NotReplicaError
from icecore.model import SegmentId
from icecore_node.storage.control.control_store import CONFIRMED, QUARANTINED
from icecore_node.storage.engine import LogTail
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_catalog import ReplicaCatalog


class ReplicaSalvage:
    """Looks at replicas that nobody trusts. All methods block."""

    def __init__(self, catalog: ReplicaCatalog) -> None:
        self._catalog = catalog

    def condemn(self, segment_ids: Sequence[SegmentId], why: str) -> None:
        """Replicas are UNKNOWN from now on, durably; their bytes stay. One control-store sync."""
        self._catalog.control.condemn(dict.fromkeys(segment_ids, why))

    def tail(self, segment_id: SegmentId) -> LogTail | None:
        """The end of the longest part that CRCs and chain prove; None when nothing of this replica
        can be proved, which is no empty log."""
        row = self._catalog.control.row(segment_id)
        if row is None or row.base_offset < 0 or row.state not in (CONFIRMED, QUARANTINED):
            return None
        if self._catalog.disks.problem(row.engine):
            return None
        engine = self._catalog.engine_named(row.engine)
        return engine.salvage.tail(self._catalog.known(row))

    def readmit(self, segment_id: SegmentId) -> FoundReplica:
        """Make that part of a quarantined replica its log, durably. To this start and the next it
        is not intact all the same, until it is sealed.

        Raises:
            NotReplicaError: Nothing can be proved.
            StorageError: It could not be read or written.
        """
        catalog = self._catalog
        row = catalog.control.row(segment_id)
        is_here = row is not None and not catalog.disks.problem(row.engine)
        if row is None or not is_here or row.base_offset < 0 or row.state != QUARANTINED:
            raise NotReplicaError(f"nothing of segment {segment_id} can be salvaged here")
        change = partial(
            catalog.control.change_row, segment_id, state=CONFIRMED, damage="", rebuilding=1
        )
        log = catalog.engine_named(row.engine).salvage.restore(catalog.known(row), change)
        return catalog.found(catalog.row(segment_id), log)
