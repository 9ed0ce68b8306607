"""Start-up judgement of one log in the database: it ends where its tail says, or is UNKNOWN.

A change is in the database as a whole or not at all, so there is no torn tail to cut: batches and
tail are either both there or both never synced. What was synced and is not there any more, in the
middle or at the end, shows as a chain that does not come to the tail.
"""

from icecore.errors import SHORTAGES, StorageError
from icecore_node.storage.batches.batch_log import Place, with_high_watermark
from icecore_node.storage.batches.batch_scan import BatchScan
from icecore_node.storage.engine import NO_TAIL, BatchMark, FoundLog, KnownLog
from icecore_node.storage.rocksdb_engine.log_database import LogDatabase
from icecore_node.storage.rocksdb_engine.log_keys import (
    log_key,
    read_slot,
    read_tail,
    tail_key,
)
from icecore_node.storage.rocksdb_engine.rocks_log import RocksLog, StoredBatches


class LogJudge:
    """Judges logs of one database, and changes nothing."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    def judge(self, known: KnownLog) -> tuple[RocksLog | None, FoundLog]:
        """The log, unless it is damaged, and what was found.

        Raises OutOfSpaceError, OutOfResourcesError: a shortage, which says nothing about it.
        """
        try:
            return self._judge(known)
        except StorageError as error:
            if isinstance(error, SHORTAGES):
                raise
            return None, _damaged(str(error))

    def _judge(self, known: KnownLog) -> tuple[RocksLog | None, FoundLog]:
        segment_id = known.identity.segment_id
        value = self._database.get(log_key(segment_id))
        if value is None:
            return None, _damaged("missing")
        stored = StoredBatches(self._database, read_slot(value).number)
        log = RocksLog(known.identity, known.start_timestamp_ms, stored)
        told = self._database.get(tail_key(stored.slot))
        end = log.base if told is None else read_tail(told)
        if known.sealed is not None:
            return _sealed(known, log, end)
        if known.identity.base_offset < 0:
            return log, FoundLog(NO_TAIL, "prepared")
        return _walked(log, end)


def _sealed(known: KnownLog, log: RocksLog, end: Place) -> tuple[RocksLog | None, FoundLog]:
    """It was proved when it was sealed; what rots later is found by those who read it."""
    assert known.sealed is not None
    tail = known.sealed.tail
    if (end[0].end_offset, end[0].digest) != (tail.end_offset, tail.digest):
        why = f"it ends at {end[0].end_offset}, and was sealed at {tail.end_offset}"
        return None, _damaged(f"lost durable tail: {why}")
    log.end = (tail, known.sealed.position)
    log.is_sealed = True
    return log, FoundLog(tail, "sealed")


def _walked(log: RocksLog, end: Place) -> tuple[RocksLog | None, FoundLog]:
    told, position = end
    start, first = log.base
    scan = BatchScan(log.handle, log.identity, first, start, position, with_bodies=True)
    headers: list[bytes] = []
    for found in scan:
        header = found.header
        headers.append(found.header_bytes)
        mark = BatchMark(header.base_offset, header.append_timestamp_ms, header.batch_length)
        log.advance([mark], scan.tail)
    if (scan.position, scan.tail.digest) != (position, told.digest):
        why = f"its tail is {told.end_offset}, its batches end at {scan.tail.end_offset}"
        return None, _damaged(f"mid-log damage: {why}: {scan.stop}")
    log.end = (with_high_watermark(scan.tail, told.max_known_high_watermark), position)
    return log, FoundLog(log.end[0], "clean", headers=headers)


def _damaged(why: str) -> FoundLog:
    return FoundLog(NO_TAIL, why, damage=why)
