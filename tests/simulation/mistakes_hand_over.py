"""Seeded mistakes on the way of a sealed log to a file of its own; see ``mistakes``."""

from icecore.codec.batch import iter_batches
from icecore_node.storage.engine import LogEnd
from icecore_node.storage.hand_over import HandOver, _Copying
from icecore_node.storage.rocksdb_engine.rocks_log import StoredBatches
from icecore_node.storage.segment_engine.incoming import IncomingLog
from tests.simulation.mistakes import Mistake, patch


def hand_over_drops_first() -> Mistake:
    """I17: the engine lets go of a log before its record names who else has it."""
    remember = HandOver._remember

    def wrong(self: HandOver, copying: _Copying, end: LogEnd) -> None:
        row = copying.row
        self._catalog.engine_named(row.engine).drop([self._catalog.identity(row)])
        remember(self, copying, end)

    return patch(HandOver, "_remember", wrong)


def hand_over_not_synced() -> Mistake:
    """I17: the bytes of the engine go when the file that replaces them is only written."""
    return patch(IncomingLog, "sync", lambda self: None)


def extraction_loses_the_last_batch() -> Mistake:
    """I20: what is copied out of a shared file ends before its last batch."""
    append = IncomingLog.append

    def wrong(self: IncomingLog, data: bytes) -> None:
        sealed = self._log.sealed
        if sealed is not None and self._length:  # what comes first is the header of the file
            *_, (position, last) = iter_batches(data)
            is_last = last.base_offset + last.record_count == sealed.tail.end_offset
            data = data[:position] if is_last else data
        append(self, data)

    return patch(IncomingLog, "append", wrong)


def dropped_is_damage() -> Mistake:
    """R40: who still reads a log when its new location has it takes what is missing for damage."""
    return patch(StoredBatches, "drop", lambda self: None)
