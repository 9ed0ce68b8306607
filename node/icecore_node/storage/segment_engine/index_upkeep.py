"""Background work on the index of logs, in short steps (see ``LogIndex.maintain``), and the logs
that are due for it.

It works on one log after the other: gaps are read and get covers, entries become runs, runs are
merged. A sealed log gets an index file instead, and its entries in the database are deleted. Work
that frees memory comes first: recent entries that suffice for a run become one.

The work neither waits for appends nor makes them wait: it holds the lock of a log's coverage for
one short write at a time. A shortage ends the step, and the log is tried again later.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from icecore.codec.batch import HEADER_LENGTH, peek
from icecore.codec.index_entries import BatchEntries, batch_entries
from icecore.errors import SHORTAGES, NotReplicaError, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.batches.batch_scan import BatchScan
from icecore_node.storage.engine import OffsetRange
from icecore_node.storage.index.coverage import gaps_between
from icecore_node.storage.index.entries import Entries, sorted_entries
from icecore_node.storage.index.recent_entries import EntryMemory, RecentEntries
from icecore_node.storage.index.runs import merge
from icecore_node.storage.index.stored_entries import StoredEntries, StoredRun
from icecore_node.storage.segment_engine.index_files import IndexFiles, SealedCover, Told
from icecore_node.storage.segment_engine.index_runs import (
    CoverDamagedError,
    IndexRuns,
    RunPlan,
    Walk,
    idle_recents,
    walked,
)
from icecore_node.storage.segment_engine.sealed_index import Points
from icecore_node.storage.segment_engine.segment_log import LogSettings, SegmentLog

# --- logs that are due ----------------------------------------------------------------------------

# Which logs have something to be maintained: noted by whoever changes them, taken by who maintains
# them.
#
# Only single operations of dicts, so that a writer of a log waits for nobody.


class IndexDue:
    """Two sets in the order in which they were noted."""

    def __init__(self) -> None:
        self._full: dict[SegmentId, None] = {}
        self._due: dict[SegmentId, None] = {}

    def note(self, segment_id: SegmentId) -> None:
        """It has gaps, was sealed, or may have leftovers."""
        self._due[segment_id] = None

    def note_full(self, segment_id: SegmentId) -> None:
        """It has recent entries for a run, which take memory: these come first."""
        self._full[segment_id] = None

    def take_full(self) -> SegmentId | None:
        """The next one."""
        return _take(self._full)

    def take(self) -> SegmentId | None:
        """The next one."""
        return _take(self._due)


def _take(noted: dict[SegmentId, None]) -> SegmentId | None:
    for segment_id in list(noted):
        noted.pop(segment_id, None)
        return segment_id
    return None


READ_BYTES: Final = 1 << 20
"""Maximum bytes of a log that one step reads."""
BATCHES_PER_STEP: Final = 500
_log = logging.getLogger(__name__)


class IndexUpkeep:
    """Keeps the index of all logs in one data folder up to date; one caller at a time."""

    def __init__(
        self,
        logs: Mapping[SegmentId, SegmentLog],
        reader: BatchReader[SegmentLog],
        stored: StoredEntries,
        files: IndexFiles,
        due: IndexDue,
        memory: EntryMemory,
        settings: LogSettings,
    ) -> None:
        self._logs = logs
        self._reader = reader
        self._stored = stored
        self._files = files
        self._due = due
        self._memory = memory
        self._settings = settings
        self._runs = IndexRuns(stored)
        self._current: tuple[SegmentLog, Generator[None]] | None = None
        self._is_short = False
        """Nothing came to its end since a shortage was met."""
        self._is_closed = False

    def step(self) -> bool:
        """Do a little; whether there is more to do now."""
        if self._is_closed:
            return False
        if (full := self._fullest()) is not None:
            return self._relieve(full)
        if self._current is None:
            segment_id = self._due.take()
            if segment_id is None:
                return False
            log = self._logs.get(segment_id)
            if log is None:
                return True
            self._current = log, self._maintained(log)
        return self._go_on(*self._current)

    def close(self) -> None:
        """End what is under way: the process is about to."""
        self._is_closed = True

    def _go_on(self, log: SegmentLog, work: Generator[None]) -> bool:
        segment_id = log.identity.segment_id
        try:
            next(work)
            return True
        except StopIteration:
            self._is_short = False
        except NotReplicaError:
            pass  # it went away meanwhile
        except CoverDamagedError as error:
            self.drop(log, error)
        except DiskFailedError:
            raise
        except SHORTAGES as error:
            self._wait(segment_id, error)
            self._current = None
            self._due.note(segment_id)
            return False
        except StorageError as error:  # the log's own: whoever reads it finds that, too
            event(_log, logging.ERROR, "index_not_built", segment_id=segment_id, error=error)
        self._current = None
        return True

    def _wait(self, segment_id: SegmentId, error: Exception) -> None:
        if not self._is_short:
            event(_log, logging.WARNING, "index_waits", segment_id=segment_id, error=error)
        self._is_short = True

    def drop(self, log: SegmentLog, error: CoverDamagedError) -> None:
        """A cover that is damaged is a gap from now on, until it is built again."""
        segment_id = log.identity.segment_id
        event(_log, logging.ERROR, "index_damaged", segment_id=segment_id, error=error)
        if log.coverage.drop(error.cover) and isinstance(error.cover, SealedCover):
            self._files.remove(log.identity)
        self._due.note(segment_id)

    # --- memory -------------------------------------------------------------------------------

    def _fullest(self) -> SegmentLog | None:
        """The log whose recent entries must become a run now."""
        while (segment_id := self._due.take_full()) is not None:
            if (log := self._logs.get(segment_id)) is not None:
                return log
        if not self._memory.is_scarce:
            return None
        found = max(list(self._logs.values()), key=_recent_count, default=None)
        return found if found is not None and _recent_count(found) else None

    def _relieve(self, log: SegmentLog) -> bool:
        """One run, at once: it is what others wait for."""
        largest = max(_recents(log), key=lambda recent: recent.entries, default=None)
        if largest is None or not largest.entries:
            return True
        segment_id = log.identity.segment_id
        self._due.note(segment_id)
        try:
            if _drained(self._runs.of_recent(log, [largest])):
                return True
        except SHORTAGES as error:
            self._wait(segment_id, error)
        if largest not in log.coverage.covers:
            return True  # the log was cut, or went away
        # There is no database to take them. They may be read again when there is one.
        if self._memory.is_scarce:
            log.coverage.drop(largest)
        return False

    # --- one log ------------------------------------------------------------------------------

    def load(self, log: SegmentLog) -> None:
        """Load the covers that an earlier process left of a sealed log."""
        tail, identity = log.tail, log.identity
        if self._files.exists(identity):
            log.coverage.load([self._files.cover(log)])
        else:
            loaded = self._stored.load(log.prefix, identity.base_offset, tail.end_offset)
            log.coverage.load(loaded.covers)

    def _maintained(self, log: SegmentLog) -> Generator[None]:
        coverage = log.coverage
        if not log.is_confirmed:
            return
        if not coverage.is_loaded:
            self.load(log)
        if _has_file(log):
            self._forget_stored(log)
            return
        self._files.check_room(0)
        self._drop_leftovers(log)
        yield from self._fill_gaps(log)
        if log.is_sealed:
            yield from self._make_file(log)
            return
        for group in idle_recents(coverage.covers):
            yield from self._runs.of_recent(log, group)
        yield from self._runs.merged(log)

    def _drop_leftovers(self, log: SegmentLog) -> None:
        """No run of this log is being written now."""
        with log.coverage.lock:
            runs = [cover for cover in log.coverage.covers if isinstance(cover, StoredRun)]
            if not log.coverage.is_closed:
                self._stored.drop_leftovers(log.prefix, runs)

    def _fill_gaps(self, log: SegmentLog) -> Generator[None]:
        # The end is looked at first: covers come before it moves.
        span = (log.identity.base_offset, log.tail.end_offset)
        cuts = log.coverage.cuts
        for gap in gaps_between(log.coverage.covers, span):
            yield from _GapWalk(self._reader, self._runs, log, cuts, self._settings).fill(gap)

    def _make_file(self, log: SegmentLog) -> Generator[None]:
        """Once all of a sealed log is covered; what can't be stays as it is."""
        coverage, cuts = log.coverage, log.coverage.cuts
        base, end = log.identity.base_offset, log.tail.end_offset
        covers = coverage.covers
        if gaps_between(covers, (base, end)):
            return
        entries = sum(cover.entries for cover in covers)
        self._files.check_room(entries)
        told = yield from _told(log, self._settings)
        parts = self._relieved(merge([walked(cover) for cover in covers]))
        self._files.write(log, parts, entries, told)
        yield
        with coverage.lock:
            if coverage.cuts != cuts or not coverage.exchange(covers, [self._files.cover(log)]):
                return
        for cover in covers:
            cover.release()
        self._forget_stored(log)

    def _relieved(self, parts: Iterable[Entries]) -> Iterator[Entries]:
        """To write a file takes a while, in which appends go on."""
        for part in parts:
            if self._is_closed:
                raise NotReplicaError("the process ends")
            if (full := self._fullest()) is not None:
                self._relieve(full)
            yield part

    def _forget_stored(self, log: SegmentLog) -> None:
        """Delete the database's entries of a log that has an index file."""
        with log.coverage.lock:
            if not log.coverage.is_closed and self._stored.holds(log.prefix):
                self._stored.forget(log.prefix)


