"""Find the start of a read of a segment file: in memory, or by the index.

The index is derived and sparse, and may be missing or wrong: what it says is compared with the
file, and a walk then starts from an earlier place (``batch_reader.py``).
"""

import logging

from icecore.codec.batch import HEADER_LENGTH, peek_previous_crc
from icecore.errors import CorruptBatchError, OutOfResourcesError, StorageError
from icecore.process.log import event
from icecore_node.storage.batches.batch_log import Place, Readable
from icecore_node.storage.batches.batch_runs import check_header
from icecore_node.storage.engine import LogTail
from icecore_node.storage.index import points
from icecore_node.storage.segment_engine.segment_log import SegmentLog

_log = logging.getLogger(__name__)


class SegmentShortcuts:
    """``Shortcuts`` of segment files. Has no state of its own; used by any number of threads."""

    def __init__(self, index: points.EntryStore) -> None:
        self._index = index

    def span(
        self, log: SegmentLog, offset: int, max_bytes: int, end_offset: int, end: Place
    ) -> tuple[int, int, int] | None:
        """See ``Shortcuts.span``: of the newest batches."""
        tail, position = end
        return log.recent.span(offset, max_bytes, end_offset, tail.end_offset, position)

    def tail_before(self, log: SegmentLog, end_offset: int) -> Place:
        """See ``Shortcuts.tail_before``."""
        return log.nearest_tail(end_offset)

    def batch_before(self, log: SegmentLog, file: Readable, offset: int) -> Place:
        """See ``Shortcuts.batch_before``."""
        near = log.nearest_tail(offset)
        try:
            point = points.floor_offset(self._index, log.prefix, offset)
        except (StorageError, OutOfResourcesError) as error:
            _report(log, error)
            point = None
        if point is None or not near[1] < point[1] < log.end[1]:
            return near
        raw = file.pread(HEADER_LENGTH, point[1])
        try:
            _, base_offset, _ = check_header(raw, log.identity, point[1])
        except CorruptBatchError:
            return near
        if base_offset != point[0]:
            return near
        return _chained_behind(base_offset, raw), point[1]

    def offset_before(self, log: SegmentLog, timestamp_ms: int) -> int:
        """See ``Shortcuts.offset_before``."""
        try:
            found = points.offset_before_time(self._index, log.prefix, timestamp_ms)
        except (StorageError, OutOfResourcesError) as error:
            _report(log, error)
            found = None
        return log.identity.base_offset if found is None else found


def _chained_behind(base_offset: int, raw: bytes) -> LogTail:
    """Enough to follow the chain from a batch on; what is added up from the base is not known."""
    return LogTail(
        end_offset=base_offset,
        last_header_crc32c=peek_previous_crc(raw),
        digest=b"",
        max_append_timestamp_ms=0,
        max_known_high_watermark=0,
        length_bytes=0,
    )


def _report(log: SegmentLog, error: Exception) -> None:
    segment_id = log.identity.segment_id
    event(_log, logging.ERROR, "index_lookup_failed", segment_id=segment_id, error=error)
