"""Salvage of logs in the database, in their place or set aside, and how a log is cut."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from icecore.errors import SHORTAGES, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.batches.batch_scan import BatchScan, empty_tail
from icecore_node.storage.engine import FoundLog, KnownLog
from icecore_node.storage.rocksdb_engine import log_keys as keys
from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange, LogDatabase
from icecore_node.storage.rocksdb_engine.log_keys import KeySlot
from icecore_node.storage.rocksdb_engine.rocks_log import RocksLog, StoredBatches

_log = logging.getLogger(__name__)


class ProvenSlot(NamedTuple):
    """The part of one copy of a log that is right from the first byte on."""

    slot: int
    end: Place


class Commit(Protocol):
    """Makes a change durable; a sync that fails condemns these segments."""

    def __call__(self, change: DatabaseChange, *segment_ids: SegmentId) -> None: ...


class DatabaseRemains:
    """``Remains`` in the database.

    Args:
        database: Of the engine.
        logs: Those in use.
        change: Makes changes durable.
        use: Judges what is in the place of a log, and uses it.
    """

    def __init__(
        self,
        database: LogDatabase,
        logs: Mapping[SegmentId, RocksLog],
        change: Commit,
        use: Callable[[KnownLog], FoundLog],
    ) -> None:
        self._database = database
        self._logs = logs
        self._change = change
        self._use = use

    def strays(self) -> list[SegmentId]:
        """See ``Remains.strays``."""
        found = [keys.segment_of(key) for key, _ in self._database.scan(*keys.LOGS)]
        return [segment_id for segment_id in found if segment_id not in self._logs]

    def provable(self, log: KnownLog) -> Iterator[ProvenSlot]:
        """See ``Remains.provable``."""
        for slot in slots_of(self._database, log.identity.segment_id):
            start = empty_tail(log.identity, log.start_timestamp_ms)
            stored = StoredBatches(self._database, slot)
            scan = BatchScan(stored, log.identity, 0, start, keys.NUMBER_MAX, with_bodies=True)
            try:
                for _ in scan:
                    pass
            except StorageError as error:  # what can't be read is not right either
                if isinstance(error, SHORTAGES):
                    raise
                event(_log, logging.WARNING, "salvage_ends", position=scan.position, error=error)
            yield ProvenSlot(slot, (scan.tail, scan.position))

    def put_back(self, log: KnownLog, found: ProvenSlot) -> None:
        """See ``Remains.put_back``: the copy itself, cut where the proof ends."""
        segment_id = log.identity.segment_id
        change = cut_back(StoredBatches(self._database, found.slot), found.end)
        slot = keys.pack_slot(KeySlot(found.slot, log.identity.base_offset))
        puts = [*change.puts, (keys.log_key(segment_id), slot)]
        cuts = [*change.cuts, one_key(keys.aside_key(segment_id, found.slot))]
        self._change(DatabaseChange(puts, cuts))

    def use(self, log: KnownLog, found: ProvenSlot) -> FoundLog:
        """See ``Remains.use``."""
        segment_id, end_offset = log.identity.segment_id, found.end[0].end_offset
        event(_log, logging.CRITICAL, "log_salvaged", segment_id=segment_id, end_offset=end_offset)
        return self._use(log)


def slots_of(database: LogDatabase, segment_id: SegmentId) -> Iterator[int]:
    """Yield the slots of all copies of one log."""
    value = database.get(keys.log_key(segment_id))
    if value is not None:
        yield keys.read_slot(value).number
    for _, value in database.scan(*keys.aside_range(segment_id)):
        yield keys.read_slot(value).number


def cut_back(stored: StoredBatches, end: Place) -> DatabaseChange:
    """Ends a log there: the value that holds the border is written again, shorter."""
    position = end[1]
    puts = [(keys.tail_key(stored.slot), keys.pack_tail(end))]
    found = stored.value_at(position - 1) if position else None
    if found is not None:
        start, value = found
        puts.append((keys.batches_key(stored.slot, start), value[: position - start]))
    return DatabaseChange(puts, cuts=[keys.batches_range(stored.slot, position)])


def one_key(key: bytes) -> tuple[bytes, bytes]:
    """The range of a single key."""
    return key, key + b"\0"
