"""A storage engine in memory: the plainest that keeps the promises of ``storage/engine.py``.

Every batch is an item of a list, and what was written is durable at once. A ``MemoryDisk`` outlives
the engines, as a disk outlives processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from icecore.codec.batch import HEADER_LENGTH, parse_header, verify_producer_crc
from icecore.codec.chain import digest_step
from icecore.errors import (
    CorruptBatchError,
    IcecoreError,
    InvalidRequestError,
    NotReplicaError,
    StorageError,
)
from icecore_node.storage import engine as port
from icecore_node.storage.batches.batch_scan import empty_tail
from icecore_node.storage.engine import AppendRequest, FoundLog, KnownLog, LogTail, SegmentIdentity
from icecore_replication.digest import FullDigest


@dataclass
class Log:
    """One log: ``tails[n]`` is its tail before the batch ``batches[n]``."""

    identity: SegmentIdentity
    tails: list[LogTail] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    is_sealed: bool = False

    def begin(self, identity: SegmentIdentity, start_timestamp_ms: int) -> None:
        """Be empty, confirmed unless the base is -1."""
        is_prepared = identity.base_offset < 0
        tail = port.NO_TAIL if is_prepared else empty_tail(identity, start_timestamp_ms)
        self.identity, self.tails, self.batches = identity, [tail], []

    def provable(self) -> list[LogTail]:
        """The tails up to the first batch that is not whole, or not chained."""
        tails = [self.tails[0]]
        for batch in self.batches:
            try:
                tails.append(_next_tail(tails[-1], batch))
            except StorageError:
                break
        return tails


@dataclass
class MemoryDisk:
    """What outlives a process: logs in their place, and those set aside."""

    logs: dict[int, Log] = field(default_factory=dict)
    aside: dict[int, list[Log]] = field(default_factory=dict)

    def set_aside(self, segment_id: int) -> bool:
        """Clear a log's place; whether what lay there may have been confirmed."""
        log = self.logs.pop(segment_id, None)
        if log is None:
            return False
        self.aside.setdefault(segment_id, []).append(log)
        return log.identity.base_offset >= 0


def _next_tail(tail: LogTail, batch: bytes) -> LogTail:
    try:
        header = parse_header(batch)
        verify_producer_crc(batch, 0, header)
    except CorruptBatchError as error:
        raise StorageError(f"damaged at {tail.end_offset}: {error}") from error
    if header.prev_header_crc32c != tail.last_header_crc32c:
        raise StorageError(f"the chain is broken at {tail.end_offset}")
    return LogTail(
        end_offset=header.end_offset,
        last_header_crc32c=header.header_crc32c,
        digest=digest_step(tail.digest, batch[:HEADER_LENGTH]),
        max_append_timestamp_ms=max(tail.max_append_timestamp_ms, header.append_timestamp_ms),
        max_known_high_watermark=max(tail.max_known_high_watermark, header.high_watermark),
        length_bytes=tail.length_bytes + len(batch),
    )


class MemoryEngine:
    """``Engine`` over a ``MemoryDisk``."""

    def __init__(self, disk: MemoryDisk, condemn: port.Condemn) -> None:
        self.disk, self._condemn = disk, condemn
        self._used: dict[int, Log] = {}
        self.reader, self.salvage = MemoryReader(self._used), MemorySalvage(self)

    def start_up(
        self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]
    ) -> list[FoundLog]:
        found = [self.judge(known) for known in logs]
        pairs = zip(logs, found, strict=True)
        self._condemn({log.identity.segment_id: one.damage for log, one in pairs if one.damage})
        return found

    def judge(self, known: KnownLog) -> FoundLog:
        """Use a log, if it is what is known of it."""
        log = self.disk.logs.get(known.identity.segment_id)
        if log is None:
            return FoundLog(port.NO_TAIL, "missing", damage="missing")
        if log.identity != known.identity and not log.batches:  # its confirm did not end
            log.begin(known.identity, known.start_timestamp_ms)
        log.is_sealed = known.sealed is not None
        self._used[known.identity.segment_id] = log
        return FoundLog(log.tails[-1], "clean", "", [one[:HEADER_LENGTH] for one in log.batches])

    def create(
        self,
        logs: Sequence[port.NewLog],
        remember: Callable[[Sequence[port.CreatedLog]], None],
    ) -> dict[int, IcecoreError]:
        made: dict[int, Log] = {}
        created = []
        for new in logs:
            segment_id = new.identity.segment_id
            created.append(port.CreatedLog(segment_id, self.disk.set_aside(segment_id)))
            made[segment_id] = self.disk.logs[segment_id] = Log(new.identity)
            made[segment_id].begin(new.identity, new.start_timestamp_ms)
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
        log.begin(identity, start_timestamp_ms)
        return log.tails[0]

    def append_group(self, requests: Sequence[AppendRequest]) -> None:
        for request in requests:
            try:
                self._append(self.reader.find(request.segment_id), request)
            except IcecoreError as error:
                request.error = error

    def _append(self, log: Log, request: AppendRequest) -> None:
        is_next = request.marks[0].base_offset == log.tails[-1].end_offset
        if log.is_sealed or log.identity.base_offset < 0 or not is_next:
            raise InvalidRequestError(f"not to be appended to segment {request.segment_id}")
        data, start = b"".join(request.buffers), 0
        for mark in request.marks:
            log.batches.append(data[start : start + mark.length_bytes])
            log.tails.append(_next_tail(log.tails[-1], log.batches[-1]))
            start += mark.length_bytes
        log.tails[-1] = request.tail

    def truncate(self, segment_id: int, end_offset: int) -> LogTail:
        log = self.reader.find(segment_id)
        tail = self.reader.tail_at(segment_id, end_offset)
        if tail is None or log.is_sealed or log.identity.base_offset < 0:
            raise InvalidRequestError(f"segment {segment_id} cannot be truncated")
        known = max(tail.max_known_high_watermark, log.tails[-1].max_known_high_watermark)
        count = log.tails.index(tail)
        log.tails[count:] = [replace(tail, max_known_high_watermark=known)]
        del log.batches[count:]
        return log.tails[-1]

    def seal(
        self,
        segment_id: int,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[port.LogEnd], None],
    ) -> None:
        log = self.reader.find(segment_id)
        tail = log.tails[-1]
        if log.identity.base_offset < 0 or (tail.end_offset, tail.digest) != (
            end_offset,
            seal_digest,
        ):
            raise port.NotAsSealed(f"segment {segment_id} ends at {tail.end_offset}")
        if not log.is_sealed:
            remember(port.LogEnd(tail, sum(map(len, log.batches))))
            log.is_sealed = True

    def set_aside(self, identity: SegmentIdentity) -> None:
        self._used.pop(identity.segment_id, None)
        self.disk.set_aside(identity.segment_id)

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        for identity in identities:
            self.set_aside(identity)
            self.disk.aside.pop(identity.segment_id, None)

    def flush(self) -> None:
        """Nothing is derived."""

    def close(self) -> None:
        self._used.clear()


