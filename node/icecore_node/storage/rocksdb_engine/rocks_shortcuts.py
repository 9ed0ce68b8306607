"""Find the start of a read of a log in the database: in memory, or by halves.

Values are found by position, and each begins with a batch that tells its offset: a search for an
offset looks at about fourteen of them in a log of 1 GiB.
"""

from dataclasses import replace

from icecore.codec.batch import BatchHeader, parse_header
from icecore.errors import CorruptBatchError
from icecore_node.storage.batches.batch_log import Place, Readable
from icecore_node.storage.engine import NO_TAIL
from icecore_node.storage.rocksdb_engine.rocks_log import RocksLog


class RocksShortcuts:
    """``Shortcuts`` of logs in the database; used by any number of threads."""

    def span(
        self, log: RocksLog, offset: int, max_bytes: int, end_offset: int, end: Place
    ) -> tuple[int, int, int] | None:
        """See ``Shortcuts.span``: of the newest batches."""
        tail, position = end
        return log.recent.span(offset, max_bytes, end_offset, tail.end_offset, position)

    def tail_before(self, log: RocksLog, end_offset: int) -> Place:
        """See ``Shortcuts.tail_before``."""
        for place in reversed(list(log.tails)):
            if place[0].end_offset <= end_offset:
                return place
        return log.base

    def batch_before(self, log: RocksLog, file: Readable, offset: int) -> Place:
        """See ``Shortcuts.batch_before``."""
        found = log.base
        low, high = 0, log.end[1]
        while low < high:  # ``found`` is the last value that is known to begin early enough
            middle = (low + high) // 2
            value = log.handle.value_at(middle)
            header = None if value is None else _first(log, value[1])
            if value is None or header is None or header.base_offset > offset:
                high = middle if value is None else value[0]
                continue
            found = _place(header, value[0])
            low = value[0] + len(value[1])
        return found

    def offset_before(self, log: RocksLog, timestamp_ms: int) -> int:
        """See ``Shortcuts.offset_before``: the base, for times need not grow."""
        return log.identity.base_offset


def _first(log: RocksLog, value: bytes) -> BatchHeader | None:
    """Return the header of a value's first batch; None when it is no batch of this log."""
    try:
        header = parse_header(value)
    except CorruptBatchError:
        return None
    return header if header.segment_id == log.identity.segment_id else None


def _place(header: BatchHeader, position: int) -> Place:
    """Enough to follow the chain from there; what is added up from the base is not known."""
    tail = replace(
        NO_TAIL, end_offset=header.base_offset, last_header_crc32c=header.prev_header_crc32c
    )
    return tail, position