class _GapWalk:
    """Reads what no cover has, and makes runs of it."""

    def __init__(
        self,
        reader: BatchReader[SegmentLog],
        runs: IndexRuns,
        log: SegmentLog,
        cuts: int,
        settings: LogSettings,
    ) -> None:
        self._reader = reader
        self._runs = runs
        self._log = log
        self._cuts = cuts
        self._entries_per_run = settings.entries_per_run
        self._waiting: list[BatchEntries] = []
        self._count = 0
        self._start = 0
        """First offset of the waiting entries."""

    def fill(self, gap: OffsetRange) -> Generator[None]:
        """Runs for all batches in it that make sense."""
        self._start, end = gap
        at = self._start
        segment_id, base = self._log.identity.segment_id, self._log.identity.base_offset
        while at < end:
            data, at = self._reader.read(segment_id, at, READ_BYTES, end)
            if not data:
                break
            view, position = memoryview(data), 0
            while position < len(data):
                length, start, stop = peek(data, position)
                header = data[position : position + HEADER_LENGTH]
                body = view[position + HEADER_LENGTH : position + length]
                found = batch_entries(header, body, start - base)
                if found is None:
                    yield from self._flush(start)
                    self._start = stop
                else:
                    self._waiting.append(found)
                    self._count += len(found.ordinals) // 4
                    if self._count >= self._entries_per_run:
                        yield from self._flush(stop)
                position += length
            yield
        yield from self._flush(at)

    def _flush(self, end: int) -> Walk:
        start, waiting = self._start, self._waiting
        self._start, self._waiting, self._count = end, [], 0
        if start >= end:
            return True
        hashes = b"".join([found.hashes for found in waiting])
        ordinals = b"".join([found.ordinals for found in waiting])
        entries = Entries(np.frombuffer(hashes, "<u8"), np.frombuffer(ordinals, "<u4"))
        parts = [sorted_entries(entries)] if len(hashes) else []
        plan = RunPlan((start, end), [], 0, self._cuts)
        return (yield from self._runs.write(self._log, plan, parts))


