"""A storage engine in memory: the plainest that keeps the promises of ``storage/engine.py``.

What was written is durable at once, and there is no index: every read walks from the first batch. A
``MemoryDisk`` outlives the engines, as a disk outlives processes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.model import SegmentId
from icecore_node.storage import engine as port
from icecore_node.storage.batches.batch_log import Place, check_end, check_writable
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.batches.batch_scan import BatchScan, empty_tail
from icecore_node.storage.batches.no_index import NoIndex
from icecore_node.storage.batches.proven_logs import ProvenLogs
from icecore_node.storage.engine import AppendRequest, FoundLog, KnownLog, LogTail, SegmentIdentity


class Log:
    """A ``BatchLog``: ``data`` is its batches, one behind the other."""

    def __init__(self, identity: SegmentIdentity, start_timestamp_ms: int) -> None:
        self.handle, self.data, self.is_sealed = self, b"", False
        self.confirm(identity, start_timestamp_ms)

    def confirm(self, identity: SegmentIdentity, start_timestamp_ms: int) -> None:
        is_prepared = identity.base_offset < 0
        start = port.NO_TAIL if is_prepared else empty_tail(identity, start_timestamp_ms)
        self.identity = identity
        self.base: Place = (start, 0)
        self.end: Place = self.base

    def using(self) -> AbstractContextManager["Log"]:
        return nullcontext(self)

    def pread(self, length: int, position: int) -> bytes:
        return self.data[position : position + length]

    def proven(self) -> "Log":
        """A log of the batches before the first that is not whole, or not chained."""
        scan = BatchScan(self, self.identity, 0, self.base[0], len(self.data), with_bodies=True)
        deque(scan, maxlen=0)
        log = Log(self.identity, self.base[0].max_append_timestamp_ms)
        log.end, log.data = (scan.tail, scan.position), self.data[: scan.position]
        return log


class NoShortcuts:
    """Where a walk may begin if nothing but the base is known."""

    def span(self, *_: object) -> None:
        return None

    def tail_before(self, log: Log, _: int) -> Place:
        return log.base

    def batch_before(self, log: Log, *_: object) -> Place:
        return log.base

    def offset_before(self, log: Log, _: int) -> int:
        return log.identity.base_offset


@dataclass
class MemoryDisk:
    """What outlives a process: logs in their place, and those set aside."""

    logs: dict[SegmentId, Log] = field(default_factory=dict)
    aside: dict[SegmentId, list[Log]] = field(default_factory=dict)

    def set_aside(self, segment_id: SegmentId) -> bool:
        """Clear a log's place; whether what lay there may have been confirmed."""
        log = self.logs.pop(segment_id, None)
        if log is not None:
            self.aside.setdefault(segment_id, []).append(log)
        return log is not None and log.identity.base_offset >= 0


class MemoryEngine:
    """``Engine`` over a ``MemoryDisk``, and its ``Remains``."""

    def __init__(self, disk: MemoryDisk, condemn: port.Condemn) -> None:
        self.disk, self._condemn = disk, condemn
        self._used: dict[SegmentId, Log] = {}
        self.reader, self.salvage = BatchReader(self._used, NoShortcuts()), ProvenLogs(self)
        self.index = NoIndex(self.reader.find)

    def start_up(
        self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]
    ) -> list[FoundLog]:
        found = {log.identity.segment_id: self.use(log) for log in logs}
        self._condemn({number: log.damage for number, log in found.items() if log.damage})
        return list(found.values())

    def strays(self) -> list[SegmentId]:
        return [number for number in self.disk.logs if number not in self._used]

    def use(self, known: KnownLog, _: object = None) -> FoundLog:
        segment_id = known.identity.segment_id
        log = self.disk.logs.get(segment_id)
        if log is None:
            return FoundLog(port.NO_TAIL, "missing", damage="missing")
        if log.identity != known.identity and not log.data:  # its confirm did not end
            log.confirm(known.identity, known.start_timestamp_ms)
        log.is_sealed = known.sealed is not None
        self._used[segment_id] = log
        tail = log.end[0]
        return FoundLog(tail, "clean", headers=self.reader.headers(segment_id, tail.end_offset))

    def create(
        self, logs: Sequence[port.NewLog], remember: Callable[[Sequence[port.CreatedLog]], None]
    ) -> dict[SegmentId, IcecoreError]:
        made = {new.identity.segment_id: Log(new.identity, new.start_timestamp_ms) for new in logs}
        created = [port.CreatedLog(number, self.disk.set_aside(number)) for number in made]
        self.disk.logs.update(made)
        try:
            remember(created)
        except IcecoreError:
            for segment_id in made:
                del self.disk.logs[segment_id]
            raise
        self._used.update(made)
        return {}

    def confirm(
        self, identity: SegmentIdentity, start_timestamp_ms: int, remember: Callable[[], object]
    ) -> LogTail:
        log = self.reader.find(identity.segment_id)
        remember()
        log.confirm(identity, start_timestamp_ms)
        return log.end[0]

    def append_group(self, requests: Sequence[AppendRequest]) -> None:
        for request in requests:
            try:
                self._append(self.reader.find(request.segment_id), request)
            except IcecoreError as error:
                request.error = error

    def _append(self, log: Log, request: AppendRequest) -> None:
        check_writable(log)
        if request.marks[0].base_offset != log.end[0].end_offset:
            raise InvalidRequestError(f"not the next batch of segment {request.segment_id}")
        log.data = b"".join([log.data, *request.buffers])
        log.end = (request.tail, len(log.data))

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        log = self.reader.find(segment_id)
        log.end = tail, position = self.reader.cut_at(log, end_offset)
        log.data = log.data[:position]
        return tail

    def seal(
        self,
        segment_id: SegmentId,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[port.LogEnd], None],
    ) -> None:
        log = self.reader.find(segment_id)
        check_end(log, end_offset, seal_digest)
        if not log.is_sealed:
            remember(port.LogEnd(*log.end))
            log.is_sealed = True

    def set_aside(self, identity: SegmentIdentity) -> None:
        self._used.pop(identity.segment_id, None)
        self.disk.set_aside(identity.segment_id)

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        for identity in identities:
            self.set_aside(identity)
            self.disk.aside.pop(identity.segment_id, None)

    def provable(self, known: KnownLog) -> list[Log]:
        segment_id = known.identity.segment_id
        copies = [*self.disk.aside.get(segment_id, ()), self.disk.logs.get(segment_id)]
        return [log.proven() for log in copies if log is not None]

    def put_back(self, known: KnownLog, found: Log) -> None:
        self.disk.logs[known.identity.segment_id] = found

    def close(self) -> None:
        self._used.clear()
