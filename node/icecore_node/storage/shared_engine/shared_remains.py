"""Salvage of an UNKNOWN log from shared files; ``proven_logs.py`` has the rule.

In its place an untrusted log keeps its runs, and so the shared files that have them. A log that is
set aside becomes one file of its own, ``shared/aside/<segment>.<generation>.<number>``, with its
batches one behind the other. So it keeps no shared file. To put it back, its batches are appended
again, as a new log.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from icecore.codec.batch import HEADER_LENGTH
from icecore.errors import SHORTAGES, IcecoreError, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import Buffer, File, FileSystem
from icecore_node.storage.batches.batch_log import Place, Readable
from icecore_node.storage.batches.batch_scan import BatchScan, empty_tail
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import FoundLog, KnownLog, LogTail, SegmentIdentity
from icecore_node.storage.shared_engine.frames import APPENDED, BEGUN, NO_BATCHES, Entry
from icecore_node.storage.shared_engine.judgement import OneFile, provable, span_of
from icecore_node.storage.shared_engine.lane import Block, Lane
from icecore_node.storage.shared_engine.shared_files import FOLDER, SharedFile, SharedFiles
from icecore_node.storage.shared_engine.shared_log import FileRun
from icecore_node.storage.shared_engine.trails import FoundRun

ASIDE_FOLDER = f"{FOLDER}/aside"
_COPY_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProvableCopy:
    """The part of one copy of a log that is right from the first byte on."""

    end: Place
    aside: str = ""
    """The file that was set aside; empty: in its place."""
    runs: list[FileRun] = field(default_factory=list)


class SharedRemains:
    """``Remains`` in shared files and in what was set aside of them. All methods block.

    Args:
        file_system: Of the data folder.
        files: The shared ones.
        fail_stop: Of the engine.
        lane_of: Where a log is appended.
        runs_of: What lies in the place of a log that is not in use.
        use: Takes a log into use, whose runs are these.
        leftovers: Logs of whom files tell and nobody else.
    """

    def __init__(
        self,
        file_system: FileSystem,
        files: SharedFiles,
        fail_stop: FailStop,
        lane_of: Callable[[SegmentIdentity], Lane],
        runs_of: Callable[[SegmentId], Sequence[FoundRun]],
        use: Callable[[KnownLog, LogTail, Sequence[FileRun]], FoundLog],
        leftovers: Callable[[], list[SegmentId]],
    ) -> None:
        self._fs = file_system
        self._files = files
        self._fail_stop = fail_stop
        self._lane_of = lane_of
        self._runs_of = runs_of
        self._use = use
        self.strays = leftovers
        """See ``Remains.strays``."""
        self._restored: dict[SegmentId, list[FileRun]] = {}
        file_system.make_dirs(ASIDE_FOLDER)

    # --- setting aside ------------------------------------------------------------------------

    def set_aside(self, identity: SegmentIdentity, runs: Sequence[FoundRun]) -> None:
        """Keep what can be read of these runs under another name, durably."""
        if not runs:
            return
        prefix, number = _prefix(identity), 0
        while self._fs.exists(f"{prefix}{number}"):
            number += 1
        name = f"{prefix}{number}"
        file = self._fs.open(name, create=True)
        try:
            self._copy(file, runs)
            self._fail_stop.sync([], file.fdatasync)
        except SHORTAGES:
            self._fs.unlink(name)
            raise
        finally:
            file.close()
        self._sync_names()

    def _copy(self, file: File, runs: Sequence[FoundRun]) -> None:
        position = 0
        for run in runs:
            at, end = span_of(self._files, run)
            while at < end:
                try:
                    data = self._files.pread(run.number, min(_COPY_BYTES, end - at), at)
                except SHORTAGES:
                    raise
                except IcecoreError as error:
                    event(_log, logging.WARNING, "not_set_aside", file=run.number, error=error)
                    return
                if not data:
                    return
                file.pwritev([data], position)
                at, position = at + len(data), position + len(data)

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        """Remove what was set aside of these logs, durably."""
        names = self._fs.list_dir(ASIDE_FOLDER)
        gone = [
            f"{ASIDE_FOLDER}/{name}"
            for identity in identities
            for name in names
            if f"{ASIDE_FOLDER}/{name}".startswith(_prefix(identity))
        ]
        for name in gone:
            self._fs.unlink(name)
        if gone:
            self._sync_names()

    def _sync_names(self) -> None:
        self._fail_stop.sync([], lambda: self._fs.sync_dir(ASIDE_FOLDER))

    # --- Remains ------------------------------------------------------------------------------

    def provable(self, log: KnownLog) -> Iterator[ProvableCopy]:
        """See ``Remains.provable``."""
        identity = log.identity
        if identity.base_offset < 0:
            return
        start = empty_tail(identity, log.start_timestamp_ms)
        tail, runs = provable(self._files, log, self._runs_of(identity.segment_id), start)
        yield ProvableCopy((tail, sum(run.length for run in runs)), runs=runs)
        prefix = _prefix(identity)
        for own_name in self._fs.list_dir(ASIDE_FOLDER):
            name = f"{ASIDE_FOLDER}/{own_name}"
            if name.startswith(prefix):
                end = self._proven_end(name, identity, start)
                if end is not None:
                    yield ProvableCopy(end, aside=name)

    def _proven_end(self, name: str, identity: SegmentIdentity, start: LogTail) -> Place | None:
        """Scan one file until something is not right; what can't be read is not right either."""
        try:
            file = self._fs.open(name)
        except StorageError as error:
            event(_log, logging.WARNING, "not_salvageable", file=name, error=error)
            return None
        scan = BatchScan(file, identity, 0, start, file.size(), with_bodies=True)
        try:
            for _ in scan:
                pass
        except StorageError as error:
            event(_log, logging.WARNING, "salvage_ends", file=name, error=error)
        finally:
            file.close()
        return scan.tail, scan.position

    def put_back(self, log: KnownLog, found: ProvableCopy) -> None:
        """See ``Remains.put_back``."""
        identity = log.identity
        lane, restored = self._lane_of(identity), list[FileRun]()
        lane.commit([Block([_entry(identity, BEGUN, identity.base_offset)])], [], _nothing)
        tail = empty_tail(identity, log.start_timestamp_ms)
        if found.aside:
            file = self._fs.open(found.aside)
            try:
                self._append(lane, log, file, tail, (0, found.end[1]), restored)
            finally:
                file.close()
        else:
            for run in found.runs:
                source = OneFile(self._files, run.number)
                span = (run.position, run.position + run.length)
                tail = self._append(lane, log, source, tail, span, restored)
        self._restored[identity.segment_id] = restored

    def _append(
        self,
        lane: Lane,
        log: KnownLog,
        source: Readable,
        tail: LogTail,
        span: tuple[int, int],
        restored: list[FileRun],
    ) -> LogTail:
        """Append the batches in a part of a file, in several groups if they are many."""
        position, end_position = span
        while position < end_position:
            scan = BatchScan(source, log.identity, position, tail, end_position, with_bodies=True)
            for _ in scan:
                if scan.position - position >= _COPY_BYTES:
                    break
            length = scan.position - position
            if length < HEADER_LENGTH:
                raise StorageError(f"what was proved cannot be read at {position}: {scan.stop}")
            entry = _entry(log.identity, APPENDED, tail.end_offset, scan.tail, length)
            data: list[Buffer] = [source.pread(length, position)]
            run = FileRun(
                tail.end_offset,
                scan.tail.end_offset,
                0,
                0,
                length,
                scan.tail.max_append_timestamp_ms,
            )
            lane.commit([Block([entry], data)], [], _Restored(self._files, log, run, restored))
            position, tail = scan.position, scan.tail
        return tail

    def use(self, log: KnownLog, found: ProvableCopy) -> FoundLog:
        """See ``Remains.use``."""
        segment_id, tail = log.identity.segment_id, found.end[0]
        event(
            _log,
            logging.CRITICAL,
            "log_salvaged",
            segment_id=segment_id,
            end_offset=tail.end_offset,
            file=found.aside,
        )
        return self._use(log, tail, self._restored.pop(segment_id))


