"""All replicas of one node: their bytes, which engines keep, and what must never be forgotten.

The control store says which replicas there are, which engine keeps each, what was promised, sealed,
condemned and ordered to go; the engines (``engine.py``) have the bytes. Here is the order between
the two, which makes a crash at any point harmless: what is made or sealed is durable before its
record says so (R34), and used only after; what goes or is set aside is recorded before its first
byte moves (R41, R69).

All methods block. ``append_group`` and what changes a log run on the I/O worker of its partition,
the others on any thread. Each method that touches the disk may raise OutOfSpaceError or
OutOfResourcesError: a shortage, which says nothing about any replica (R52).
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from icecore.errors import IcecoreError, InvalidRequestError, NotReplicaError, StorageError
from icecore.model import SegmentId, Token
from icecore.process.log import event
from icecore_node.ports import DiskFailedError
from icecore_node.storage.control.control_store import (
    CONFIRMED,
    PREPARED,
    QUARANTINED,
    SEALED,
    ControlStore,
    ReplicaRow,
)
from icecore_node.storage.engine import (
    AppendRequest,
    CreatedLog,
    Engine,
    FoundLog,
    LogEnd,
    LogTail,
    NewLog,
    SegmentIdentity,
)
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_catalog import ReplicaCatalog, unusable
from icecore_node.storage.replica_reader import ReplicaReader
from icecore_node.storage.replica_salvage import ReplicaSalvage

_log = logging.getLogger(__name__)


class ReplicaStore:
    """All replicas of one node. Call ``start_up`` once, before anything else.

    A store without a cluster belongs to that of the first replica that is created in it.
    """

    def __init__(
        self, control: ControlStore, engines: Mapping[str, Engine], cluster_id: bytes
    ) -> None:
        """
        Args:
            control: Promises, records, delete orders.
            engines: By the name that ``SegmentSettings.engine`` has for each.
            cluster_id: Whose replicas these are; empty before the first registration.
        """
        self._control = control
        self._catalog = catalog = ReplicaCatalog(control, engines, cluster_id)
        self._only = next(iter(engines.values())) if len(engines) == 1 else None
        self._life = Lock()
        """Serializes what adds and removes replicas; never taken by appends and reads."""
        self.reader = ReplicaReader(catalog)
        self.salvage = ReplicaSalvage(catalog)
        self.promises = control.promises

    # --- start-up -----------------------------------------------------------------------------

    def start_up(self) -> list[FoundReplica]:
        """Finish what was ordered, judge and repair every known replica; once.

        Torn tails are cut. Damage in the middle of a log never is: such a replica is not intact,
        and stays so. What is wrong with one replica costs no other (R55).
        """
        self._finish_deletions()
        self._obey_earlier_version()
        rows = self._control.rows()
        logs: dict[SegmentId, FoundLog] = {}
        for name, engine in self._catalog.engines.items():
            own = [row for row in rows if row.engine == name]
            sound = [row for row in own if _is_trusted(row)]
            known = [self._catalog.known(row) for row in sound]
            untrusted = [self._catalog.identity(row) for row in own if not _is_trusted(row)]
            found = engine.start_up(known, untrusted)
            logs.update(zip([row.segment_id for row in sound], found, strict=True))
        return [self._found(row, logs.get(row.segment_id)) for row in rows]

    def _found(self, row: ReplicaRow, log: FoundLog | None) -> FoundReplica:
        if log is None:
            log = unusable(row.damage or f"this node has no storage engine {row.engine!r}")
        if log.damage:
            event(_log, logging.ERROR, "log_unknown", segment_id=row.segment_id, why=log.damage)
        return self._catalog.found(row, log)

    def _finish_deletions(self) -> None:
        """What an earlier process was ordered and had not done; each on its own if one fails."""
        if not (intents := self._control.intents()):
            return
        for group in (intents, *([each] for each in intents)):
            try:
                self._remove(group)
            except DiskFailedError:
                raise
            except IcecoreError as error:  # the coordinator orders it again
                event(_log, logging.ERROR, "not_deleted", segments=len(group), error=error)
            else:
                if group is intents:
                    return

    def _obey_earlier_version(self) -> None:
        """It noted a failed sync without saying whose: any log that was open may be concerned."""
        noted = self._control.database.get("poisoned")
        if noted is not None:
            unsealed = [row.segment_id for row in self._control.rows() if row.state == CONFIRMED]
            self.condemn(unsealed, f"a sync had failed: {noted.decode()}")
            self._control.database.put(poisoned=None)

    # --- create and confirm -------------------------------------------------------------------

    def create(
        self,
        identities: Sequence[SegmentIdentity],
        starts: Mapping[SegmentId, tuple[bytes, int]] = MappingProxyType({}),
        is_copy: bool = False,
    ) -> list[IcecoreError | None]:
        """Make replicas: bytes and records are durable on return. Idempotent.

        One control-store sync for all that one engine keeps.

        Args:
            identities: What to make; the engine of each keeps its bytes.
            starts: Segment id to producer snapshot and ``max_append_timestamp_ms``. Those in it are
                confirmed at the base of their identity in the same stroke, others only prepared.
            is_copy: They are not intact until ``certify`` or ``seal``: what they are to hold is
                elsewhere.

        Returns:
            For each why it could not be made: OutOfSpaceError etc., InvalidRequestError when
            another replica of the segment is here, StorageError when that is UNKNOWN,
            UnsupportedError for an engine that this node has not.
        """
        errors: dict[SegmentId, IcecoreError] = {}
        new: defaultdict[str, list[ReplicaRow]] = defaultdict(list)
        with self._life:
            if identities and not self._catalog.cluster_id:  # just registered
                self._catalog.cluster_id = identities[0].cluster_id
            for identity in identities:
                segment_id = identity.segment_id
                try:
                    row = self._new_row(identity, starts.get(segment_id), is_copy=is_copy)
                except IcecoreError as error:
                    errors[segment_id] = error
                else:
                    new[identity.engine] += [] if row is None else [row]
            for name, rows in new.items():
                errors.update(self._create(self._catalog.engine_named(name), rows))
        return [errors.get(identity.segment_id) for identity in identities]

    def _new_row(
        self, identity: SegmentIdentity, start: tuple[bytes, int] | None, *, is_copy: bool
    ) -> ReplicaRow | None:
        """The record of a replica to be made; None when it is here. Raises why it can't be made."""
        segment_id = identity.segment_id
        if identity.cluster_id != self._catalog.cluster_id:
            raise InvalidRequestError("a replica of another cluster")
        engine = self._catalog.engine_named(identity.engine)
        old = self._control.row(segment_id)
        is_rebuilding = is_copy or (old is not None and old.state == QUARANTINED)
        row = ReplicaRow.prepared(identity, int(is_rebuilding))
        if start is not None:
            row = row.confirmed(identity.base_offset, *start)
        if old is None:
            return row
        have = replace(self._catalog.identity(old), base_offset=-1)
        if have != replace(identity, base_offset=-1) and old.state != QUARANTINED:
            raise InvalidRequestError(f"segment {segment_id} is here as {have}")
        if engine.reader.holds(segment_id):
            return None
        if old.state in (CONFIRMED, SEALED):
            raise StorageError(f"segment {segment_id} is UNKNOWN: {old.damage}")
        return row

    def _create(self, engine: Engine, rows: Sequence[ReplicaRow]) -> dict[SegmentId, IcecoreError]:
        by_id = {row.segment_id: row for row in rows}

        def remember(created: Sequence[CreatedLog]) -> None:
            made = [
                replace(by_id[log.segment_id], rebuilding=1)
                if log.replaces_data
                else by_id[log.segment_id]
                for log in created
            ]
            # Of what is here now only: a promise tells that the segment was here once.
            self._control.put_rows(made, [(row.segment_id, row.epoch) for row in made])

        logs = [NewLog(self._catalog.identity(row), row.start_timestamp_ms) for row in rows]
        return engine.create(logs, remember) if logs else {}

    def confirm(
        self, identity: SegmentIdentity, producer_snapshot: bytes, max_append_timestamp_ms: int
    ) -> LogTail:
        """Fix base offset and starting state of a created replica, durably. Idempotent; another
        base is accepted while the log is empty.

        Raises:
            NotReplicaError: It was not created here.
            InvalidRequestError: It holds data under another base.
        """
        segment_id = identity.segment_id
        row, engine = self._catalog.row(segment_id), self._catalog.engine(segment_id)
        tail = engine.reader.tail(segment_id)
        if identity.base_offset < 0:
            raise InvalidRequestError(f"segment {segment_id} cannot be confirmed")
        have = replace(self._catalog.identity(row), base_offset=-1)
        if replace(identity, base_offset=-1) != have:
            raise InvalidRequestError(f"segment {segment_id} is here as {have}")
        confirmed = row.confirmed(identity.base_offset, producer_snapshot, max_append_timestamp_ms)
        if row.state != PREPARED:
            if confirmed == replace(row, state=CONFIRMED):
                return tail
            if tail.end_offset != row.base_offset or row.state == SEALED:
                raise InvalidRequestError(f"segment {segment_id} holds data already")
            # Back to prepared first: what says its base is overwritten now, and may be torn by a
            # crash.
            self._control.change_row(segment_id, state=PREPARED, base_offset=-1)
        remember = partial(self._control.put_rows, [confirmed])
        return engine.confirm(identity, max_append_timestamp_ms, remember)

    # --- append -------------------------------------------------------------------------------

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        """As ``Engine.append_group``, for replicas of all engines. Returns ``requests``."""
        if self._only is not None:
            self._only.append_group(requests)
            return requests
        groups: defaultdict[str, list[AppendRequest]] = defaultdict(list)
        for request in requests:
            try:
                groups[self._catalog.row(request.segment_id).engine].append(request)
            except NotReplicaError as error:
                request.error = error
        for name, group in groups.items():
            self._catalog.engine_named(name).append_group(group)
        return requests

    # --- the end of a log ---------------------------------------------------------------------

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """Cut an unsealed log at a batch border, durably.

        Raises:
            InvalidRequestError: No batch ends there, or the replica is sealed or only prepared.
        """
        return self._catalog.engine(segment_id).truncate(segment_id, end_offset)

    def seal(self, segment_id: SegmentId, end_offset: int, seal_digest: bytes) -> None:
        """Mark sealed, durably: from now on bytes never change. Idempotent.

        Raises:
            NotAsSealed: The log does not end there with this digest; nothing is changed.
        """

        def remember(end: LogEnd) -> None:
            tail = end.tail
            self._control.change_row(
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

        self._catalog.engine(segment_id).seal(segment_id, end_offset, seal_digest, remember)

    def certify(self, segment_id: SegmentId) -> None:
        """A copy, or a replica created again after a loss, is complete now, durably; until then (or
        until it is sealed) ``start_up`` reports it as not intact."""
        row = self._control.row(segment_id)
        if row is not None and row.rebuilding:
            self._control.change_row(segment_id, rebuilding=0)

    # --- setting aside and deleting -----------------------------------------------------------

    def condemn(self, segment_ids: Sequence[SegmentId], why: str) -> None:
        """Replicas are UNKNOWN from now on, durably; their bytes stay. One control-store sync."""
        self._control.condemn(dict.fromkeys(segment_ids, why))

    def quarantine(self, segment_id: SegmentId, why: str) -> None:
        """Keep the bytes aside under another name and forget the replica; it is UNKNOWN.

        Raises:
            NotReplicaError: There is no such replica.
        """
        with self._life:
            row = self._catalog.row(segment_id)
            if row.state == QUARANTINED:
                return
            # UNKNOWN before anything moves: a crash must not find it merely missing.
            self._control.change_row(segment_id, damage=why)
            self._catalog.engine_named(row.engine).set_aside(self._catalog.identity(row))
            self._control.change_row(segment_id, state=QUARANTINED)
        event(_log, logging.ERROR, "quarantined", segment_id=segment_id, why=why)

    def delete(self, segment_ids: Sequence[SegmentId], token: Token) -> None:
        """Remove replicas on the coordinator's order, which is stored first, with one control-store
        sync for all of them. What is not here counts as removed. Idempotent.

        Raises:
            FencedError: The token is old; then nothing is changed.
            StorageError: A file is in the way; the order stays.
        """
        with self._life:
            here = [one for one in dict.fromkeys(segment_ids) if self._control.row(one) is not None]
            if here:
                self._control.put_intents(here, token)
                self._remove(here)

    def _remove(self, segment_ids: Sequence[SegmentId]) -> None:
        """Carry out stored orders and forget them."""
        by_engine: defaultdict[str, list[SegmentIdentity]] = defaultdict(list)
        for row in map(self._control.row, segment_ids):
            if row is not None:
                by_engine[row.engine].append(self._catalog.identity(row))
        for name, identities in by_engine.items():
            self._catalog.engine_named(name).drop(identities)
        self._control.finish_intents(segment_ids)

    # --- while it runs, and the end of the process --------------------------------------------

    def sync_index(self) -> None:
        """Make what is derived durable; called about once a second."""
        for engine in self._catalog.engines.values():
            engine.flush()
        self._control.database.keep_reserve()

    def close(self) -> None:
        """Close all logs and mark a clean shutdown. Who opened the control store closes it."""
        for engine in self._catalog.engines.values():
            engine.close()
        self._control.database.keep_reserve()
        self._control.database.put(clean_shutdown=1)


def _is_trusted(row: ReplicaRow) -> bool:
    """Whether its bytes are to be looked at: nothing is known against them."""
    return not row.damage and row.state != QUARANTINED
