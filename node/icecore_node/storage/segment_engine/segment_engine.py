"""The default engine: one file per segment, and a RocksDB index that is derived from the files.

Bytes go through ``group_commit.py``, new files through ``creation.py``, start-up through
``start_up.py``, reads through ``batch_reader.py``; here is the life of a log: confirmed, cut,
sealed, set aside, dropped. Names and headers of files are in ``segment_names.py`` and
``segment_header.py``.

Which logs are in use is known here alone (``_logs``): a log gets in when it was judged at start or
when the control store has its record, and gets out before its file is touched. The caller sees to
it that only one thread at a time creates, sets aside and drops.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from icecore.errors import IcecoreError, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, FileSystem, Index
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.batches.batch_scan import empty_tail
from icecore_node.storage.batches.log_table import LogTable
from icecore_node.storage.batches.proven_logs import ProvenLogs
from icecore_node.storage.control.fail_stop import DiskLoss, FailStop
from icecore_node.storage.engine import (
    NO_TAIL,
    AppendRequest,
    Condemn,
    CreatedLog,
    FoundLog,
    KnownLog,
    LogEnd,
    LogTail,
    NewLog,
    SegmentIdentity,
)
from icecore_node.storage.files.open_files import LogFile, OpenFiles
from icecore_node.storage.index import points
from icecore_node.storage.index.coverage import Coverage
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.points import Put
from icecore_node.storage.index.recent_entries import EntryMemory
from icecore_node.storage.index.stored_entries import StoredEntries
from icecore_node.storage.segment_engine.appended_entries import AppendedEntries
from icecore_node.storage.segment_engine.creation import Creation
from icecore_node.storage.segment_engine.group_commit import GroupCommit
from icecore_node.storage.segment_engine.incoming import Incoming
from icecore_node.storage.segment_engine.index_files import IndexFiles
from icecore_node.storage.segment_engine.index_upkeep import IndexDue, IndexUpkeep
from icecore_node.storage.segment_engine.recycle import RecyclePool
from icecore_node.storage.segment_engine.removal import Removal
from icecore_node.storage.segment_engine.salvage import FileRemains
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH, confirm_slot
from icecore_node.storage.segment_engine.segment_index import SegmentIndex
from icecore_node.storage.segment_engine.segment_log import LogSettings, SegmentLog
from icecore_node.storage.segment_engine.segment_names import aside_name, file_name, folder_name
from icecore_node.storage.segment_engine.segment_shortcuts import SegmentShortcuts
from icecore_node.storage.segment_engine.start_up import FileVerdict, StartUp, report_unknown_files

_log = logging.getLogger(__name__)


class SegmentEngine:
    """``Engine`` over the segment files of one data folder."""

    appends_block: ClassVar[bool] = True

    def __init__(
        self,
        file_system: FileSystem,
        index: Index,
        settings: LogSettings,
        condemn: Condemn,
        *,
        loss: DiskLoss | None = None,
        beside: "SegmentEngine | None" = None,
    ) -> None:
        """
        Args:
            file_system: The data folder.
            index: Offset and time points, durable ends.
            settings: Sizes.
            condemn: Told of logs that can't be trusted any more.
            loss: Of a further disk, which may fail while the node goes on.
            beside: The engine of another disk that has the same index.
        """
        self._fs = file_system
        self._settings = settings
        self._condemn = condemn
        self._logs = LogTable[SegmentLog]()
        file_system.make_dirs("segments")
        self._fail_stop = FailStop(condemn, loss)
        self._open_files = OpenFiles(settings.open_files_max, file_system.open)
        pool = RecyclePool(file_system, settings, self._sync_folder)
        if beside is None:
            self._index = DerivedIndex(index, self._standing)
        else:
            self._index = beside.derived_index
            self._index.also_stands(self._standing)
        self.reader = BatchReader(self._logs, SegmentShortcuts(self._index))
        self.salvage = ProvenLogs(FileRemains(file_system, self._fail_stop, self._judged))
        self._make_index(settings)
        entries = AppendedEntries(self._due, settings.entries_per_run)
        self._commit = GroupCommit(
            file_system, self._index, settings, self._logs.appendable, self._fail_stop, entries
        )
        self._creation = Creation(file_system, settings, self._fail_stop, pool, self._open_files)
        self._removal = Removal(
            file_system, self._index, pool, self._sync_folder, self._forget, self._index_files
        )
        self._start_up = StartUp(file_system, self._index, settings, self._fail_stop)
        self.sealed_logs = Incoming(
            file_system,
            self._fail_stop,
            self._start_up,
            self._use,
            lambda log: self._close(log.identity.segment_id),
        )

    @property
    def derived_index(self) -> DerivedIndex:
        """The database, for other engines of this node that derive something."""
        return self._index

    def _make_index(self, settings: LogSettings) -> None:
        self._due, self._memory = IndexDue(), EntryMemory(settings.recent_entries_bytes_max)
        stored = StoredEntries(self._index, self._memory)
        self._index_files = IndexFiles(
            self._fs,
            self._open_files,
            self._fail_stop,
            self._sync_folder,
            settings.open_indexes_max,
        )
        upkeep = IndexUpkeep(
            self._logs,
            self.reader,
            stored,
            self._index_files,
            self._due,
            self._memory,
            settings,
        )
        self.index = SegmentIndex(self._index, self._logs, stored, upkeep, self._due, self._memory)

    # --- start-up -----------------------------------------------------------------------------

    def start_up(
        self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]
    ) -> list[FoundLog]:
        """See ``Engine.start_up``."""
        verdicts: dict[SegmentId, FileVerdict] = {}
        rebuilds = self._index.rebuilds
        self._judge_all(logs, verdicts)
        if self._index.rebuilds != rebuilds:
            # What was judged before has lost its points: once more, with a new index.
            for segment_id in list(self._logs):
                self._forget(segment_id)
            self._judge_all(logs, verdicts)
        known = {file_name(identity) for identity in untrusted}
        known.update(file_name(log.identity) for log in logs)
        try:
            report_unknown_files(self._fs, known)
        except StorageError as error:
            event(_log, logging.ERROR, "folders_unreadable", error=error)
        return [_found(verdicts[log.identity.segment_id]) for log in logs]

    def _judge_all(self, logs: Sequence[KnownLog], verdicts: dict[SegmentId, FileVerdict]) -> None:
        """Judge the logs that have no damage so far, use what is sound, condemn what is not."""
        damage: dict[SegmentId, str] = {}
        for log in logs:
            segment_id = log.identity.segment_id
            if segment_id in verdicts and verdicts[segment_id].damage:
                continue
            verdict = verdicts[segment_id] = self._start_up.judge(log)
            if verdict.damage:
                damage[segment_id] = verdict.damage
            else:
                self._use(log, verdict)
        self._condemn(damage)

    def _judged(self, log: KnownLog) -> FoundLog:
        verdict = self._start_up.judge(log)
        if not verdict.damage:
            self._use(log, verdict)
        return _found(verdict)

    def _use(self, known: KnownLog, verdict: FileVerdict) -> None:
        """From now on there is such a log."""
        if verdict.cut_bytes:
            event(
                _log,
                logging.WARNING,
                "tail_cut",
                segment_id=known.identity.segment_id,
                cut_bytes=verdict.cut_bytes,
                why=verdict.why,
            )
        log = self._opened(
            known.identity, known.start_timestamp_ms, verdict.size_bytes, is_new=False
        )
        log.end = (verdict.tail, verdict.position)
        log.is_sealed = known.sealed is not None
        self.index.adopt(log, verdict.headers)

    def _opened(
        self,
        identity: SegmentIdentity,
        start_timestamp_ms: int,
        size_bytes: int,
        *,
        is_new: bool = True,
    ) -> SegmentLog:
        start = NO_TAIL
        if identity.base_offset >= 0:
            start = empty_tail(identity, start_timestamp_ms)
        handle = LogFile(identity.segment_id, file_name(identity), self._open_files)
        coverage = Coverage(self._memory, is_loaded=is_new)
        log = SegmentLog(identity, handle, size_bytes, start, self._settings, coverage)
        self._logs[identity.segment_id] = log
        return log

    def _standing(self) -> list[Put]:
        """Return how far each log that is written is durable, for an index that is begun anew.
        Sealed ones get nothing, so that the next start scans them and gives them their points
        again.
        """
        return [
            points.pack_durable(log.prefix, log.end[1], log.tail)
            for log in list(self._logs.values())
            if log.is_confirmed and not log.is_sealed and not log.is_being_cut
        ]

    # --- create and confirm -------------------------------------------------------------------

    def create(
        self, logs: Sequence[NewLog], remember: Callable[[Sequence[CreatedLog]], None]
    ) -> dict[SegmentId, IcecoreError]:
        """See ``Engine.create``."""
        made, errors = self._creation.make(logs)
        try:
            remember([CreatedLog(one.log.identity.segment_id, one.replaces_data) for one in made])
        except IcecoreError:
            self._creation.undo(made)
            raise
        for each in made:
            self._opened(each.log.identity, each.log.start_timestamp_ms, each.size_bytes)
        return errors

    def confirm(
        self, identity: SegmentIdentity, start_timestamp_ms: int, remember: Callable[[], object]
    ) -> LogTail:
        """See ``Engine.confirm``."""
        log = self.reader.find(identity.segment_id)
        slot, position = confirm_slot(identity)
        with log.handle.using() as file:
            file.pwritev([slot], position)
            self._sync_file(log)
        remember()
        log.identity = identity
        tail = empty_tail(identity, start_timestamp_ms)
        log.base = log.end = (tail, FILE_HEADER_LENGTH)
        return tail

    # --- append -------------------------------------------------------------------------------

    def append_group(self, requests: Sequence[AppendRequest]) -> None:
        """See ``Engine.append_group``."""
        self._commit.append(requests)

    def sync(self, segment_ids: Sequence[SegmentId], *, from_now_on: bool = False) -> None:
        """See ``LateSyncs.sync``."""
        logs = [log for one in segment_ids if (log := self._logs.get(one)) is not None]
        if from_now_on:
            for log in logs:
                log.flush = None
        self._commit.sync(logs)

    def _sync_file(self, log: SegmentLog) -> None:
        """Sync outside a group: after an error the file is never trusted again."""
        try:
            self._commit.sync_file(log)
        except DiskFailedError as error:
            log.failed = error
            raise

    # --- the end of a log ---------------------------------------------------------------------

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """See ``Engine.truncate``."""
        log = self.reader.find(segment_id)
        tail, position = self.reader.cut_at(log, end_offset)
        with log.handle.using() as file:
            log.is_being_cut = True
            try:
                log.coverage.cut(end_offset)
                self._due.note(segment_id)
                points.forget_from(self._index, log.prefix, position, tail)
                file.truncate(position)
                self._sync_file(log)
                log.rewind(tail, position, self._settings)
            finally:
                log.is_being_cut = False
        return tail

    def seal(
        self,
        segment_id: SegmentId,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[LogEnd], None],
    ) -> None:
        """See ``Engine.seal``."""
        if self._logs.seal(segment_id, end_offset, seal_digest, remember, self._finish):
            self._due.note(segment_id)

    def _finish(self, log: SegmentLog) -> None:
        """The end of the file needs no sync: one that a power cut makes long again is cut by the
        next start, which knows the end from the record of the seal."""
        position = log.end[1]
        with log.handle.using() as file:
            file.truncate(position)
            if log.unsynced_bytes:
                self._sync_file(log)
        log.allocated = position

    # --- setting aside and dropping -----------------------------------------------------------

    def set_aside(self, identity: SegmentIdentity) -> None:
        """See ``Engine.set_aside``."""
        self._close(identity.segment_id)
        self._index_files.remove(identity)
        name = file_name(identity)
        if self._fs.exists(name):
            self._fs.rename(name, aside_name(self._fs, name))
            self._sync_folder(folder_name(identity))
        points.forget(self._index, points.key_prefix(identity))

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        """See ``Engine.drop``."""
        self._removal.remove(identities)

    def _close(self, segment_id: SegmentId) -> None:
        log = self._forget(segment_id)
        if log is not None:
            log.handle.close()

    def _forget(self, segment_id: SegmentId) -> SegmentLog | None:
        log = self._logs.pop(segment_id, None)
        if log is not None:
            log.coverage.close()  # so that nobody writes of it once it is forgotten
            self._commit.is_synced(log)  # nobody asks for it any more
        return log

    def _sync_folder(self, name: str) -> None:
        """Sync a folder in which a name has changed. A failed sync condemns no log.

        The control store settles which log a file belongs to.
        """
        self._fail_stop.sync([], partial(self._fs.sync_dir, name))

    # --- the end of the process ---------------------------------------------------------------

    def close(self) -> None:
        """See ``Engine.close``. Who opened files and index closes those."""
        self.index.close()
        for log in self._logs.values():
            log.coverage.close()
            log.handle.close()
        self._logs.clear()
        self.index.flush()


def _found(verdict: FileVerdict) -> FoundLog:
    return FoundLog(verdict.tail, verdict.why, verdict.damage, verdict.headers)
