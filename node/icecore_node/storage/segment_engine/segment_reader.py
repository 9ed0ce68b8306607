"""Reading one segment: by offset, by time, its headers, its tail as it once was.

The newest batches are found in memory, older ones through the sparse index and a short walk over
headers. An index that is missing or wrong only makes the walk longer: what is in the file decides,
and every byte is CRC-checked before it is returned.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from icecore.codec.batch import HEADER_LENGTH, parse_header, peek
from icecore.errors import (
    CorruptBatchError,
    InvalidRequestError,
    NotReplicaError,
    OutOfResourcesError,
    StorageError,
)
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import File
from icecore_node.storage.engine import NO_TAIL, LogTail
from icecore_node.storage.index import points
from icecore_node.storage.segment_engine.segment_digest import checked_digest
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_log import SegmentLog
from icecore_node.storage.segment_engine.segment_runs import check_run, walk_to
from icecore_node.storage.segment_engine.segment_scan import BatchScan
from icecore_replication.digest import FullDigest

_log = logging.getLogger(__name__)


def _damaged(log: SegmentLog, what: object) -> StorageError:
    segment_id = log.identity.segment_id
    return StorageError(f"segment {segment_id} is damaged: {what}", segment_id=segment_id)


class SegmentReader:
    """``LogReader`` over segment files. Has no state of its own; used by any number of threads.

    Args:
        index: Where to begin a walk.
        logs: Those in use, by segment id; another's, and only looked at.
    """

    def __init__(self, index: points.EntryStore, logs: Mapping[SegmentId, SegmentLog]) -> None:
        self._index = index
        self._logs = logs

    def holds(self, segment_id: SegmentId) -> bool:
        """See ``LogReader.holds``."""
        return segment_id in self._logs

    def find(self, segment_id: SegmentId) -> SegmentLog:
        """A log in use. Raises NotReplicaError when there is none."""
        log = self._logs.get(segment_id)
        if log is None:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        return log

    def tail(self, segment_id: SegmentId) -> LogTail:
        """See ``LogReader.tail``."""
        return self.find(segment_id).tail

    def read(
        self, segment_id: SegmentId, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """See ``LogReader.read``."""
        log = self.find(segment_id)
        with log.handle.using() as file:
            tail, position = log.end
            end_offset = min(end_offset, tail.end_offset)
            if offset >= end_offset or not log.is_confirmed:
                return b"", offset
            if offset < log.identity.base_offset:
                raise InvalidRequestError(f"offset {offset} is before the segment's base")
            try:
                span = log.recent.span(offset, max_bytes, end_offset, tail.end_offset, position)
                if span is None:
                    return self._read_cold(log, file, offset, max_bytes, end_offset)
                start, length, next_offset = span
                if next_offset > end_offset:
                    return b"", offset
                data = file.pread(length, start)
                if check_run(data, log.identity, offset, with_bodies=True) != next_offset:
                    raise CorruptBatchError(f"the run at {start} does not end at {next_offset}")
            except CorruptBatchError as error:
                raise _damaged(log, error) from error
            return data, next_offset

    def _read_cold(
        self, log: SegmentLog, file: File, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """Through the index; every byte is verified, because it may be years old."""
        end_position = log.end[1]
        position, _ = self._near(log, file, offset)
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

    def _near(self, log: SegmentLog, file: File, offset: int) -> tuple[int, LogTail]:
        """A place to start from at or before the batch of ``offset``: position and tail there."""
        tail, position = log.nearest_tail(offset)
        try:
            point = points.floor_offset(self._index, log.prefix, offset)
        except (StorageError, OutOfResourcesError) as error:
            event(
                _log,
                logging.ERROR,
                "index_lookup_failed",
                segment_id=log.identity.segment_id,
                error=error,
            )
            point = None
        if point is None or not position < point[1] < log.end[1]:
            return position, tail
        try:
            header = parse_header(file.pread(HEADER_LENGTH, point[1]))
        except CorruptBatchError:
            return position, tail
        if header.base_offset != point[0] or header.segment_id != log.identity.segment_id:
            return position, tail
        # Enough to follow the chain from there; what has to be added up from the base is not known.
        tail = replace(NO_TAIL, end_offset=point[0], last_header_crc32c=header.prev_header_crc32c)
        return point[1], tail

    def _scan_from(self, log: SegmentLog, file: File, offset: int) -> BatchScan:
        """A header scan that starts at or before the batch of ``offset``."""
        position, tail = self._near(log, file, offset)
        return BatchScan(file, log.identity, position, tail, log.end[1], with_bodies=False)

    def offset_for_time(
        self, segment_id: SegmentId, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """See ``LogReader.offset_for_time``."""
        log = self.find(segment_id)
        if not log.is_confirmed or log.tail.max_append_timestamp_ms < timestamp_ms:
            return None
        with log.handle.using() as file:
            near = self._before(log, timestamp_ms)
            scan = self._scan_from(log, file, log.identity.base_offset if near is None else near)
            for found in scan:
                header = found.header
                if header.base_offset >= end_offset:
                    return None
                if header.append_timestamp_ms >= timestamp_ms:
                    return header.base_offset, header.append_timestamp_ms
            self._check_whole(log, scan)
        return None

    def _before(self, log: SegmentLog, timestamp_ms: int) -> int | None:
        try:
            return points.offset_before_time(self._index, log.prefix, timestamp_ms)
        except (StorageError, OutOfResourcesError) as error:
            event(
                _log,
                logging.ERROR,
                "index_lookup_failed",
                segment_id=log.identity.segment_id,
                error=error,
            )
            return None

    def _check_whole(self, log: SegmentLog, scan: BatchScan) -> None:
        if scan.position < log.end[1]:
            raise _damaged(log, f"{scan.stop} at {scan.position}")

    def tail_at(self, segment_id: SegmentId, end_offset: int) -> LogTail | None:
        """See ``LogReader.tail_at``."""
        found = self.end_at(self.find(segment_id), end_offset)
        return found[0] if found else None

    def end_at(self, log: SegmentLog, end_offset: int) -> tuple[LogTail, int] | None:
        """(tail, position) where the log ended at ``end_offset``, None when no batch ends there."""
        with log.handle.using() as file:
            end = log.end
            if end[0].end_offset == end_offset:
                return end
            tail, position = log.nearest_tail(end_offset)
            if tail.end_offset != end_offset:
                scan = BatchScan(file, log.identity, position, tail, end[1], with_bodies=False)
                for _ in scan:
                    if scan.tail.end_offset >= end_offset:
                        break
                else:
                    self._check_whole(log, scan)
                tail, position = scan.tail, scan.position
        return (tail, position) if tail.end_offset == end_offset else None

    def headers(self, segment_id: SegmentId, end_offset: int) -> list[bytes]:
        """See ``LogReader.headers``."""
        log = self.find(segment_id)
        with log.handle.using() as file:
            scan = BatchScan(
                file, log.identity, FILE_HEADER_LENGTH, log.start, log.end[1], with_bodies=False
            )
            headers: list[bytes] = []
            for found in scan:
                if found.header.end_offset > end_offset:
                    return headers
                headers.append(found.header_bytes)
            self._check_whole(log, scan)
        return headers

    def full_digest(self, segment_id: SegmentId) -> bytes:
        """See ``LogReader.full_digest``."""
        log = self.find(segment_id)
        with log.handle.using() as file:
            position = log.end[1]
            scan = BatchScan(
                file, log.identity, FILE_HEADER_LENGTH, log.start, position, with_bodies=True
            )
            return checked_digest(file, position, scan)

    def verification(self, segment_id: SegmentId) -> "LogVerification":
        """See ``LogReader.verification``."""
        log = self.find(segment_id)
        if not log.is_sealed:
            raise InvalidRequestError(f"segment {segment_id} is not sealed here")
        return LogVerification(log)


class LogVerification:
    """Reads a sealed log back from disk in small steps: chain, CRCs and, at the end, its digest."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._position, self._tail = FILE_HEADER_LENGTH, log.start
        self._full = FullDigest()
        self.digest = b""

    def step(self, max_bytes: int) -> int:
        """See ``Verification.step``. May be repeated after an error: nothing has moved then."""
        log, start, end_position = self._log, self._position, self._log.end[1]
        with log.handle.using() as file:
            scan = BatchScan(file, log.identity, start, self._tail, end_position, with_bodies=True)
            for _ in scan:
                if scan.position - start >= max_bytes:
                    break
            if scan.stop and scan.position < end_position:
                raise _damaged(log, f"{scan.stop} at {scan.position}")
            data = file.pread(scan.position - start, start)
        if len(data) < scan.position - start:
            raise _damaged(log, f"the file ends before {scan.position}")
        self._full.update(data)
        self._position, self._tail = scan.position, scan.tail
        if self._position == end_position:
            if self._tail.digest != log.tail.digest:
                raise _damaged(log, "its seal digest is another one")
            self.digest = self._full.digest()
        return len(data)
