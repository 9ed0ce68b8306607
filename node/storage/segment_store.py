"""The default storage engine: one file per segment, a RocksDB index, a control store.

Bytes go through ``group_commit.py``, start-up through ``recovery.py``; here is the life
of a replica: created, confirmed, read, cut, sealed, set aside, deleted. Whatever must survive is
in the control store before anyone is told, and files go only by an intent that is stored there.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    NotReplicaError,
    OutOfSpaceError,
    StorageError,
)
from node.executor import Lock
from node.ports import DiskFailedError, File, FileSystem, Index
from node.storage import segment_index
from node.storage.control_store import (
    CONFIRMED,
    PREPARED,
    QUARANTINED,
    SEALED,
    ControlStore,
    DeleteIntent,
    ReplicaRow,
)
from node.storage.fail_stop import FailStop
from node.storage.group_commit import GroupCommit
from node.storage.recovery import Recovery, Verdict, report_unknown_files
from node.storage.recycle import FOLDER, RecyclePool
from node.storage.removal import Removal
from node.storage.salvage import LogSalvage
from node.storage.segment_file import (
    FILE_HEADER_LENGTH,
    aside_name,
    confirm_slot,
    empty_tail,
    encode_file_header,
    file_name,
    folder_name,
    set_aside_leftover,
)
from node.storage.segment_log import FIRST_ALLOCATION_BYTES, OpenFiles, SegmentLog, StoreSettings
from node.storage.segment_reader import LogVerification, SegmentReader
from node.store import AppendRequest, LogTail, RecoveredReplica, SegmentIdentity

_NO_TAIL = LogTail(-1, 0, b"", 0, 0)
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
        self._index = index
        self._control = control
        self._cluster_id = cluster_id
        self._settings = settings
        self._logs: dict[int, SegmentLog] = {}
        self._life = Lock()
        """Serializes what adds and removes files; never taken by appends and reads."""
        file_system.make_dirs("segments")
        self._pool = RecyclePool(file_system, settings)
        self._open_files = OpenFiles(settings.open_files_max)
        self._reader = SegmentReader(index)
        self._fail_stop = FailStop(control)
        self._removal = Removal(
            *(file_system, index, control, self._pool), self._sync_folders, self._forget
        )
        self.salvage = LogSalvage(file_system, control, self._fail_stop, self._judged)
        self._commit = GroupCommit(file_system, index, settings, self._appendable, self._fail_stop)

    # --- start-up -----------------------------------------------------------------------------

    def recover(self) -> list[RecoveredReplica]:
        """See ``SegmentStore.recover``."""
        if intents := self._control.intents():
            self._removal.finish(intents)
        poisoned = self._control.get("poisoned")
        recovery = self._recovery()
        found: list[RecoveredReplica] = []
        damaged: list[ReplicaRow] = []
        for row in self._control.rows():
            damage = row.damage
            if poisoned and not damage and row.state == CONFIRMED:
                damage = f"a sync had failed: {poisoned.decode()}"
            verdict = Verdict(damage=damage, why=damage) if damage else recovery.judge(row)
            if verdict.damage and verdict.damage != row.damage:
                damaged.append(replace(row, damage=verdict.damage))
            found.append(self._take_over(row, verdict))
        self._control.put_rows(damaged)
        if poisoned:
            self._control.put(poisoned=None)
        report_unknown_files(
            self._fs, {file_name(row.identity(self._cluster_id)) for row in self._control.rows()}
        )
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
            if verdict.file is not None:
                verdict.file.close()
            return replica
        assert verdict.file is not None
        if verdict.cut_bytes:
            _log.warning("segment %d: %s", row.segment_id, verdict.why)
        if row.rebuilding:
            replica.intact, replica.why = False, "rebuilding: not certified as complete"
        log = self._opened(identity, verdict.file, row.start_timestamp_ms)
        log.end = (verdict.tail, verdict.position)
        if row.state == SEALED:
            log.is_sealed = True
            self._open_files.used(log)
            replica.sealed_end_offset = row.end_offset
            replica.seal_digest, replica.full_digest = row.seal_digest, row.full_digest
        else:
            replica.headers = verdict.headers
        return replica

    def _opened(self, identity: SegmentIdentity, file: File, start_timestamp_ms: int) -> SegmentLog:
        start = _NO_TAIL
        if identity.base_offset >= 0:
            start = empty_tail(identity, start_timestamp_ms)
        log = SegmentLog(identity, file_name(identity), file, start, self._settings, self._fs.open)
        self._logs[identity.segment_id] = log
        return log

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
        results: list[IcecoreError | None] = []
        made: list[tuple[ReplicaRow, SegmentIdentity, File]] = []
        with self._life:
            for identity in identities:
                try:
                    created = self._create_file(identity, starts.get(identity.segment_id))
                except DiskFailedError:
                    raise
                except IcecoreError as error:
                    results.append(error)
                    continue
                if created is not None:
                    row = replace(created[0], rebuilding=1) if is_copy else created[0]
                    made.append((row, identity, created[1]))
                results.append(None)
            if made:
                folders = {folder_name(identity) for _, identity, _ in made}
                folders.add(FOLDER)  # some may have come from the pool
                self._sync_folders(sorted(folders))
            # Of what is here now only: a promise tells that the segment was here once.
            promises = [(row.segment_id, row.epoch) for row, _, _ in made]
            self._control.put_rows([row for row, _, _ in made], promises)
            for row, _, file in made:
                self._opened(row.identity(self._cluster_id), file, row.start_timestamp_ms)
        return results

    def _sync_folders(self, folders: Sequence[str]) -> None:
        for folder in folders:
            self._fail_stop.sync([], partial(self._fs.sync_dir, folder))

    def _create_file(
        self, identity: SegmentIdentity, start: tuple[bytes, int] | None
    ) -> tuple[ReplicaRow, File] | None:
        """A synced file with its header; None when the replica is there already."""
        self._cluster_id = self._cluster_id or identity.cluster_id  # just registered
        if identity.cluster_id != self._cluster_id:
            raise InvalidRequestError("a replica of another cluster")
        row = self._control.row(identity.segment_id)
        is_rebuilding = 0
        if row is not None:
            have = replace(row.identity(self._cluster_id), base_offset=-1)
            if have != replace(identity, base_offset=-1) and row.state != QUARANTINED:
                raise InvalidRequestError(f"segment {identity.segment_id} is here as {have}")
            if identity.segment_id in self._logs:
                return None
            if row.state in (CONFIRMED, SEALED):
                raise StorageError(f"segment {identity.segment_id} is UNKNOWN: {row.damage}")
            is_rebuilding = int(row.state == QUARANTINED)
        name = file_name(identity)
        self._fs.make_dirs(folder_name(identity))
        if self._fs.exists(name):
            is_rebuilding |= set_aside_leftover(self._fs, name)
        header = encode_file_header(identity, is_confirmed=start is not None)
        file = self._new_file(identity.segment_id, name, header)
        row = ReplicaRow.prepared(identity, is_rebuilding)
        if start is not None:
            row = row.confirmed(identity.base_offset, *start)
        return row, file

    def _new_file(self, segment_id: int, name: str, header: bytes) -> File:
        recycled = self._pool.take(segment_id)
        if recycled is not None:
            file = self._fs.open(recycled)
            file.pwritev([header], 0)
            self._fail_stop.sync([segment_id], file.fdatasync)
            self._fs.rename(recycled, name)
            return file
        file = self._fs.open(name, create=True)
        try:
            file.allocate(0, min(FIRST_ALLOCATION_BYTES, self._settings.allocation_step_bytes))
            file.pwritev([header], 0)
            self._fail_stop.sync([segment_id], file.fdatasync)
        except StorageError:
            file.close()
            self._fs.unlink(name)
            raise
        return file

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
        log.file.pwritev([slot], position)
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

    def _readable(self, segment_id: int) -> SegmentLog:
        log = self._find(segment_id)
        if log.is_sealed:
            self._open_files.used(log)
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
        return self._reader.read(self._readable(segment_id), offset, max_bytes, end_offset)

    def offset_for_time(
        self, segment_id: int, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """See ``SegmentStore.offset_for_time``."""
        return self._reader.offset_for_time(self._readable(segment_id), timestamp_ms, end_offset)

    def tail_at(self, segment_id: int, end_offset: int) -> LogTail:
        """See ``SegmentStore.tail_at``."""
        return self._reader.end_at(self._readable(segment_id), end_offset)[0]

    def headers(self, segment_id: int, end_offset: int) -> list[bytes]:
        """See ``SegmentStore.headers``."""
        return self._reader.headers(self._readable(segment_id), end_offset)

    def full_digest(self, segment_id: int) -> bytes:
        """See ``SegmentStore.full_digest``. Raises StorageError when a batch is damaged."""
        row = self._control.row(segment_id)
        if row is None or row.state != SEALED:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        if row.full_digest:
            return row.full_digest
        digest = self._reader.full_digest(self._readable(segment_id))
        self._control.change_row(segment_id, full_digest=digest)
        return digest

    def verification(self, segment_id: int) -> LogVerification:
        """See ``SegmentStore.verification``."""
        log = self._readable(segment_id)
        if not log.is_sealed:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        return LogVerification(log)

    # --- the end of a log ---------------------------------------------------------------------

    def truncate(self, segment_id: int, end_offset: int) -> LogTail:
        """See ``SegmentStore.truncate``."""
        log = self._find(segment_id)
        if log.is_sealed or not log.is_confirmed:
            raise InvalidRequestError(f"segment {segment_id} cannot be truncated")
        tail, position = self._reader.end_at(log, end_offset)
        # What was known stays known: the tripwire compares it with later decisions.
        known = max(tail.max_known_high_watermark, log.tail.max_known_high_watermark)
        tail = replace(tail, max_known_high_watermark=known)
        segment_index.forget_from(self._index, log.prefix, position, tail)
        log.file.truncate(position)
        self._sync_file(log)
        log.rewind(tail, position, self._settings)
        return tail

    def seal(self, segment_id: int, end_offset: int, seal_digest: bytes) -> None:
        """See ``SegmentStore.seal``. Raises InvalidRequestError when end or digest differ."""
        log = self._find(segment_id)
        tail, position = log.end
        if not log.is_confirmed or (tail.end_offset, tail.digest) != (end_offset, seal_digest):
            raise InvalidRequestError(
                f"segment {segment_id} ends at {tail.end_offset} with digest {tail.digest.hex()}, "
                f"to be sealed at {end_offset} with {seal_digest.hex()}"
            )
        if log.is_sealed:
            return
        log.file.truncate(position)
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
        self._open_files.used(log)

    def certify(self, segment_id: int) -> None:
        """See ``SegmentStore.certify``."""
        row = self._control.row(segment_id)
        if row is not None and row.rebuilding:
            self._control.change_row(segment_id, rebuilding=0)

    # --- setting aside and deleting -----------------------------------------------------------

    def condemn(self, segment_ids: Sequence[int], why: str) -> None:
        """See ``SegmentStore.condemn``."""
        rows = [self._control.row(segment_id) for segment_id in segment_ids]
        self._control.put_rows(
            [replace(row, damage=why) for row in rows if row is not None and not row.damage]
        )

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
                log.close()
            name = file_name(identity)
            if self._fs.exists(name):
                self._fs.rename(name, aside_name(self._fs, name))
                self._sync_folders([folder_name(identity)])
            segment_index.forget(self._index, segment_index.key_prefix(identity))
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
        self._open_files.forget(segment_id)
        return self._logs.pop(segment_id, None)

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
        except OutOfSpaceError as error:
            _log.warning("the index lags: %s", error)
        self._control.keep_reserve()

    def close(self) -> None:
        """See ``SegmentStore.close``. Who opened index and control store closes them."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self.sync_index()
        self._control.put(clean_shutdown=1)
