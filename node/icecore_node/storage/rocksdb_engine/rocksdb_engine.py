"""The engine ``rocksdb``: active logs in one database, whose log is synced once for all of them.

Batches are values under their position in the log (``log_keys.py``), and each change that adds or
takes away some has the tail that they make with it. So a log that does not end, by its chain and
all CRCs, where its tail says is damaged in the middle, and UNKNOWN; what a crash tears off was
never synced, and its tail goes with it. A sealed log stays here until it is handed over to the
segment engine.
"""

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.batches.log_table import LogTable
from icecore_node.storage.batches.no_index import NoIndex
from icecore_node.storage.batches.proven_logs import ProvenLogs
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import (
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
from icecore_node.storage.rocksdb_engine import log_keys as keys
from icecore_node.storage.rocksdb_engine.database_commit import DatabaseCommit
from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange, LogDatabase
from icecore_node.storage.rocksdb_engine.log_judge import LogJudge
from icecore_node.storage.rocksdb_engine.log_keys import KeySlot
from icecore_node.storage.rocksdb_engine.rocks_log import RocksLog, StoredBatches
from icecore_node.storage.rocksdb_engine.rocks_remains import (
    DatabaseRemains,
    cut_back,
    one_key,
    slots_of,
)
from icecore_node.storage.rocksdb_engine.rocks_shortcuts import RocksShortcuts

_log = logging.getLogger(__name__)


class RocksdbEngine:
    """``Engine`` over a database."""

    appends_block: ClassVar[bool] = True

    def __init__(self, database: LogDatabase, change_bytes_max: int, condemn: Condemn) -> None:
        """
        Args:
            database: Of this engine alone.
            change_bytes_max: See ``DatabaseCommit``.
            condemn: Told of logs that can't be trusted any more.
        """
        self._database = database
        self._condemn = condemn
        self._logs = LogTable[RocksLog]()
        self._fail_stop = FailStop(condemn)
        self._judge = LogJudge(database)
        self._commit = DatabaseCommit(
            database, self._logs.appendable, self._fail_stop, change_bytes_max
        )
        self.reader = BatchReader(self._logs, RocksShortcuts())
        remains = DatabaseRemains(database, self._logs, self._change, self._found)
        self.salvage = ProvenLogs(remains)
        self.index = NoIndex(self.reader.find)

    def _change(self, change: DatabaseChange, *segment_ids: SegmentId) -> None:
        """Durable on return. A sync that fails condemns these, and ends the process."""
        self._database.write(change)
        self._fail_stop.sync(segment_ids, self._database.sync)

    # --- start-up -----------------------------------------------------------------------------

    def start_up(
        self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]
    ) -> list[FoundLog]:
        """See ``Engine.start_up``."""
        found = [self._found(log) for log in logs]
        self._condemn(
            {
                log.identity.segment_id: one.damage
                for log, one in zip(logs, found, strict=True)
                if one.damage
            }
        )
        return found

    def _found(self, known: KnownLog) -> FoundLog:
        log, found = self._judge.judge(known)
        if log is not None:
            self._logs[known.identity.segment_id] = log
        return found

    # --- create and confirm -------------------------------------------------------------------

    def create(
        self, logs: Sequence[NewLog], remember: Callable[[Sequence[CreatedLog]], None]
    ) -> dict[SegmentId, IcecoreError]:
        """See ``Engine.create``: one change and one sync for all."""
        try:
            made, created = self._make(logs)
        except DiskFailedError:
            raise
        except IcecoreError as error:
            return {new.identity.segment_id: error for new in logs}
        try:
            remember(created)
        except IcecoreError:
            self._undo(made)
            raise
        self._logs.update(made)
        return {}

    def _make(self, logs: Sequence[NewLog]) -> tuple[dict[SegmentId, RocksLog], list[CreatedLog]]:
        number = keys.read_number(self._database.get(keys.LAST_SLOT))
        made: dict[SegmentId, RocksLog] = {}
        created: list[CreatedLog] = []
        puts: list[tuple[bytes, bytes]] = []
        for new in logs:
            number += 1
            segment_id, base_offset = new.identity.segment_id, new.identity.base_offset
            before, moved = self._moved_aside(segment_id)
            puts += moved
            puts.append((keys.log_key(segment_id), keys.pack_slot(KeySlot(number, base_offset))))
            created.append(CreatedLog(segment_id, before))
            handle = StoredBatches(self._database, number)
            made[segment_id] = RocksLog(new.identity, new.start_timestamp_ms, handle)
        puts.append((keys.LAST_SLOT, keys.pack_number(number)))
        self._change(DatabaseChange(puts))
        return made, created

    def _moved_aside(self, segment_id: SegmentId) -> tuple[bool, list[tuple[bytes, bytes]]]:
        """Return whether a log in this place may have been confirmed, and the rows that set it
        aside."""
        value = self._database.get(keys.log_key(segment_id))
        if value is None:
            return False, []
        slot = keys.read_slot(value)
        has_tail = self._database.get(keys.tail_key(slot.number)) is not None
        return slot.base_offset >= 0 or has_tail, [(keys.aside_key(segment_id, slot.number), value)]

    def _undo(self, made: dict[SegmentId, RocksLog]) -> None:
        """They hold nothing. What stays of them counts as a log that may have been confirmed."""
        try:
            self._database.write(
                DatabaseChange(cuts=[one_key(keys.log_key(each)) for each in made])
            )
        except IcecoreError as error:
            event(_log, logging.WARNING, "not_undone", segments=len(made), error=error)

    def confirm(
        self, identity: SegmentIdentity, start_timestamp_ms: int, remember: Callable[[], object]
    ) -> LogTail:
        """See ``Engine.confirm``: the base is in the control store alone. A tail is of a log that
        was cut back to another base."""
        log = self.reader.find(identity.segment_id)
        tail_key = keys.tail_key(log.handle.slot)
        if self._database.get(tail_key) is not None:
            self._change(DatabaseChange(cuts=[one_key(tail_key)]), identity.segment_id)
        remember()
        log.confirm(identity, start_timestamp_ms)
        return log.end[0]

    # --- append and the end of a log ----------------------------------------------------------

    def append_group(self, requests: Sequence[AppendRequest]) -> None:
        """See ``Engine.append_group``."""
        self._commit.append(requests)

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """See ``Engine.truncate``: the value that holds the border is written again, shorter."""
        log = self.reader.find(segment_id)
        end = self.reader.cut_at(log, end_offset)
        self._change(cut_back(log.handle, end), segment_id)
        log.rewind(end)
        return end[0]

    def seal(
        self,
        segment_id: SegmentId,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[LogEnd], None],
    ) -> None:
        """See ``Engine.seal``: all of it is durable already."""
        self._logs.seal(segment_id, end_offset, seal_digest, remember)

    # --- setting aside and dropping -----------------------------------------------------------

    def set_aside(self, identity: SegmentIdentity) -> None:
        """See ``Engine.set_aside``."""
        segment_id = identity.segment_id
        self._forget(segment_id)
        _, moved = self._moved_aside(segment_id)
        if moved:
            self._change(DatabaseChange(moved, cuts=[one_key(keys.log_key(segment_id))]))

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        """See ``Engine.drop``."""
        cuts: list[tuple[bytes, bytes]] = []
        for identity in identities:
            segment_id = identity.segment_id
            self._forget(segment_id)
            slots = list(slots_of(self._database, segment_id))
            for slot in slots:
                cuts += [keys.batches_range(slot), one_key(keys.tail_key(slot))]
            if slots:
                cuts += [one_key(keys.log_key(segment_id)), keys.aside_range(segment_id)]
        if cuts:
            self._change(DatabaseChange(cuts=cuts))

    def _forget(self, segment_id: SegmentId) -> None:
        log = self._logs.pop(segment_id, None)
        if log is not None:
            log.handle.drop()  # before its values go, so that nobody takes that for damage

    def close(self) -> None:
        """See ``Engine.close``. Who opened the database closes it."""
        self._logs.clear()
