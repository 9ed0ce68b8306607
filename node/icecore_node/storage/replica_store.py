"""All replicas of one node: their bytes, which engines keep, and what must never be forgotten.

Late syncs are here, too, and replicas of which a part alone can be proved.

The control store says which replicas there are, which engine keeps each, what was promised, sealed,
condemned and ordered to go; the engines (``engine.py``) have the bytes. The order between the two
makes a crash at any point harmless: what is made or sealed is durable before its record says so
(R34), and used only after; what goes or is set aside is recorded before its first byte moves (R41,
R69). Here are the start of the node and the logs in use; how a replica comes and goes is in
``replica_creation.py`` and ``replica_removal.py``.

All methods block. ``append_group`` and what changes a log run on the I/O worker of its partition,
the others on any thread. Each method that touches the disk may raise OutOfSpaceError or
OutOfResourcesError: a shortage, which says nothing about any replica (R52).
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from icecore.errors import IcecoreError, NotReplicaError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.topic_settings import SEGMENT_ENGINE, VOLATILE_ENGINES
from icecore_node.ports import DiskFailedError, DiskLostError
from icecore_node.storage.control.control_store import (
    CONFIRMED,
    QUARANTINED,
    SEALED,
    ControlStore,
    ReplicaRow,
)
from icecore_node.storage.control.disk_identity import FIRST_DISK
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.disks import Disk, Disks
from icecore_node.storage.engine import AppendRequest, Engine, FoundLog, LogEnd, LogTail
from icecore_node.storage.hand_over import HandOver, SealedLogs
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_catalog import ReplicaCatalog, unusable
from icecore_node.storage.replica_creation import ReplicaCreation
from icecore_node.storage.replica_index import ReplicaIndex
from icecore_node.storage.replica_reader import ReplicaReader
from icecore_node.storage.replica_removal import ReplicaRemoval

_log = logging.getLogger(__name__)


class ReplicaStore:
    """All replicas of one node. Call ``start_up`` once, before anything else.

    A store without a cluster belongs to that of the first replica that is created in it.
    """

    def __init__(
        self,
        control: ControlStore,
        engines: Mapping[str, Engine],
        cluster_id: bytes,
        boot_id: str,
        sealed_logs: SealedLogs | None = None,
        disks: Disks | None = None,
        further_sealed_logs: Mapping[str, SealedLogs] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            control: Promises, records, delete orders.
            engines: By the name that ``SegmentSettings.active_engine`` has for each, on further
                disks with that of the disk (``disk_identity.py``).
            cluster_id: Whose replicas these are; empty before the first registration.
            boot_id: See ``LastStop``.
            sealed_logs: The one of the engines in which sealed logs end up; without it they stay
                where they are.
            disks: Where all that lies; None = in memory.
            further_sealed_logs: Likewise, on other disks, by location.
        """
        self._control = control
        self._boot_id = boot_id
        self.disks = disks or Disks(control, [Disk(FIRST_DISK, "", None)], DiskLimits())
        self._catalog = catalog = ReplicaCatalog(control, engines, cluster_id, self.disks)
        files = {} if sealed_logs is None else {SEGMENT_ENGINE: sealed_logs, **further_sealed_logs}
        self.hand_over = HandOver(catalog, files)
        self.index = ReplicaIndex(catalog, self.hand_over)
        self.reader = ReplicaReader(catalog)
        self.salvage = ReplicaSalvage(catalog)
        self.creation = ReplicaCreation(catalog)
        self.removal = ReplicaRemoval(catalog)
        self.promises = control.promises

    # --- start-up -----------------------------------------------------------------------------

    def start_up(self) -> list[FoundReplica]:
        """Finish what was ordered, judge and repair every known replica; once.

        Torn tails are cut. Damage in the middle of a log never is: such a replica is not intact,
        and stays so. What is wrong with one replica costs no other (R55).
        """
        self.removal.finish_deletions()
        self._obey_earlier_version()
        self._doubt_unsynced()
        rows = self._control.rows()
        logs: dict[SegmentId, FoundLog] = {}
        for name, engine in self._catalog.in_use():
            own = [row for row in rows if row.engine == name]
            sound = [row for row in own if _is_trusted(row)]
            known = [self._catalog.known(row) for row in sound]
            untrusted = [self._catalog.identity(row) for row in own if not _is_trusted(row)]
            try:
                found = engine.start_up(known, untrusted)
            except DiskLostError:
                continue
            if not self.disks.problem(name):  # it may have been lost on the way
                logs.update(zip([row.segment_id for row in sound], found, strict=True))
        self.hand_over.drop_strays()
        for row in rows:
            self.hand_over.note(self._control.row(row.segment_id) or row)
        return [self._found(row, logs.get(row.segment_id)) for row in rows]

    def _found(self, row: ReplicaRow, log: FoundLog | None) -> FoundReplica:
        if log is None:
            log = unusable(
                row.damage
                or self.disks.problem(row.engine)
                or f"this node has no storage engine {row.engine!r}"
            )
        if log.damage:
            event(_log, logging.ERROR, "log_unknown", segment_id=row.segment_id, why=log.damage)
        found = self._catalog.found(row, log)
        found.is_vanished = bool(log.damage) and row.engine in VOLATILE_ENGINES
        return found

    def _obey_earlier_version(self) -> None:
        """It noted a failed sync without saying whose: any log that was open may be concerned."""
        noted = self._control.database.get("poisoned")
        if noted is not None:
            unsealed = [row.segment_id for row in self._control.rows() if row.state == CONFIRMED]
            self.salvage.condemn(unsealed, f"a sync had failed: {noted.decode()}")
            self._control.database.put(poisoned=None)

    def _doubt_unsynced(self) -> None:
        """Condemn logs that may have lost acknowledged batches because those were not synced.

        A log that lost its end looks like one that never was longer (R80).
        """
        if not self._control.last_stop.kept_all(self._boot_id):
            why = "it was not all synced, and the machine stopped before it was"
            self.salvage.condemn(self._may_lag(), why)
        self._control.last_stop.begin(self._boot_id)

    def _may_lag(self) -> list[SegmentId]:
        """Logs of which not everything need be synced."""
        rows = self._control.rows()
        return [row.segment_id for row in rows if row.flush and row.state == CONFIRMED]

    # --- append -------------------------------------------------------------------------------

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        """As ``Engine.append_group``, for replicas of all engines. Returns ``requests``."""
        groups: defaultdict[str, list[AppendRequest]] = defaultdict(list)
        for request in requests:
            try:
                groups[self._catalog.row(request.segment_id).engine].append(request)
            except NotReplicaError as error:
                request.error = error
        for name, group in groups.items():
            try:
                engine = self._catalog.engine_named(name)
            except IcecoreError as error:
                for request in group:
                    request.error = error
            else:
                engine.append_group(group)
        return requests

    def sync(self, segment_ids: Sequence[SegmentId], *, from_now_on: bool = False) -> None:
        """As ``LateSyncs.sync``, for replicas of all engines. With ``from_now_on`` it is remembered
        durably."""
        groups: defaultdict[str, list[SegmentId]] = defaultdict(list)
        for segment_id in segment_ids:
            row = self._control.row(segment_id)
            if row is not None:
                groups[row.engine].append(segment_id)
        for name, group in groups.items():
            engine: object = self._catalog.engines.get(name)
            if isinstance(engine, LateSyncs):
                engine.sync(group, from_now_on=from_now_on)
        if from_now_on:
            self._control.end_async(segment_ids)

    # --- the end of a log ---------------------------------------------------------------------

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """Cut an unsealed log at a batch border, durably.

        Raises:
            InvalidRequestError: No batch ends there, or the replica is sealed or only prepared.
        """
        return self._catalog.engine(segment_id).truncate(segment_id, end_offset)

    def seal(self, segment_id: SegmentId, end_offset: int, seal_digest: bytes) -> None:
        """Mark sealed, durably: from now on bytes never change. Idempotent.

        A node that is killed before starts with the replica unsealed; the record of the segment
        orders the seal again.

        Raises:
            NotAsSealed: The log does not end there with this digest; nothing is changed.
        """

        def remember(end: LogEnd) -> None:
            tail = end.tail
            row = self._control.change_row(
                segment_id,
                state=SEALED,
                rebuilding=0,
                end_offset=tail.end_offset,
                end_position=end.position,
                length_bytes=tail.length_bytes,
                last_header_crc32c=tail.last_header_crc32c,
                end_timestamp_ms=tail.max_append_timestamp_ms,
                high_watermark=tail.max_known_high_watermark,
                seal_digest=tail.digest,
            )
            self.hand_over.note(row)

        self._catalog.engine(segment_id).seal(segment_id, end_offset, seal_digest, remember)

    # --- the end of the process ---------------------------------------------------------------

    def close(self) -> None:
        """Sync what was put off, close all logs, and remember that this was a clean stop. Who
        opened the control store closes it."""
        try:
            self.sync(self._may_lag())
        except DiskFailedError as error:  # its log is condemned; of the others nobody knows
            event(_log, logging.CRITICAL, "stopped_unsynced", error=error)
        else:
            self._control.last_stop.end()
        for engine in self._catalog.engines.values():
            engine.close()
        self._control.database.keep_reserve()


