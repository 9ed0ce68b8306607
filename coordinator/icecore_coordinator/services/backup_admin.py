"""Calls of who takes a backup of the metadata: read all of one moment, then note that it is safe.

A reader comes in parts, and the cluster goes on meanwhile. So the first part takes a snapshot, and
the others read from it. It is only references to records, so it costs little; one that nobody reads
any more is dropped after a minute, or sooner when another reader needs the room.
"""

from dataclasses import dataclass
from typing import Final

from icecore.errors import InvalidRequestError, ThrottledError
from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Clock, Received, Rng, UnaryHandler
from icecore.rpc.turns import Turns
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.state.snapshot import MetadataSnapshot, snapshot

PART_BYTES: Final = 1 << 20
"""A part ends behind the record with which it has so much."""
SNAPSHOTS_MAX: Final = 4
KEPT_MS: Final = 60_000.0
"""So long after its last part a snapshot can be read."""
IDLE_MS: Final = 5_000.0
"""A snapshot that nobody has read for so long gives way to a new one."""
_ID_BYTES: Final = 8


@dataclass(slots=True)
class _Open:
    """A snapshot that somebody reads."""

    snapshot: MetadataSnapshot
    taken_at_ms: int
    used_ms: float


class BackupAdmin:
    """Two methods of AdminService, each as bytes to bytes. Loop only."""

    def __init__(self, ledger: Ledger, clock: Clock, rng: Rng) -> None:
        """
        Args:
            ledger: Of the metadata.
            clock: Says when a snapshot was taken, and when it is too old.
            rng: Of the names of snapshots.
        """
        self._ledger, self._clock, self._rng = ledger, clock, rng
        self._open: dict[bytes, _Open] = {}

    def handlers(self) -> dict[str, UnaryHandler]:
        """By the short names of their methods."""
        return {"ReadMetadata": self.read, "NoteBackup": self.note}

    async def read(self, body: Received, call: CallContext) -> bytes:
        """ReadMetadata."""
        request = parse(pb.ReadMetadataRequest, body)
        snapshot_id = request.snapshot_id or self._begin(request.start)
        found = self._find(snapshot_id)
        data = found.snapshot
        if request.start > len(data.records):
            raise InvalidRequestError(
                f"the snapshot has {len(data.records)} records, none at {request.start}"
            )
        response = pb.ReadMetadataResponse(
            snapshot_id=snapshot_id,
            cluster_id=data.cluster_id,
            coordinator_epoch=data.coordinator_epoch,
            revision=data.revision,
            records=len(data.records),
            taken_at_ms=found.taken_at_ms,
        )
        turns, length_bytes = Turns(call.slot), 0
        for index in range(request.start, len(data.records)):
            if length_bytes >= PART_BYTES:
                break
            await turns.give()
            record = data.records[index]
            value = encode(record)
            response.entries.add(key=record.key, value=value, version=record.version)
            length_bytes += len(value) + len(record.key)
        return response.SerializeToString()

    def _begin(self, start: int) -> bytes:
        """Take a snapshot of now, and return its name."""
        if start:
            raise InvalidRequestError("a new snapshot is read from record 0 on")
        now_ms = self._clock.monotonic_ms()
        for known, each in list(self._open.items()):
            if now_ms - each.used_ms > KEPT_MS:
                del self._open[known]
        if len(self._open) >= SNAPSHOTS_MAX:
            idle = min(self._open, key=lambda each: self._open[each].used_ms)
            if now_ms - self._open[idle].used_ms > IDLE_MS:
                del self._open[idle]
        if len(self._open) >= SNAPSHOTS_MAX:
            raise ThrottledError(
                f"{len(self._open)} backups of the metadata are under way: wait for their end"
            )
        snapshot_id = self._rng.bytes(_ID_BYTES)
        taken = snapshot(self._ledger.state)
        self._open[snapshot_id] = _Open(taken, self._clock.now_ms(), now_ms)
        return snapshot_id

    def _find(self, snapshot_id: bytes) -> _Open:
        found = self._open.get(snapshot_id)
        if found is None:
            raise InvalidRequestError(
                "the coordinator was started again, or the reader waited for more than a minute: "
                "begin the backup anew"
            )
        found.used_ms = self._clock.monotonic_ms()
        return found

    async def note(self, body: Received, _: CallContext) -> bytes:
        """NoteBackup."""
        request = parse(pb.NoteBackupRequest, body)
        now_ms = self._clock.now_ms()
        await self._ledger.decide(lambda state: _noted(state, request.revision, now_ms))
        return pb.NoteBackupResponse().SerializeToString()


def _noted(state: ClusterState, revision: int, now_ms: int) -> Change:
    """Remember a backup; an older one than the last that was noted changes nothing."""
    cluster = state.cluster
    if not 0 < revision <= state.metadata_revision:
        raise InvalidRequestError(
            f"no backup has revision {revision}: the metadata are at {state.metadata_revision}"
        )
    if cluster is None or revision < cluster.backup_revision:
        return Change()
    return Change((updated(cluster, backup_at_ms=now_ms, backup_revision=revision),))
