"""The replicas of this node, who keeps the bytes of each, and what is remembered of it.

The parts of ``ReplicaStore`` share it. It turns records of the control store into what engines are
asked for, and what they find into what the node is told.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from icecore.errors import NotReplicaError, UnsupportedError
from icecore.model import SegmentId
from icecore_node.storage.control.control_store import SEALED, ControlStore, ReplicaRow
from icecore_node.storage.disks import Disks
from icecore_node.storage.engine import (
    NO_TAIL,
    Engine,
    FoundLog,
    KnownLog,
    LogEnd,
    LogTail,
    SegmentIdentity,
)
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.port import FoundReplica
from icecore_replication.digest import current_digest

T = TypeVar("T")


class ReplicaCatalog:
    """Replicas by segment id.

    Args:
        control: Remembers them.
        engines: By the names that records have for them (``disk_identity.py``).
        cluster_id: Whose replicas they are; empty before the first registration.
        disks: Where they lie.
    """

    def __init__(
        self,
        control: ControlStore,
        engines: Mapping[str, Engine],
        cluster_id: bytes,
        disks: Disks,
    ) -> None:
        self.control = control
        self.engines = engines
        self.disks = disks
        self.cluster_id = cluster_id
        self.changing = Lock()
        """Held by what adds and removes replicas; never taken by appends and reads."""

    def row(self, segment_id: SegmentId) -> ReplicaRow:
        """Return the record of a replica. Raises NotReplicaError when there is none."""
        row = self.control.row(segment_id)
        if row is None:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        return row

    def engine(self, segment_id: SegmentId) -> Engine:
        """Return the engine that has a replica's bytes. Raises NotReplicaError, UnsupportedError,
        DiskLostError."""
        return self.engine_named(self.row(segment_id).engine)

    def holds(self, segment_id: SegmentId) -> bool:
        """Return whether there is such a replica, in use."""
        row = self.control.row(segment_id)
        if row is None or self.disks.problem(row.engine):
            return False
        return self.engine_named(row.engine).reader.holds(segment_id)

    def ask(self, segment_id: SegmentId, question: Callable[[Engine], T]) -> T:
        """The answer of who keeps a replica, also when it is handed over meanwhile. Raises what
        ``engine`` and the question raise."""
        name = self.row(segment_id).engine
        try:
            return question(self.engine_named(name))
        except NotReplicaError:
            location = self.row(segment_id).engine
            if location == name:
                raise
            return question(self.engine_named(location))

    def in_use(self) -> list[tuple[str, Engine]]:
        """All engines whose disk counts, with their names."""
        return [each for each in self.engines.items() if not self.disks.problem(each[0])]

    def engine_named(self, name: str) -> Engine:
        """An engine of this node. Raises UnsupportedError when it has none of that name, and
        DiskLostError when the disk does not count that it works on."""
        self.disks.check(name)
        engine = self.engines.get(name)
        if engine is None:
            raise UnsupportedError(f"this node has no storage engine {name[:64]!r}")
        return engine

    def identity(self, row: ReplicaRow) -> SegmentIdentity:
        """Return the identity of a replica."""
        return row.identity(self.cluster_id)

    def known(self, row: ReplicaRow) -> KnownLog:
        """Return the log as it is recorded; an engine compares it with the bytes that it finds."""
        sealed = None
        if row.state == SEALED:
            tail = LogTail(
                end_offset=row.end_offset,
                last_header_crc32c=row.last_header_crc32c,
                digest=row.seal_digest,
                max_append_timestamp_ms=row.end_timestamp_ms,
                max_known_high_watermark=row.high_watermark,
                length_bytes=row.length_bytes,
            )
            sealed = LogEnd(tail, row.end_position)
        return KnownLog(self.identity(row), row.start_timestamp_ms, sealed)

    def found(self, row: ReplicaRow, log: FoundLog) -> FoundReplica:
        """A replica as its node is told of it."""
        replica = FoundReplica(
            identity=self.identity(row),
            intact=not log.damage,
            why=log.why,
            tail=log.tail,
            producer_snapshot=row.snapshot,
        )
        if log.damage:
            return replica
        if row.rebuilding:
            replica.intact, replica.why = False, "rebuilding: not certified as complete"
        if row.state == SEALED:
            replica.sealed_end_offset = row.end_offset
            replica.seal_digest = row.seal_digest
            replica.full_digest = current_digest(row.full_digest)
        else:
            replica.headers = log.headers
        return replica


def unusable(why: str) -> FoundLog:
    """Return the verdict on a log that no engine examined, because it can't be used."""
    return FoundLog(NO_TAIL, why, damage=why)