def _told(log: SegmentLog, settings: LogSettings) -> Generator[None, None, Told]:
    """By all headers of a sealed log: where batches begin, and when their records happened."""
    points: list[tuple[int, int, int]] = []
    low, high = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    tail, position = log.base
    next_offset = next_position = -1
    while position < log.end[1]:
        with log.handle.using() as file:
            scan = BatchScan(file, log.identity, position, tail, log.end[1], with_bodies=False)
            for count, found in enumerate(scan, 1):
                header = found.header
                low = min(low, header.min_timestamp_ms)
                high = max(high, header.max_timestamp_ms)
                if header.base_offset >= next_offset or found.position >= next_position:
                    points.append((header.base_offset, found.position, header.append_timestamp_ms))
                    next_offset = header.base_offset + settings.records_per_point
                    next_position = found.position + settings.bytes_per_point
                if count == BATCHES_PER_STEP:
                    break
        if scan.stop and scan.position < log.end[1]:
            raise StorageError(f"broken at {scan.position}: {scan.stop}")
        tail, position = scan.tail, scan.position
        yield
    columns = np.array(points, np.int64).reshape(-1, 3).T
    return Told(Points(columns[0], columns[1], columns[2]), int(low), int(high))


def _has_file(log: SegmentLog) -> bool:
    covers = log.coverage.covers
    return len(covers) == 1 and isinstance(covers[0], SealedCover)


def _recents(log: SegmentLog) -> list[RecentEntries]:
    return [cover for cover in log.coverage.covers if isinstance(cover, RecentEntries)]


def _recent_count(log: SegmentLog) -> int:
    return max((recent.entries for recent in _recents(log)), default=0)


def _drained(walk: Walk) -> bool:
    """All steps at once."""
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return bool(end.value)
