"""Reading one log: by offset, by time, its headers, its tail as it once was, its full digest.

Every question is answered by a walk over batches, from the log's base or from a later place that an
engine knows (``Shortcuts``). A shortcut that is missing or wrong only makes the walk longer: what
is in the log decides, and every byte is CRC-checked before it is returned.
"""

from typing import Generic, Protocol, TypeVar

from icecore.codec.batch import HEADER_LENGTH, peek
from icecore.errors import CorruptBatchError, InvalidRequestError, StorageError
from icecore.model import SegmentId
from icecore_node.storage.batches.batch_log import (
    BatchLog,
    Place,
    Readable,
    check_writable,
    damaged,
    with_high_watermark,
)
from icecore_node.storage.batches.batch_runs import check_run, walk_to
from icecore_node.storage.batches.batch_scan import BatchScan
from icecore_node.storage.batches.log_table import EngineLog, LogTable
from icecore_node.storage.engine import LogTail
from icecore_replication.digest import LEAF_BYTES, FullDigest

LogT = TypeVar("LogT", bound=EngineLog)
AnyLogT = TypeVar("AnyLogT", bound=BatchLog, contravariant=True)


class Shortcuts(Protocol[AnyLogT]):
    """Places, known to an engine, where walks over a log may begin. Its base is always right."""

    def span(
        self, log: AnyLogT, offset: int, max_bytes: int, end_offset: int, end: Place
    ) -> tuple[int, int, int] | None:
        """(position, length, next offset) of the batches to read; None when that is not known.

        ``end`` is that of the log before anything else of it is looked at.
        """
        ...

    def tail_before(self, log: AnyLogT, end_offset: int) -> Place:
        """A place at or before this offset, with its whole tail."""
        ...

    def batch_before(self, log: AnyLogT, file: Readable, offset: int) -> Place:
        """A place at or before the batch of this offset; of its tail only what the chain needs."""
        ...

    def offset_before(self, log: AnyLogT, timestamp_ms: int) -> int:
        """An offset before which all batches have an earlier append time."""
        ...


