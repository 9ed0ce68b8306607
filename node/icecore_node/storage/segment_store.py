"""The default storage engine: one file per segment, a RocksDB index, a control store.

Bytes go through ``group_commit.py``, new files through ``creation.py``, start-up through
``recovery.py``; here is the life of a replica: confirmed, read, cut, sealed, set aside, deleted.
Whatever must survive is in the control store before anyone is told, and files go only by an intent
that is stored there.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from icecore.errors import (
    SHORTAGES,
    IcecoreError,
    InvalidRequestError,
    NotReplicaError,
    StorageError,
)
from icecore_node.ports import DiskFailedError, FileSystem, Index
from icecore_node.storage.control.control_store import (
    CONFIRMED,
    PREPARED,
    QUARANTINED,
    SEALED,
    ControlStore,
    DeleteIntent,
    ReplicaRow,
)
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.files.open_files import LogFile, OpenFiles
from icecore_node.storage.index import points
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.points import Put
from icecore_node.storage.segment_engine.creation import Creation
from icecore_node.storage.segment_engine.group_commit import GroupCommit
from icecore_node.storage.segment_engine.recycle import RecyclePool
from icecore_node.storage.segment_engine.removal import Removal
from icecore_node.storage.segment_engine.salvage import LogSalvage
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH, confirm_slot
from icecore_node.storage.segment_engine.segment_log import SegmentLog, StoreSettings
from icecore_node.storage.segment_engine.segment_names import aside_name, file_name, folder_name
from icecore_node.storage.segment_engine.segment_reader import LogVerification, SegmentReader
from icecore_node.storage.segment_engine.segment_scan import empty_tail
from icecore_node.storage.segment_engine.start_up import Recovery, Verdict, report_unknown_files
from icecore_node.storage.store import (
    NO_TAIL,
    AppendRequest,
    LogTail,
    NotAsSealed,
    RecoveredReplica,
    SegmentIdentity,
)
from icecore_replication.digest import current_digest

_DEFAULTS = StoreSettings()
_log = logging.getLogger(__name__)


class SegmentFileStore:
    """All replicas of one data folder. Call ``recover`` once, before anything else."""

    def __init__(
        self,
        file_system: FileSystem,
        index: Index,
        control: ControlStore,
        cluster_id: bytes,
        settings: StoreSettings = _DEFAULTS,
    ) -> None:
        self._fs = file_system
        self._control = control
        self._cluster_id = cluster_id
        self._settings = settings
        self._logs: dict[int, SegmentLog] = {}
        self._life = Lock()
        """Serializes what adds and removes files; never taken by appends and reads."""
        file_system.make_dirs("segments")
        self._fail_stop = FailStop(control)
        self._open_files = OpenFiles(settings.open_files_max, file_system.open)
        self._pool = RecyclePool(file_system, settings, self._sync_folder)
        self._index = DerivedIndex(index, self._standing)
        self._reader = SegmentReader(self._index)
        self._commit = GroupCommit(
            file_system, self._index, settings, self._appendable, self._fail_stop
        )
        self._creation = Creation(
            file_system,
            control,
            settings,
            self._fail_stop,
            self._pool,
            self._open_files,
            self._logs.__contains__,
        )
        self._removal = Removal(
            *(file_system, self._index, control, self._pool), self._sync_folders, self._forget
        )
        self.salvage = LogSalvage(file_system, control, self._fail_stop, self._judged)

    # --- start-up -----------------------------------------------------------------------------

    def recover(self) -> list[RecoveredReplica]:
        """See ``SegmentStore.recover``."""
        self._finish_deletions()
        self._obey_earlier_version()
        rebuilds = self._index.rebuilds
        found = self._judge_all()
        if self._index.rebuilds != rebuilds:
            # What was judged before has lost its points: once more, with a new index.
            self._logs.clear()
            found = self._judge_all()
        known = {file_name(row.identity(self._cluster_id)) for row in self._control.rows()}
        try:
            report_unknown_files(self._fs, known)
        except StorageError as error:
            _log.error("not all folders can be read: %s", error)
        return found

    def _finish_deletions(self) -> None:
        """What an earlier process was ordered and had not done; each on its own if one fails."""
        if not (intents := self._control.intents()):
            return
        for group in (intents, *([each] for each in intents)):
            try:
                self._removal.finish(group)
            except DiskFailedError:
                raise
            except IcecoreError as error:  # the coordinator orders it again
                _log.error("not deleted segments=%d error=%s", len(group), error)
            else:
                if group is intents:
                    return

    def _obey_earlier_version(self) -> None:
        """It noted a failed sync without saying whose: any log that was open may be concerned."""
        noted = self._control.get("poisoned")
        if noted is not None:
            unsealed = [row.segment_id for row in self._control.rows() if row.state == CONFIRMED]
            self._control.condemn(unsealed, f"a sync had failed: {noted.decode()}")
            self._control.put(poisoned=None)

    def _judge_all(self) -> list[RecoveredReplica]:
        """What each replica is worth. What is wrong with one is stored, and costs no other."""
        recovery = self._recovery()
        found: list[RecoveredReplica] = []
        damaged: list[ReplicaRow] = []
        for row in self._control.rows():
            verdict = Verdict(damage=row.damage, why=row.damage)
            if not row.damage:
                verdict = recovery.judge(row)
            if verdict.damage != row.damage:
                damaged.append(replace(row, damage=verdict.damage))
            found.append(self._take_over(row, verdict))
        self._control.put_rows(damaged)
        return found

    def _recovery(self) -> Recovery:
        return Recovery(self._fs, self._index, self._cluster_id, self._settings, self._fail_stop)

    def _judged(self, row: ReplicaRow) -> RecoveredReplica:
        return self._take_over(row, self._recovery().judge(row))

    def _take_over(self, row: ReplicaRow, verdict: Verdict) -> RecoveredReplica:
        identity = row.identity(self._cluster_id)
        replica = RecoveredReplica(identity, not verdict.damage, verdict.why, verdict.tail)
        replica.producer_snapshot = row.snapshot
        if verdict.damage:
            _log.error("segment %d is UNKNOWN: %s", row.segment_id, verdict.damage)
            return replica
        if verdict.cut_bytes:
            _log.warning("segment %d: %s", row.segment_id, verdict.why)
        if row.rebuilding:
            replica.intact, replica.why = False, "rebuilding: not certified as complete"
        log = self._opened(identity, verdict.size_bytes, row.start_timestamp_ms)
        log.end = (verdict.tail, verdict.position)
        if row.state == SEALED:
            log.is_sealed = True
            replica.sealed_end_offset = row.end_offset
            replica.seal_digest = row.seal_digest
            replica.full_digest = current_digest(row.full_digest)
        else:
            replica.headers = verdict.headers
        return replica

    def _opened(
        self, identity: SegmentIdentity, size_bytes: int, start_timestamp_ms: int
    ) -> SegmentLog:
        start = NO_TAIL
        if identity.base_offset >= 0:
            start = empty_tail(identity, start_timestamp_ms)
        handle = LogFile(identity.segment_id, file_name(identity), self._open_files)
        log = SegmentLog(identity, handle, size_bytes, start, self._settings)
        self._logs[identity.segment_id] = log
        return log

    def _standing(self) -> list[Put]:
        """How far each log that is written is durable, for an index that is begun anew. Sealed
        ones get nothing, so that the next start scans them and gives them their points again."""
        return [
            points.pack_durable(log.prefix, log.end[1], log.tail)
            for log in list(self._logs.values())
            if log.is_confirmed and not log.is_sealed and not log.is_being_cut
        ]

    def join_cluster(self, cluster_id: bytes) -> None:
        """See ``SegmentStore.join_cluster``."""
        self._cluster_id = cluster_id

    # --- create and confirm -------------------------------------------------------------------

    def create(
        self,
        identities: Sequence[SegmentIdentity],
        starts: Mapping[int, tuple[bytes, int]] = MappingProxyType({}),
        is_copy: bool = False,
    ) -> list[IcecoreError | None]:
        """See ``SegmentStore.create``."""
        with self._life:
            if identities:
                self._cluster_id = self._cluster_id or identities[0].cluster_id  # just registered
            made, errors = self._creation.make(identities, starts, self._cluster_id)
            rows = [replace(each.row, rebuilding=1) if is_copy else each.row for each in made]
            # Of what is here now only: a promise tells that the segment was here once.
            promises = [(row.segment_id, row.epoch) for row in rows]
            try:
                self._control.put_rows(rows, promises)
            except IcecoreError:
                self._creation.undo(made)
                raise
            for each in made:
                self._opened(each.identity, each.size_bytes, each.row.start_timestamp_ms)
        return errors

    def confirm(
        self, identity: SegmentIdentity, producer_snapshot: bytes, max_append_timestamp_ms: int
    ) -> LogTail:
        """See ``SegmentStore.confirm``. Another base is accepted while the log is empty.

        Raises:
            NotReplicaError: It was not created here.
            InvalidRequestError: It holds data under another base.
        """
        segment_id = identity.segment_id
        log = self._find(segment_id)
        row = self._control.row(segment_id)
        if row is None or identity.base_offset < 0:
            raise InvalidRequestError(f"segment {segment_id} cannot be confirmed")
        if replace(identity, base_offset=-1) != replace(log.identity, base_offset=-1):
            raise InvalidRequestError(f"segment {segment_id} is here as {log.identity}")
        if row.state != PREPARED:
            is_same = row.base_offset == identity.base_offset
            if is_same and (row.snapshot, row.start_timestamp_ms) == (
                producer_snapshot,
                max_append_timestamp_ms,
            ):
                return log.tail
            if log.tail.end_offset != row.base_offset or log.is_sealed:
                raise InvalidRequestError(f"segment {segment_id} holds data already")
            # Back to prepared first: its slot is overwritten now, and may be torn by a crash.
            self._control.change_row(segment_id, state=PREPARED, base_offset=-1)
        slot, position = confirm_slot(identity)
        with log.handle.using() as file:
            file.pwritev([slot], position)
            self._sync_file(log)
        self._control.put_rows(
            [row.confirmed(identity.base_offset, producer_snapshot, max_append_timestamp_ms)]
        )
        log.identity = identity
        log.start = empty_tail(identity, max_append_timestamp_ms)
        log.end = (log.start, FILE_HEADER_LENGTH)
        return log.start

    def starting_state(self, segment_id: int) -> tuple[bytes, int]:
        """See ``SegmentStore.starting_state``."""
        row = self._control.row(segment_id)
        if row is None:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        return row.snapshot, row.start_timestamp_ms

    # --- append -------------------------------------------------------------------------------

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        """See ``SegmentStore.append_group``."""
        self._commit.append(requests)
        return requests

    def _find(self, segment_id: int) -> SegmentLog:
        log = self._logs.get(segment_id)
        if log is None:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        return log

    def _appendable(self, segment_id: int) -> SegmentLog:
        log = self._find(segment_id)
        if log.failed is not None:
            raise log.failed
        if log.is_sealed or not log.is_confirmed:
            state = "sealed" if log.is_sealed else "not confirmed"
            raise InvalidRequestError(f"segment {segment_id} is {state}")
        return log

    def _sync_file(self, log: SegmentLog) -> None:
        """Sync outside a group: after an error the file is never trusted again."""
        try:
            self._fail_stop.sync([log.identity.segment_id], log.file.fdatasync)
        except DiskFailedError as error:
            log.failed = error
            raise

    # --- read ---------------------------------------------------------------------------------

    def read(
        self, segment_id: int, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """See ``SegmentStore.read``. Nothing below ``end_offset`` yet: empty, and ``offset``."""
        return self._reader.read(self._find(segment_id), offset, max_bytes, end_offset)

    def offset_for_time(
        self, segment_id: int, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """See ``SegmentStore.offset_for_time``."""
        return self._reader.offset_for_time(self._find(segment_id), timestamp_ms, end_offset)

    def tail_at(self, segment_id: int, end_offset: int) -> LogTail | None:
        """See ``SegmentStore.tail_at``."""
        found = self._reader.end_at(self._find(segment_id), end_offset)
        return found[0] if found else None

    def headers(self, segment_id: int, end_offset: int) -> list[bytes]:
        """See ``SegmentStore.headers``."""
        return self._reader.headers(self._find(segment_id), end_offset)

    def full_digest(self, segment_id: int) -> bytes:
        """See ``SegmentStore.full_digest``. Raises StorageError when a batch is damaged."""
        row = self._control.row(segment_id)
        if row is None or row.state != SEALED:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        if known := current_digest(row.full_digest):
            return known
        digest = self._reader.full_digest(self._find(segment_id))
        self._control.change_row(segment_id, full_digest=digest)
        return digest

    def verification(self, segment_id: int) -> LogVerification:
        """See ``SegmentStore.verification``."""
        log = self._find(segment_id)
        if not log.is_sealed:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        return LogVerification(log)

    # --- the end of a log ---------------------------------------------------------------------

    def truncate(self, segment_id: int, end_offset: int) -> LogTail:
        """See ``SegmentStore.truncate``."""
        log = self._find(segment_id)
        if log.is_sealed or not log.is_confirmed:
            raise InvalidRequestError(f"segment {segment_id} cannot be truncated")
        found = self._reader.end_at(log, end_offset)
        if found is None:
            raise InvalidRequestError(f"no batch of segment {segment_id} ends at {end_offset}")
        tail, position = found
        # What was known stays known: the tripwire compares it with later decisions.
        known = max(tail.max_known_high_watermark, log.tail.max_known_high_watermark)
        tail = replace(tail, max_known_high_watermark=known)
        with log.handle.using() as file:
            log.is_being_cut = True
            try:
                points.forget_from(self._index, log.prefix, position, tail)
                file.truncate(position)
                self._sync_file(log)
                log.rewind(tail, position, self._settings)
            finally:
                log.is_being_cut = False
        return tail

    def seal(self, segment_id: int, end_offset: int, seal_digest: bytes) -> None:
        """See ``SegmentStore.seal``."""
        log = self._find(segment_id)
        tail, position = log.end
        if not log.is_confirmed or (tail.end_offset, tail.digest) != (end_offset, seal_digest):
            raise NotAsSealed(
                f"segment {segment_id} ends at {tail.end_offset} with digest {tail.digest.hex()}, "
                f"to be sealed at {end_offset} with {seal_digest.hex()}"
            )
        if log.is_sealed:
            return
        with log.handle.using() as file:
            file.truncate(position)
            self._sync_file(log)
        log.allocated = position
        self._control.change_row(
            segment_id,
            state=SEALED,
            rebuilding=0,
            end_offset=end_offset,
            end_position=position,
            last_header_crc32c=tail.last_header_crc32c,
            end_timestamp_ms=tail.max_append_timestamp_ms,
            high_watermark=tail.max_known_high_watermark,
            seal_digest=seal_digest,
        )
        log.is_sealed = True

    def certify(self, segment_id: int) -> None:
        """See ``SegmentStore.certify``."""
        row = self._control.row(segment_id)
        if row is not None and row.rebuilding:
            self._control.change_row(segment_id, rebuilding=0)

    # --- setting aside and deleting -----------------------------------------------------------

    def condemn(self, segment_ids: Sequence[int], why: str) -> None:
        """See ``SegmentStore.condemn``."""
        self._control.condemn(segment_ids, why)

    def quarantine(self, segment_id: int, why: str) -> None:
        """See ``SegmentStore.quarantine``."""
        with self._life:
            row = self._control.row(segment_id)
            if row is None:
                raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
            if row.state == QUARANTINED:
                return
            identity = row.identity(self._cluster_id)
            # UNKNOWN before anything moves: a crash must not find it merely missing.
            self._control.change_row(segment_id, damage=why)
            log = self._forget(segment_id)
            if log is not None:
                log.handle.close()
            name = file_name(identity)
            if self._fs.exists(name):
                self._fs.rename(name, aside_name(self._fs, name))
                self._sync_folder(folder_name(identity))
            points.forget(self._index, points.key_prefix(identity))
            self._control.change_row(segment_id, state=QUARANTINED)
        _log.error("segment %d quarantined: %s", segment_id, why)

    def delete(self, segment_ids: Sequence[int], token: int) -> None:
        """See ``SegmentStore.delete``. Raises FencedError for a stale token."""
        with self._life:
            intents = [
                DeleteIntent(each.segment_id, each.generation, self._name_of(each), token)
                for each in map(self._control.row, dict.fromkeys(segment_ids))
                if each is not None
            ]
            if intents:
                self._control.put_intents(intents, token)
                self._removal.finish(intents)

    def _name_of(self, row: ReplicaRow) -> str:
        return file_name(row.identity(self._cluster_id))

    def _forget(self, segment_id: int) -> SegmentLog | None:
        return self._logs.pop(segment_id, None)

    def _sync_folders(self, names: Sequence[str]) -> None:
        for name in names:
            self._sync_folder(name)

    def _sync_folder(self, name: str) -> None:
        """Of a folder in which a name has changed: whose it was is settled in the control store."""
        self._fail_stop.sync([], partial(self._fs.sync_dir, name))

    # --- promises and the end of the process --------------------------------------------------

    def set_promises(self, promises: Sequence[tuple[int, int]], token: int) -> None:
        """See ``SegmentStore.set_promises``."""
        self._control.set_promises(promises, token)

    def promised_epoch(self, segment_id: int) -> int:
        """See ``SegmentStore.promised_epoch``."""
        return self._control.promised_epoch(segment_id)

    def sync_index(self) -> None:
        """See ``SegmentStore.sync_index``."""
        try:
            self._index.flush()
        except SHORTAGES as error:
            _log.warning("the index lags: %s", error)
        self._control.keep_reserve()

    def close(self) -> None:
        """See ``SegmentStore.close``. Who opened index and control store closes them."""
        for log in self._logs.values():
            log.handle.close()
        self._logs.clear()
        self.sync_index()
