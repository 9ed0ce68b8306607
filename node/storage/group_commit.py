"""Group commit: the data of many segments to disk with as few syncs as possible, then the index.

One ``pwritev`` per segment, one ``fdatasync`` per touched file (or one ``syncfs``), one index
batch, in this order: the index may lag behind the data and never leads it. At most
``group_bytes_max`` go to one file between two syncs, which lets recovery tell a torn tail from
damage. Runs on an I/O worker; different workers own different segments.
"""

import logging
from collections.abc import Callable

from icecore.errors import IcecoreError, InvalidRequestError, OutOfSpaceError
from node.ports import Buffer, FileSystem, Index
from node.storage.fail_stop import FailStop
from node.storage.segment_index import Put, pack_durable
from node.storage.segment_log import FIRST_ALLOCATION_BYTES, SegmentLog, StoreSettings
from node.store import AppendRequest, BatchMark

_LAGGING_PUTS_MAX = 1000
_log = logging.getLogger(__name__)


class _Part:
    """What one segment gets in one round."""

    __slots__ = ("buffers", "log", "marks", "requests", "total_bytes")

    def __init__(self, log: SegmentLog) -> None:
        self.log = log
        self.requests: list[AppendRequest] = []
        self.buffers: list[Buffer] = []
        self.marks: list[BatchMark] = []
        self.total_bytes = 0


class GroupCommit:
    """Writes groups for one data folder."""

    def __init__(
        self,
        file_system: FileSystem,
        index: Index,
        settings: StoreSettings,
        find: Callable[[int], SegmentLog],
        fail_stop: FailStop,
    ) -> None:
        """
        Args:
            find: The log of a segment that may be appended to; raises an IcecoreError otherwise.
            fail_stop: Syncs.
        """
        self._fs = file_system
        self._index = index
        self._settings = settings
        self._find = find
        self._fail_stop = fail_stop
        self._lagging: list[Put] = []
        self.index_lag_count = 0
        """Groups whose index entries found no space; they are retried with later groups."""

    def append(self, requests: list[AppendRequest]) -> None:
        """See ``SegmentStore.append_group``."""
        parts, rest = self._parts(requests)
        self._round(parts)
        for request in rest:  # rare: more than group_bytes_max for one segment
            if request.error is None:
                self._one_by_one(request)

    def _parts(self, requests: list[AppendRequest]) -> tuple[list[_Part], list[AppendRequest]]:
        """Split by segment what fits into one round; the rest, in order, comes later."""
        parts: dict[int, _Part] = {}
        rest: list[AppendRequest] = []
        overflown: set[int] = set()
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
        # Syncs without marks: nothing becomes readable or acknowledged before the last round.
        if not self._is_next(log, request):
            return
        data = memoryview(b"".join(request.buffers))
        start = done = 0
        position = log.end[1]
        try:
            self._reserve(log, position + total)
            for mark in request.marks:
                if done > start and done - start + mark.length_bytes > limit:
                    log.file.pwritev([data[start:done]], position + start)
                    self._sync([log])
                    start = done
                done += mark.length_bytes
            log.file.pwritev([data[start:]], position + start)
        except OutOfSpaceError as error:
            log.failed = request.error = error
            return
        self._sync([log])
        puts = log.points.points(request.marks, position)
        log.advance(request.marks, request.tail)
        puts.append(pack_durable(log.prefix, log.end[1], request.tail))
        self._write_index(puts)

    def _is_next(self, log: SegmentLog, request: AppendRequest) -> bool:
        """Whether the request continues the log; otherwise the caller has lost count."""
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
        for part in parts:
            requests, log = part.requests, part.log
            if not requests:
                continue
            if not self._is_next(log, requests[0]):
                for request in requests:
                    request.error = requests[0].error
                continue
            position = log.end[1]
            try:
                if position + part.total_bytes > log.allocated:
                    self._reserve(log, position + part.total_bytes)
                log.file.pwritev(part.buffers, position)
                if len(parts) > 1:  # the disk works on all files while they are synced in turn
                    log.file.start_write_back(position, part.total_bytes)
            except OutOfSpaceError as error:
                log.failed = error
                for request in requests:
                    request.error = error
                continue
            written.append(part)
        if not written:
            return
        self._sync([part.log for part in written])
        puts: list[Put] = []
        for part in written:
            log, tail = part.log, part.requests[-1].tail
            puts += log.points.points(part.marks, log.end[1])
            log.advance(part.marks, tail)
            puts.append(pack_durable(log.prefix, log.end[1], tail))
        self._write_index(puts)

    def _sync(self, logs: list[SegmentLog]) -> None:
        """Make all written files durable, or end the process (the error is re-raised)."""
        is_many = len(logs) >= self._settings.sync_all_files_min and self._fs.can_sync_all
        ids = [log.identity.segment_id for log in logs]
        if is_many:
            self._fail_stop.sync(ids, self._fs.sync_all)
            return
        for log in logs:
            self._fail_stop.sync(ids, log.file.fdatasync)

    def _reserve(self, log: SegmentLog, need: int) -> None:
        """Allocate ahead in steps that double up to 8 MiB; exactly what is needed if that fails."""
        settings = self._settings
        have = log.allocated
        if need <= have:
            return
        step = min(settings.allocation_step_bytes, max(FIRST_ALLOCATION_BYTES, have))
        target = max(need, have + step)
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

    def _write_index(self, puts: list[Put]) -> None:
        lagging = self._lagging
        if lagging:
            puts = lagging + puts
            self._lagging = []
        try:
            self._index.write(puts)
        except OutOfSpaceError as error:
            # Derived data: acks go on. A later durable entry covers the ones that are dropped,
            # and a missing point only makes a look-up scan further.
            self.index_lag_count += 1
            self._lagging = puts[-_LAGGING_PUTS_MAX:]
            if self.index_lag_count == 1:
                _log.error("the index lags: %s", error)
