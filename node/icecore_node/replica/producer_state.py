"""The producers of a log, folded from what is on disk.

The table is a function of the log (R20), so whoever does not keep it makes it again: after a cut,
and of sealed replicas, which keep none in memory. Blocks; for I/O workers and reader threads.
"""

from icecore.codec import batch
from icecore.model import SegmentId
from icecore_node.storage.port import Store
from icecore_replication.producers import ProducerTable, snapshot_digest


def producers_at(store: Store, segment_id: SegmentId, end_offset: int) -> ProducerTable:
    """The table as it was when the log ended at ``end_offset``.

    Raises NotReplicaError, StorageError.
    """
    snapshot, _ = store.reader.starting_state(segment_id)
    table = ProducerTable(snapshot)
    for raw in store.reader.headers(segment_id, end_offset):
        table.apply_header(batch.parse_header(raw))
    return table


def state_at(store: Store, segment_id: SegmentId, end_offset: int) -> tuple[bytes, bytes]:
    """Snapshot and digest of ``producers_at``. Raises NotReplicaError, StorageError."""
    return with_digest(producers_at(store, segment_id, end_offset))


def with_digest(table: ProducerTable) -> tuple[bytes, bytes]:
    """Snapshot and digest of a table."""
    snapshot = table.snapshot()
    return snapshot, snapshot_digest(snapshot)