class BatchReader(Generic[LogT]):
    """``LogReader`` over logs. Has no state of its own; used by any number of threads.

    Args:
        logs: Those in use, by segment id; another's, and only looked at.
        shortcuts: Where to begin a walk.
    """

    def __init__(self, logs: LogTable[LogT], shortcuts: Shortcuts[LogT]) -> None:
        self._logs = logs
        self._shortcuts = shortcuts

    def holds(self, segment_id: SegmentId) -> bool:
        """See ``LogReader.holds``."""
        return segment_id in self._logs

    def find(self, segment_id: SegmentId) -> LogT:
        """A log in use. Raises NotReplicaError when there is none."""
        return self._logs.find(segment_id)

    def tail(self, segment_id: SegmentId) -> LogTail:
        """See ``LogReader.tail``."""
        return self.find(segment_id).end[0]

    def read(
        self, segment_id: SegmentId, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """See ``LogReader.read``."""
        log = self.find(segment_id)
        with log.handle.using() as file:
            end = log.end
            end_offset = min(end_offset, end[0].end_offset)
            if offset >= end_offset or log.identity.base_offset < 0:
                return b"", offset
            if offset < log.identity.base_offset:
                raise InvalidRequestError(f"offset {offset} is before the segment's base")
            try:
                span = self._shortcuts.span(log, offset, max_bytes, end_offset, end)
                if span is None:
                    return self._read_remote(log, file, offset, max_bytes, end_offset)
                start, length, next_offset = span
                if next_offset > end_offset:
                    return b"", offset
                data = file.pread(length, start)
                if check_run(data, log.identity, offset, with_bodies=True) != next_offset:
                    raise CorruptBatchError(f"the run at {start} does not end at {next_offset}")
            except CorruptBatchError as error:
                raise damaged(segment_id, error) from error
            return data, next_offset

    def _read_remote(
        self, log: LogT, file: Readable, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """By a walk; every byte is verified, because it may be years old."""
        end_position = log.end[1]
        _, position = self._shortcuts.batch_before(log, file, offset)
        start, length, next_offset = walk_to(file, position, end_position, offset)
        if next_offset > end_offset:
            return b"", offset
        data = file.pread(min(max(length, max_bytes), end_position - start), start)
        stop = 0
        while stop + HEADER_LENGTH <= len(data):
            length, _, next_offset = peek(data, stop)
            if stop + length > len(data) or next_offset > end_offset or length < HEADER_LENGTH:
                break
            stop += length
        if stop == 0:
            raise CorruptBatchError(f"no whole batch at {start}")
        data = data[:stop]
        return data, check_run(data, log.identity, offset, with_bodies=True)

    def offset_for_time(
        self, segment_id: SegmentId, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """See ``LogReader.offset_for_time``."""
        log = self.find(segment_id)
        is_confirmed = log.identity.base_offset >= 0
        if not is_confirmed or log.end[0].max_append_timestamp_ms < timestamp_ms:
            return None
        with log.handle.using() as file:
            near = self._shortcuts.offset_before(log, timestamp_ms)
            scan = _scan(log, file, self._shortcuts.batch_before(log, file, near))
            for found in scan:
                header = found.header
                if header.base_offset >= end_offset:
                    return None
                if header.append_timestamp_ms >= timestamp_ms:
                    return header.base_offset, header.append_timestamp_ms
            check_whole(scan)
        return None

    def tail_at(self, segment_id: SegmentId, end_offset: int) -> LogTail | None:
        """See ``LogReader.tail_at``."""
        found = self.end_at(self.find(segment_id), end_offset)
        return found[0] if found else None

    def end_at(self, log: LogT, end_offset: int) -> Place | None:
        """Return where the log ended at ``end_offset``, None when no batch ends there."""
        with log.handle.using() as file:
            end = log.end
            if end[0].end_offset == end_offset:
                return end
            place = self._shortcuts.tail_before(log, end_offset)
            if place[0].end_offset != end_offset:
                scan = _scan(log, file, place)
                for _ in scan:
                    if scan.tail.end_offset >= end_offset:
                        break
                else:
                    check_whole(scan)
                place = scan.tail, scan.position
        return place if place[0].end_offset == end_offset else None

    def cut_at(self, log: LogT, end_offset: int) -> Place:
        """Return where a log will end when it is cut there; see ``Engine.truncate``."""
        check_writable(log)
        found = self.end_at(log, end_offset)
        if found is None:
            segment_id = log.identity.segment_id
            raise InvalidRequestError(f"no batch of segment {segment_id} ends at {end_offset}")
        tail, position = found
        return with_high_watermark(tail, log.end[0].max_known_high_watermark), position

    def headers(self, segment_id: SegmentId, end_offset: int) -> list[bytes]:
        """See ``LogReader.headers``."""
        log = self.find(segment_id)
        headers: list[bytes] = []
        with log.handle.using() as file:
            scan = _scan(log, file, log.base)
            for found in scan:
                if found.header.end_offset > end_offset:
                    return headers
                headers.append(found.header_bytes)
            check_whole(scan)
        return headers

    def full_digest(self, segment_id: SegmentId) -> bytes:
        """See ``LogReader.full_digest``."""
        log = self.find(segment_id)
        with log.handle.using() as file:
            return checked_digest(file, _scan(log, file, log.base, with_bodies=True))

    def verification(self, segment_id: SegmentId) -> "LogVerification":
        """See ``LogReader.verification``."""
        log = self.find(segment_id)
        if not log.is_sealed:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        return LogVerification(log)


class LogVerification:
    """Reads a sealed log back in small steps: chain, CRCs and, at the end, its digest."""

    def __init__(self, log: BatchLog) -> None:
        self._log = log
        self._place = log.base
        self._full = FullDigest()
        self.digest = b""

    def step(self, max_bytes: int) -> int:
        """See ``Verification.step``. May be repeated after an error: nothing has moved then."""
        log, start = self._log, self._place[1]
        segment_id = log.identity.segment_id
        with log.handle.using() as file:
            scan = _scan(log, file, self._place, with_bodies=True)
            for _ in scan:
                if scan.position - start >= max_bytes:
                    break
            if scan.stop:
                check_whole(scan)
            data = file.pread(scan.position - start, start)
        if len(data) < scan.position - start:
            raise damaged(segment_id, f"the file ends before {scan.position}")
        self._full.update(data)
        self._place = scan.tail, scan.position
        tail, end_position = log.end
        if scan.position == end_position:
            if scan.tail.digest != tail.digest:
                raise damaged(segment_id, "its seal digest is another one")
            self.digest = self._full.digest()
        return len(data)


def _scan(log: BatchLog, file: Readable, place: Place, *, with_bodies: bool = False) -> BatchScan:
    """A walk from a place to the end of the log as it is now."""
    tail, position = place
    return BatchScan(file, log.identity, position, tail, log.end[1], with_bodies=with_bodies)


# --- the full digest of a log ---------------------------------------------------------------------

# The full digest of a whole log: proved batch by batch first, then hashed as it is on disk.
#
# What the digest covers, and its format, is ``icecore_replication/digest.py``.


def checked_digest(file: Readable, scan: BatchScan) -> bytes:
    """The full digest of the batches that a scan has before it, all of a log.

    ``scan`` reads bodies and stands at the first batch: each is CRC-checked before any is hashed.

    Raises:
        StorageError: A batch is damaged, or the log ends before the scan should.
    """
    position = scan.position
    for _ in scan:
        pass
    check_whole(scan)
    return digest_of(file, position, scan.position)


def check_whole(scan: BatchScan) -> None:
    """Raise StorageError unless the scan, which has ended, came to where it should."""
    if scan.position < scan.end_position:
        segment_id = scan.identity.segment_id
        raise StorageError(
            f"segment {segment_id} is damaged at position {scan.position}: {scan.stop}",
            segment_id=segment_id,
        )


def digest_of(file: Readable, position: int, end_position: int) -> bytes:
    """The full digest of the bytes in [``position``, ``end_position``), whatever they are.

    Raises:
        StorageError: The file is shorter, or can't be read.
    """
    full = FullDigest()
    while position < end_position:
        data = file.pread(min(LEAF_BYTES, end_position - position), position)
        if not data:
            raise StorageError(f"the file ends at {position}, not at {end_position}")
        full.update(data)
        position += len(data)
    return full.digest()