class MemoryReader:
    """``LogReader`` over lists."""

    def __init__(self, logs: dict[int, Log]) -> None:
        self._logs = logs

    def holds(self, segment_id: int) -> bool:
        return segment_id in self._logs

    def find(self, segment_id: int) -> Log:
        """A log in use."""
        if segment_id not in self._logs:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        return self._logs[segment_id]

    def tail(self, segment_id: int) -> LogTail:
        return self.find(segment_id).tails[-1]

    def read(
        self, segment_id: int, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        log = self.find(segment_id)
        if not log.identity.base_offset <= offset < end_offset:
            if offset < log.identity.base_offset:
                raise InvalidRequestError(f"offset {offset} is before the segment's base")
            return b"", offset
        data = b""
        for batch, before, after in zip(log.batches, log.tails, log.tails[1:], strict=False):
            if after.end_offset <= offset:
                continue
            is_full = data and len(data) + len(batch) > max_bytes
            if is_full or after.end_offset > end_offset:
                break
            _next_tail(before, batch)
            data, offset = data + batch, after.end_offset
        return data, offset

    def offset_for_time(
        self, segment_id: int, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        for batch in self.find(segment_id).batches:
            header = parse_header(batch)
            if header.base_offset >= end_offset:
                break
            if header.append_timestamp_ms >= timestamp_ms:
                return header.base_offset, header.append_timestamp_ms
        return None

    def tail_at(self, segment_id: int, end_offset: int) -> LogTail | None:
        for tail in self.find(segment_id).tails:
            if tail.end_offset == end_offset:
                return tail
        return None

    def headers(self, segment_id: int, end_offset: int) -> list[bytes]:
        log = self.find(segment_id)
        pairs = zip(log.batches, log.tails[1:], strict=True)
        return [one[:HEADER_LENGTH] for one, tail in pairs if tail.end_offset <= end_offset]

    def full_digest(self, segment_id: int) -> bytes:
        walk = self.verification(segment_id)
        walk.step(1 << 62)
        return walk.digest

    def verification(self, segment_id: int) -> "MemoryVerification":
        log = self.find(segment_id)
        if not log.is_sealed:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        return MemoryVerification(log)


class MemoryVerification:
    """``Verification`` of a list."""

    def __init__(self, log: Log) -> None:
        self._log, self._count, self._tree, self.digest = log, 0, FullDigest(), b""

    def step(self, max_bytes: int) -> int:
        log, size = self._log, 0
        while size < max_bytes and self._count < len(log.batches):
            batch = log.batches[self._count]
            _next_tail(log.tails[self._count], batch)
            self._tree.update(batch)
            self._count, size = self._count + 1, size + len(batch)
        if self._count == len(log.batches):
            self.digest = self._tree.digest()
        return size


class MemorySalvage:
    """``LogSalvage`` over lists."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    def tail(self, log: KnownLog) -> LogTail | None:
        found = self._longest(log)
        return found.tails[-1] if found is not None else None

    def restore(self, log: KnownLog, remember: Callable[[], object]) -> FoundLog:
        found = self._longest(log)
        if found is None:
            raise NotReplicaError("nothing can be salvaged")
        self._engine.disk.logs[log.identity.segment_id] = found
        remember()
        return self._engine.judge(log)

    def _longest(self, log: KnownLog) -> Log | None:
        disk, segment_id = self._engine.disk, log.identity.segment_id
        there = [*disk.aside.get(segment_id, []), *filter(None, [disk.logs.get(segment_id)])]
        best: Log | None = None
        for each in there:
            tails = each.provable()
            if len(tails) > (len(best.tails) if best is not None else 1):
                best = Log(each.identity, tails, each.batches[: len(tails) - 1])
        return best
