"""Group commit: the data of many segments to disk with as few syncs as possible, then the index.

An I/O worker hands in what has queued up (``io/io_pool.py``). Requests of one segment become one
*part*; all parts together are a *round*: one ``pwritev`` per file, one ``fdatasync`` per file or
one ``syncfs`` for all, one index batch. What happens to a part, and what each failure costs:

    requests ──> held ────────> written ────────────> durable ──────────> indexed ──> answered
           │      │                 │                    (log.end moves)
           │      │                 ├─ its sync failed: condemned, stored, the process ends (R53)
           │      │                 └─ it could not even be tried ──┐
           │      └─ no descriptor, no space, the write failed ─────┴──> ``log.failed``: this log
           │         takes nothing more until it is cut back to what is durable (R52)
           └─ unknown, sealed, failed before, not the next offset: ``request.error``, log unharmed

Errors of a part stay with its requests; the other parts of the round go on. Only a failed sync is
raised: after it nobody knows what is on disk, and a second one would succeed and prove nothing.

**The order** is that of ADR 0003: write, sync, index, answer. The index may lag behind the file and
never leads it (R55); ``log.end``, which readers and acks go by, moves between sync and index.

**Logs that are not synced at once** (``log.flush``, R80): write, index, answer, and ``sync`` later.
Index and ``log.end`` then tell of bytes that a power cut may take. A start asks first whether there
was one and, if so, does not look at the log at all. If there was none, an index that tells of more
than there is shows that a sync had failed and that nobody could store it. The file is held until it
is synced, and the log is among ``_unsynced``; when half of the files that may stay open are held,
further logs are synced at once. ``sync`` runs beside the worker's appends (``unsynced.py``): it is
due at half of what a log may leave unsynced, and what would be more than all of it is synced by the
worker. So a disk that is slower than what comes in holds up its worker and not the promise.

**The bound.** At most ``group_bytes_max`` (G) go to one file between two syncs. That is no limit
for memory but a promise to start-up, which tells a torn tail from damage by it: a whole batch at G
or more behind the first bad byte proves that this byte had been synced (``start_up.py``). So what
exceeds G in one round comes after it, request by request (``rest``, in order), and one request
above G goes in pieces that are synced one by one and become readable together.

**What runs at the same time.** Each worker runs its own ``append``, and ``sync`` any thread. A
segment belongs to one worker, so a log, its part and its file position have one writer; readers see
``log.end`` change in one step. Two things are shared by all: the index, which has its own lock, and
``_unsynced``, of which only single operations of the set are used. It is there for ``syncfs``,
whose error does not say whose bytes are lost. A file is held (``LogFile.hold``) from before its
write until after its sync: the kernel reports an error of write-back to those who have the file
open at that time, and a file that was closed in between to save a descriptor would sync without a
word (R54).

**Tried, with figures in docs/adr/tried.md.** One fdatasync after the other is slow when a group
has many files, so write-back of all of them is started first: 128 files of 6 KiB 145 -> 52 ms.
Eight threads that sync give 57 ms, both 53 ms: no threads. ``syncfs`` gives 16 ms and is used from
``sync_all_files_min`` files on, where it can be trusted (``whole_sync.py``) and the mount is ours
alone. A part that is alone gets no hint, for its sync follows at once. Zeros written ahead, so that
no extent changes its state at a sync, made syncs slower (p50 0.32 -> 0.36 ms, three at a time 1.6
-> 3.0 ms); blocks are only allocated ahead, in steps that double. One, four or eight workers
instead of two changed nothing.
"""

from collections.abc import Callable, Sequence

from icecore.errors import IcecoreError, InvalidRequestError, NotReplicaError, OutOfSpaceError
from icecore.model import SegmentId
from icecore_node.ports import Buffer, DiskFailedError, FileSystem
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import AppendRequest, BatchMark
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.points import Put, pack_durable
from icecore_node.storage.segment_engine.appended_entries import AppendedEntries
from icecore_node.storage.segment_engine.segment_log import (
    FIRST_ALLOCATION_BYTES,
    LogSettings,
    SegmentLog,
)