class _Restored:
    """Callback of ``Lane.commit``: records where a restored part of a log lies now."""

    def __init__(
        self, files: SharedFiles, log: KnownLog, run: FileRun, restored: list[FileRun]
    ) -> None:
        self._files = files
        self._segment_id = log.identity.segment_id
        self._run = run
        self._restored = restored

    def __call__(self, file: SharedFile, starts: Sequence[int]) -> None:
        run = self._run
        self._files.count(file, {self._segment_id: run.length})
        self._restored.append(
            FileRun(
                run.first_offset,
                run.end_offset,
                file.number,
                starts[0],
                run.length,
                run.max_append_timestamp_ms,
            )
        )


def _entry(
    identity: SegmentIdentity,
    kind: int,
    first_offset: int,
    tail: LogTail | None = None,
    length: int = 0,
) -> Entry:
    if tail is None:
        end = (NO_BATCHES, length, 0, 0)
    else:
        end = (tail.end_offset, length, tail.last_header_crc32c, tail.max_known_high_watermark)
    return Entry(identity.segment_id, identity.generation, kind, first_offset, *end)


def _prefix(identity: SegmentIdentity) -> str:
    return f"{ASIDE_FOLDER}/{identity.segment_id:020d}.{identity.generation}."


def _nothing(*_: object) -> None:
    """A commit after which nothing moves."""