def _is_trusted(row: ReplicaRow) -> bool:
    """Return whether its bytes are to be looked at: nothing is known against them."""
    return not row.damage and row.state != QUARANTINED


# --- late syncs -----------------------------------------------------------------------------------

# Logs that are synced later than they are written (``flush_mode=async``), as engines see them.
#
# An engine that knows nothing of it syncs each append, which is as good.


@runtime_checkable
class LateSyncs(Protocol):
    """An engine that may put off the syncs of a log with ``flush`` bounds.

    It says so in ``AppendRequest.sync_within_ms``. What was written then counts as if it were
    durable: it outlives the process. Whether it outlived a power cut the caller asks nobody; it
    takes such a log for lost (R80), so an index may tell of more than the disk has.
    """

    def sync(self, segment_ids: Sequence[SegmentId], *, from_now_on: bool = False) -> None:
        """Make durable what was put off so far. Logs that are not here, or sealed, have nothing.

        Their worker may append meanwhile, on another thread.

        Args:
            segment_ids: Of any logs.
            from_now_on: Put off nothing more of these logs. The caller is their worker.

        Raises:
            DiskFailedError: As ``Engine.append_group``.
        """
        ...


# --- salvage --------------------------------------------------------------------------------------

# Which replicas are UNKNOWN, and what can be proved of them for who gives up data (R46, R82).


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