class _Part:
    """The appends to one segment in one round."""

    __slots__ = ("buffers", "is_put_off", "log", "marks", "requests", "total_bytes")

    def __init__(self, log: SegmentLog) -> None:
        self.log = log
        self.requests: list[AppendRequest] = []
        self.buffers: list[Buffer] = []
        self.marks: list[BatchMark] = []
        self.total_bytes = 0
        self.is_put_off = False
        """Its file stays held until it is synced."""


class GroupCommit:
    """Writes groups for one data folder."""

    def __init__(
        self,
        file_system: FileSystem,
        index: DerivedIndex,
        settings: LogSettings,
        find: Callable[[SegmentId], SegmentLog],
        fail_stop: FailStop,
        entries: AppendedEntries,
    ) -> None:
        """
        Args:
            find: The log of a segment that may be appended to; raises an IcecoreError otherwise.
            fail_stop: Syncs.
            entries: What of a batch can be found by hash.
        """
        self._fs = file_system
        self._index = index
        self._settings = settings
        self._find = find
        self._fail_stop = fail_stop
        self._entries = entries
        self._unsynced: set[SegmentId] = set()
        """Segments with bytes that were written and not yet synced, of all workers."""
        self._settling = Lock()
        """For what logs have not synced, and for who holds their files because of it."""

    def append(self, requests: Sequence[AppendRequest]) -> None:
        """See ``Engine.append_group``."""
        parts, rest = self._parts(requests)
        self._round(parts)
        for request in rest:  # rare: more than group_bytes_max for one segment
            if request.error is None:
                self._one_by_one(request)

    def _parts(self, requests: Sequence[AppendRequest]) -> tuple[list[_Part], list[AppendRequest]]:
        """Split by segment what fits into one round; the rest, in order, comes later."""
        parts: dict[SegmentId, _Part] = {}
        rest: list[AppendRequest] = []
        overflown: set[SegmentId] = set()
        limit = self._settings.group_bytes_max
        for request in requests:
            segment_id = request.segment_id
            part = parts.get(segment_id)
            if part is None:
                try:
                    part = parts[segment_id] = _Part(self._find(segment_id))
                except IcecoreError as error:
                    request.error = error
                    continue
            marks = request.marks
            size = 0
            for mark in marks:
                size += mark.length_bytes
            if segment_id in overflown or part.total_bytes + size > limit:
                overflown.add(segment_id)
                rest.append(request)
                continue
            part.requests.append(request)
            part.buffers += request.buffers
            part.marks += marks
            part.total_bytes += size
        return list(parts.values()), rest

    def _one_by_one(self, request: AppendRequest) -> None:
        """One request in as many rounds as it needs, each of whole batches."""
        try:
            log = self._find(request.segment_id)
        except IcecoreError as error:
            request.error = error
            return
        limit = self._settings.group_bytes_max
        total = sum(mark.length_bytes for mark in request.marks)
        if total <= limit:
            part = _Part(log)
            part.requests.append(request)
            part.buffers, part.marks, part.total_bytes = request.buffers, request.marks, total
            self._round([part])
            return
        if not self._is_next(log, request):
            return
        self.sync([log])  # what comes now is synced, and with it what was put off
        try:
            with log.handle.using():
                self._unsynced.add(request.segment_id)
                self._in_pieces(log, request, total)
        except DiskFailedError:
            raise
        except IcecoreError as error:
            log.failed = request.error = error
            return
        finally:
            self._unsynced.discard(request.segment_id)
        part = _Part(log)
        part.requests, part.buffers, part.marks = [request], request.buffers, request.marks
        self._index.write(self._became_durable(part))

    def _in_pieces(self, log: SegmentLog, request: AppendRequest, total: int) -> None:
        """Syncs without marks: nothing becomes readable or acknowledged before the last round."""
        limit = self._settings.group_bytes_max
        data = memoryview(b"".join(request.buffers))
        start = done = 0
        position = log.end[1]
        self._reserve(log, position + total)
        for mark in request.marks:
            if done > start and done - start + mark.length_bytes > limit:
                log.file.pwritev([data[start:done]], position + start)
                self._sync([log])
                start = done
            done += mark.length_bytes
        log.file.pwritev([data[start:]], position + start)
        self._sync([log])

    def _is_next(self, log: SegmentLog, request: AppendRequest) -> bool:
        """Return whether the request continues the log; otherwise the caller has lost count."""
        due = log.end[0].end_offset
        if request.marks and request.marks[0].base_offset == due:
            return True
        first = request.marks[0].base_offset if request.marks else -1
        request.error = InvalidRequestError(
            f"segment {request.segment_id} ends at {due}, an append starts at {first}"
        )
        return False

    def _round(self, parts: list[_Part]) -> None:
        """Write, sync, index: each file at most once."""
        written: list[_Part] = []
        try:
            is_alone = len(parts) == 1
            written += (
                part for part in parts if part.requests and self._write(part, is_alone=is_alone)
            )
            synced: list[_Part] = []
            put_off: list[_Part] = []
            for part in written:
                (put_off if self._may_put_off(part) else synced).append(part)
            try:
                self._sync([part.log for part in synced])
                for part in synced:
                    self.is_synced(part.log)
            except DiskFailedError:
                raise
            except IcecoreError as error:  # it could not even be tried
                for part in synced:
                    _fail(part, error)
                synced = []
            for part in put_off:
                self._put_off(part)
        finally:
            for part in written:
                self._end(part.log)
                if not part.is_put_off:
                    part.log.handle.leave()
        puts: list[Put] = []
        for part in [*synced, *put_off]:
            puts += self._became_durable(part)
        if puts:
            self._index.write(puts)

    # --- what is synced later -----------------------------------------------------------------

    def _may_put_off(self, part: _Part) -> bool:
        """Within its bounds, and while so few files are held that others find room."""
        flush, unsynced_bytes = part.log.flush, part.log.unsynced_bytes
        if flush is None or unsynced_bytes + part.total_bytes > flush.length_bytes:
            return False
        return unsynced_bytes > 0 or len(self._unsynced) <= self._settings.open_files_max // 2

    def _put_off(self, part: _Part) -> None:
        """Count it as it is; its file stays held, so that no error of a write-back is missed."""
        flush, unsynced = part.log.flush, part.log.unsynced
        assert flush is not None and unsynced is not None, "this log is synced at once"
        with self._settling:
            part.is_put_off = unsynced.add(part.total_bytes)
            is_due = unsynced.is_due(flush.length_bytes // 2)
        for request in part.requests:
            request.sync_within_ms = 0 if is_due else flush.interval_ms

    def _begin(self, log: SegmentLog) -> None:
        """The worker is about to write."""
        if log.unsynced is None:
            self._unsynced.add(log.identity.segment_id)
            return
        with self._settling:
            log.unsynced.is_writing = True
            self._unsynced.add(log.identity.segment_id)

    def _end(self, log: SegmentLog) -> None:
        """End what ``_begin`` began: the worker's bytes are synced, put off, or failed."""
        if log.unsynced is None:
            self._unsynced.discard(log.identity.segment_id)
            return
        with self._settling:
            log.unsynced.is_writing = False
            if not log.unsynced.bytes:
                self._unsynced.discard(log.identity.segment_id)

    def sync(self, logs: Sequence[SegmentLog]) -> None:
        """Make durable what was put off of these logs so far; their worker may append meanwhile."""
        lagging: list[tuple[SegmentLog, int]] = []
        try:
            lagging.extend(
                (log, log.unsynced.written_bytes)
                for log in logs
                if log.unsynced is not None and log.unsynced.bytes and self._holds(log)
            )
            if len(lagging) > 1:
                for log, _ in lagging:
                    length = min(log.unsynced_bytes, log.end[1])
                    log.file.start_write_back(log.end[1] - length, length)
            self._sync([log for log, _ in lagging])
            for log, written_bytes in lagging:
                self.is_synced(log, written_bytes)
        finally:
            for log, _ in lagging:
                log.handle.leave()

    def sync_file(self, log: SegmentLog) -> None:
        """Sync a file that its caller holds, outside a group. The caller is its worker."""
        self._sync_one(log)
        self.is_synced(log)

    def _holds(self, log: SegmentLog) -> bool:
        """Hold its file, unless it is going away."""
        try:
            log.handle.hold()
        except NotReplicaError:
            return False
        return True

    def is_synced(self, log: SegmentLog, written_bytes: int | None = None) -> None:
        """Note that bytes which were put off are synced, or not needed any more.

        ``written_bytes`` is their count when the sync began; None = all until now.
        """
        unsynced = log.unsynced
        if unsynced is None:
            return
        with self._settling:
            was_last = unsynced.take(
                unsynced.written_bytes if written_bytes is None else written_bytes
            )
            if was_last and not unsynced.is_writing:
                self._unsynced.discard(log.identity.segment_id)
        if was_last:
            log.handle.leave()

    def _became_durable(self, part: _Part) -> list[Put]:
        """Move the end of the log over a part. Its entries come first, so that nobody who looks
        for gaps below the end takes it for one."""
        log, tail = part.log, part.requests[-1].tail
        puts = log.points.points(part.marks, log.end[1])
        puts += self._entries.puts(log, part.buffers, part.marks, tail.end_offset)
        log.advance(part.marks, tail)
        puts.append(pack_durable(log.prefix, log.end[1], tail))
        return puts

    def _write(self, part: _Part, *, is_alone: bool) -> bool:
        """Write one file's share, which stays held; False (and not held) when that failed."""
        requests, log = part.requests, part.log
        if not self._is_next(log, requests[0]):
            for request in requests:
                request.error = requests[0].error
            return False
        position = log.end[1]
        try:
            file = log.handle.hold()
        except IcecoreError as error:
            _fail(part, error)
            return False
        try:
            if position + part.total_bytes > log.allocated:
                self._reserve(log, position + part.total_bytes)
            self._begin(log)
            file.pwritev(part.buffers, position)
            # The disk works on all files while they are synced in turn.
            if not is_alone and log.flush is None:
                file.start_write_back(position, part.total_bytes)
        except BaseException as error:
            self._end(log)
            log.handle.leave()
            if not isinstance(error, IcecoreError):
                raise
            _fail(part, error)
            return False
        return True

    def _sync(self, logs: Sequence[SegmentLog]) -> None:
        """Make all written files durable, or end the process (the error is re-raised).

        A ``syncfs`` that fails does not say whose bytes are lost: all that were on their way are in
        doubt, also those of other workers.
        """
        if not logs:
            return
        if len(logs) >= self._settings.sync_all_files_min and self._fs.can_sync_all:
            doubtful = self._unsynced.union(log.identity.segment_id for log in logs)
            self._fail_stop.sync(sorted(doubtful), self._fs.sync_all)
            return
        for log in logs:
            self._sync_one(log)

    def _sync_one(self, log: SegmentLog) -> None:
        segment_ids, unsynced = [log.identity.segment_id], log.unsynced
        if unsynced is None:
            self._fail_stop.sync(segment_ids, log.file.fdatasync)
            return
        with unsynced.syncing:
            if unsynced.failed is not None:
                raise unsynced.failed
            try:
                self._fail_stop.sync(segment_ids, log.file.fdatasync)
            except DiskFailedError as error:
                unsynced.failed = error
                raise

    def _reserve(self, log: SegmentLog, need: int) -> None:
        """Allocate ahead in steps that double up to 8 MiB; exactly what is needed if that fails."""
        settings = self._settings
        have = log.allocated
        if need <= have:
            return
        step = min(settings.allocation_step_bytes, max(FIRST_ALLOCATION_BYTES, have))
        target = max(need, have - have % step + step)  # a new file has its header only
        if need <= settings.segment_bytes < target:
            target = settings.segment_bytes
        try:
            log.file.allocate(have, target - have)
        except OutOfSpaceError:
            if target == need:
                raise
            target = need
            log.file.allocate(have, target - have)
        log.allocated = target


def _fail(part: _Part, error: IcecoreError) -> None:
    """Nothing of this share is durable; nothing follows it until the log is cut back."""
    part.log.failed = error
    for request in part.requests:
        request.error = error
