"""The engine of file model ``shared``: one append file per I/O worker, one sync for all its logs.

What a write looks like is in ``frames.py``, who writes in ``lane.py`` and ``group_writer.py``, what
a start makes of it in ``file_scan.py``, ``trails.py`` and ``judgement.py``, how space comes back in
``compaction.py``. Here is the life of a log: begun, confirmed, cut, sealed, set aside, dropped.
Batches stay where they are when a log is sealed, and are read from there until it is dropped.

Which logs are in use is known here alone (``_logs``): a log gets in when it was judged at start or
when the control store has its record. The caller sees to it that only one thread at a time creates,
sets aside and drops.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from icecore.errors import IcecoreError, OutOfSpaceError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, FileSystem
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.batches.log_table import LogTable
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
    io_worker,
)
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.shared_engine.compaction import Compaction
from icecore_node.storage.shared_engine.frames import BEGUN, GONE, NO_BATCHES, STANDS, Entry
from icecore_node.storage.shared_engine.group_writer import GroupWriter
from icecore_node.storage.shared_engine.lane import Block, Lane
from icecore_node.storage.shared_engine.shared_files import SharedFiles
from icecore_node.storage.shared_engine.shared_index import SharedIndex
from icecore_node.storage.shared_engine.shared_log import FileRun, RunShortcuts, SharedLog, place_of
from icecore_node.storage.shared_engine.shared_remains import SharedRemains
from icecore_node.storage.shared_engine.start_up import SharedStartUp
from icecore_node.storage.shared_engine.trails import FoundRun, LogKey

_log = logging.getLogger(__name__)


class SharedEngine:
    """``Engine`` over the shared files of one data folder."""

    appends_block: ClassVar[bool] = True

    def __init__(
        self,
        file_system: FileSystem,
        index: DerivedIndex,
        settings: LogSettings,
        condemn: Condemn,
    ) -> None:
        """
        Args:
            file_system: The data folder.
            index: Notes of how far files are on disk; somebody else flushes it.
            settings: Sizes.
            condemn: Told of logs that can't be trusted any more.
        """
        self._condemn = condemn
        self._settings = settings
        self._logs = LogTable[SharedLog]()
        self._making: dict[SegmentId, SharedLog] = {}
        """Begun, and not remembered yet."""
        self._untrusted: dict[SegmentId, list[FoundRun]] = {}
        """Runs in the place of logs that are not in use."""
        self._leftovers: dict[LogKey, bool] = {}
        """Logs that only shared files tell of, and whether each was confirmed."""
        self._gone_early: list[SegmentIdentity] = []
        self._has_started = False
        self._fail_stop = FailStop(condemn)
        self._files = SharedFiles(file_system, index, self._fail_stop)
        self._lanes = [
            Lane(self._files, self._fail_stop, settings, partial(self._standing, number))
            for number in range(settings.io_workers)
        ]
        self._compaction = Compaction(self._files, self._logs, settings)
        self._writer = GroupWriter(
            self._lanes, self._files, self._logs, self._logs.appendable, self._compaction
        )
        self._remains = SharedRemains(
            file_system,
            self._files,
            self._fail_stop,
            lambda identity: self._lanes[self._lane(identity)],
            lambda segment_id: self._untrusted.get(segment_id, ()),
            self._use_restored,
            lambda: [segment_id for segment_id, _ in self._leftovers],
        )
        self.reader = BatchReader(self._logs, RunShortcuts())
        self.salvage = ProvenLogs(self._remains)
        self.index = SharedIndex(self.reader.find, self._free)

    def _lane(self, identity: SegmentIdentity) -> int:
        return io_worker(identity.topic_id, identity.partition, len(self._lanes))

    def _standing(self, lane: int) -> list[Entry]:
        logs = {**self._making, **self._logs}
        return [_entry(log.identity, STANDS, log.end) for log in logs.values() if log.lane == lane]

    def _new_log(self, identity: SegmentIdentity, start_timestamp_ms: int) -> SharedLog:
        return SharedLog(identity, start_timestamp_ms, self._lane(identity), self._files)

    # --- start-up -----------------------------------------------------------------------------

    def start_up(
        self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]
    ) -> list[FoundLog]:
        """See ``Engine.start_up``."""
        judged = SharedStartUp(self._files, self._fail_stop).judge(logs, untrusted)
        damage: dict[SegmentId, str] = {}
        for known, verdict in zip(logs, judged.verdicts, strict=True):
            segment_id = known.identity.segment_id
            if verdict.damage:
                damage[segment_id] = verdict.damage
            else:
                self._use(known, verdict.tail, verdict.runs)
        self._untrusted = judged.untrusted
        for segment_id, runs in judged.untrusted.items():
            self._files.count_all(segment_id, _lengths(runs))
        for identity in self._gone_early:
            judged.leftovers.pop((identity.segment_id, identity.generation), None)
        self._leftovers = judged.leftovers
        self._condemn(damage)
        self._settle()
        self._has_started = True
        if self._is_settled():
            self._files.settled(judged.lost)
        return [FoundLog(one.tail, one.why, one.damage, one.headers) for one in judged.verdicts]

    def _settle(self) -> None:
        """Begin a file in each lane that has logs, so that what was judged is judged once: what it
        says stands settles what older files say. Without room for that the next append does it."""
        gone = [_gone(each) for each in self._gone_early]
        for number, lane in enumerate(self._lanes):
            if gone or any(log.lane == number for log in self._logs.values()):
                try:
                    lane.commit([Block(gone)] if gone else [], [], _nothing)
                except OutOfSpaceError as error:
                    event(_log, logging.WARNING, "not_settled", lane=number, error=error)
                gone = []

    def _use(self, known: KnownLog, tail: LogTail, runs: Sequence[FileRun]) -> SharedLog:
        """From now on there is such a log."""
        log = self._new_log(known.identity, known.start_timestamp_ms)
        position = 0
        for run in runs:
            place = place_of(run.number, run.position)
            log.runs.add(run.first_offset, position, place, run.max_append_timestamp_ms)
            position += run.length
        if known.identity.base_offset >= 0:
            log.end = (tail, position)
        log.is_sealed = known.sealed is not None
        segment_id = known.identity.segment_id
        self._files.count_all(segment_id, _lengths(runs))
        self._logs[segment_id] = log
        return log

    def _use_restored(self, known: KnownLog, tail: LogTail, runs: Sequence[FileRun]) -> FoundLog:
        segment_id = known.identity.segment_id
        self._untrusted.pop(segment_id, None)
        self._use(known, tail, runs)
        return FoundLog(tail, "clean", headers=self.reader.headers(segment_id, tail.end_offset))

    # --- create and confirm -------------------------------------------------------------------

    def create(
        self, logs: Sequence[NewLog], remember: Callable[[Sequence[CreatedLog]], None]
    ) -> dict[SegmentId, IcecoreError]:
        """See ``Engine.create``: of each lane all with one sync."""
        errors: dict[SegmentId, IcecoreError] = {}
        new = {
            each.identity.segment_id: self._new_log(each.identity, each.start_timestamp_ms)
            for each in logs
        }
        for number, lane in enumerate(self._lanes):
            own = {id_: log for id_, log in new.items() if log.lane == number}
            if not own:
                continue
            self._making.update(own)
            try:
                lane.commit(
                    [Block([_entry(log.identity, BEGUN, log.end) for log in own.values()])],
                    [],
                    _nothing,
                )
            except DiskFailedError:
                raise
            except IcecoreError as error:
                errors.update(dict.fromkeys(own, error))
        made = {id_: log for id_, log in new.items() if id_ not in errors}
        try:
            remember([CreatedLog(id_, self._replaces(log)) for id_, log in made.items()])
            self._logs.update(made)
        finally:
            self._making.clear()
        return errors

    def _replaces(self, log: SharedLog) -> bool:
        """Return whether files told of a log in its place that may have counted."""
        identity = log.identity
        return self._leftovers.pop((identity.segment_id, identity.generation), False)

    def confirm(
        self, identity: SegmentIdentity, start_timestamp_ms: int, remember: Callable[[], object]
    ) -> LogTail:
        """See ``Engine.confirm``: the control store has the base, files are not told of it."""
        log = self.reader.find(identity.segment_id)
        remember()
        log.confirm(identity, start_timestamp_ms)
        return log.end[0]

    # --- append -------------------------------------------------------------------------------

    def append_group(self, requests: Sequence[AppendRequest]) -> None:
        """See ``Engine.append_group``."""
        self._writer.append(requests)

    # --- the end of a log ---------------------------------------------------------------------

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """See ``Engine.truncate``. What is cut off stays where it is, dead: a frame says so."""
        log = self.reader.find(segment_id)
        tail, position = self.reader.cut_at(log, end_offset)
        entry = _entry(log.identity, STANDS, (tail, position))

        def done(*_: object) -> None:
            log.rewind(tail, position)
            self._files.count_all(segment_id, _lengths(log.all_runs()))

        try:
            self._lanes[log.lane].commit([Block([entry])], [segment_id], done)
        except DiskFailedError as error:
            log.failed = error
            raise
        return tail

    def seal(
        self,
        segment_id: SegmentId,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[LogEnd], None],
    ) -> None:
        """See ``Engine.seal``: all of it is durable, and there is no space of its own."""
        self._logs.seal(segment_id, end_offset, seal_digest, remember)

    # --- setting aside and dropping -----------------------------------------------------------

    def set_aside(self, identity: SegmentIdentity) -> None:
        """See ``Engine.set_aside``."""
        segment_id = identity.segment_id
        log = self._logs.pop(segment_id, None)
        if log is not None:
            self._untrusted[segment_id] = [_found_run(run) for run in log.all_runs()]
        runs = self._untrusted.get(segment_id, [])
        self._remains.set_aside(identity, runs)
        self._release(identity)

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        """See ``Engine.drop``. A frame says that they are gone, so that a log that is made in their
        place later is known to replace nothing."""
        self._remains.drop(identities)
        if not self._has_started:
            self._gone_early += identities
            return
        here: dict[int, list[SegmentIdentity]] = {}
        for identity in identities:
            if self._logs.pop(identity.segment_id, None) is not None:
                self._untrusted.setdefault(identity.segment_id, [])
            if self._is_told_of(identity):
                here.setdefault(self._lane(identity), []).append(identity)
        for lane, gone in here.items():
            try:
                self._lanes[lane].commit([Block([_gone(each) for each in gone])], [], _nothing)
            except OutOfSpaceError as error:  # what goes makes room
                event(_log, logging.WARNING, "drop_not_told", logs=len(gone), error=error)
            for each in gone:
                self._release(each)
        self._compaction.consider()
        self._free()

    def _is_told_of(self, identity: SegmentIdentity) -> bool:
        key = (identity.segment_id, identity.generation)
        return identity.segment_id in self._untrusted or key in self._leftovers

    def _release(self, identity: SegmentIdentity) -> None:
        """Nothing of it is kept; not while a group is written, which may have something of it."""
        segment_id = identity.segment_id
        self._untrusted.pop(segment_id, None)
        self._leftovers.pop((segment_id, identity.generation), None)
        lane = self._lanes[self._lane(identity)]
        lane.settle(lambda: self._files.count_all(segment_id, {}))

    def _is_settled(self) -> bool:
        used = {log.lane for log in list(self._logs.values())}
        return self._has_started and all(self._lanes[number].has_file for number in used)

    def _free(self) -> bool:
        """Remove files in which nothing lives, once what stands is in newer ones of each lane."""
        if not self._is_settled():
            return False
        is_any_gone = self._files.remove_dead()
        if is_any_gone:
            self._compaction.consider()
        return is_any_gone

    # --- the end of the process ---------------------------------------------------------------

    def close(self) -> None:
        """See ``Engine.close``."""
        self._logs.clear()
        self._files.close()


def _entry(identity: SegmentIdentity, kind: int, end: Place) -> Entry:
    """Return the entry for a log without new batches."""
    tail, position = end
    return Entry(
        identity.segment_id,
        identity.generation,
        kind,
        identity.base_offset,
        tail.end_offset if position else NO_BATCHES,
        0,
        tail.last_header_crc32c if position else 0,
        tail.max_known_high_watermark,
    )


def _gone(identity: SegmentIdentity) -> Entry:
    return Entry(identity.segment_id, identity.generation, GONE, -1, NO_BATCHES, 0, 0, 0)


def _found_run(run: FileRun) -> FoundRun:
    return FoundRun(
        run.first_offset, run.end_offset, run.number, run.position, run.length, is_synced=True
    )


def _lengths(runs: Sequence[FileRun | FoundRun]) -> dict[int, int]:
    """Bytes by file."""
    lengths: dict[int, int] = {}
    for run in runs:
        lengths[run.number] = lengths.get(run.number, 0) + run.length
    return lengths


def _nothing(*_: object) -> None:
    """A commit after which nothing moves."""
