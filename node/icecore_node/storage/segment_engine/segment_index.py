"""Index of segment files, to find records: the ``LogIndex`` of this engine.

Each log has a ``Coverage`` (``index/coverage.py``): entries in memory and in the database while it
is written, an index file once it is sealed. ``appended_entries.py`` adds to it, ``index_upkeep.py``
maintains it, and this module answers queries from it.
"""

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from icecore.codec.batch import peek
from icecore.codec.index_entries import NO_ENTRIES, has_nothing_to_find
from icecore.errors import SHORTAGES, NotReplicaError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.storage.engine import (
    ACTIVE_INDEX,
    NO_INDEX,
    SEALED_INDEX,
    Candidates,
    IndexSummary,
    OffsetRange,
)
from icecore_node.storage.index.coverage import Cover, gaps_between
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.index_search import IndexSearch
from icecore_node.storage.index.posting_blocks import DamagedIndexError
from icecore_node.storage.index.recent_entries import ENTRY_BYTES, EntryMemory, RecentEntries
from icecore_node.storage.index.stored_entries import StoredEntries, StoredRun
from icecore_node.storage.segment_engine.index_files import SealedCover
from icecore_node.storage.segment_engine.index_runs import CoverDamagedError
from icecore_node.storage.segment_engine.index_upkeep import IndexDue, IndexUpkeep
from icecore_node.storage.segment_engine.segment_log import SegmentLog

_log = logging.getLogger(__name__)


class SegmentIndex:
    """See ``LogIndex``.

    Args:
        index: The database.
        logs: Those in use, by segment id; the engine's, and only looked at.
        stored: Entries in the database.
        upkeep: Tends them.
        due: What is to be maintained.
        memory: Of recent entries.
    """

    def __init__(
        self,
        index: DerivedIndex,
        logs: Mapping[SegmentId, SegmentLog],
        stored: StoredEntries,
        upkeep: IndexUpkeep,
        due: IndexDue,
        memory: EntryMemory,
    ) -> None:
        self._index = index
        self._logs = logs
        self._stored = stored
        self._upkeep = upkeep
        self._due = due
        self._memory = memory

    # --- what the engine does -----------------------------------------------------------------

    def adopt(self, log: SegmentLog, headers: Sequence[bytes]) -> None:
        """Take over what an earlier process left of a log. Of a sealed one nothing is looked at
        before somebody asks.

        Args:
            log: Judged, not written yet.
            headers: Of all batches of an unsealed log.
        """
        if not log.is_sealed:
            covers: list[Cover] = []
            if log.is_confirmed:
                span = (log.identity.base_offset, log.tail.end_offset)
                covers += self._stored.load(log.prefix, *span).covers
                for gap in gaps_between(covers, span):
                    covers += self._without_entries(headers, gap)
                covers.sort(key=lambda cover: cover.from_offset)
                if covers and isinstance(covers[-1], RecentEntries):
                    covers[-1].is_closed = False
            log.coverage.load(covers)
        self._due.note(log.identity.segment_id)

    def _without_entries(self, headers: Sequence[bytes], gap: OffsetRange) -> list[Cover]:
        """Return covers for the batches of a gap that, as their headers say, have no entries."""
        found: list[Cover] = []
        start, end = gap
        for at in range(bisect_left(headers, start, key=_base_offset), len(headers)):
            _, base, stop = peek(headers[at])
            if base >= end:
                break
            if not has_nothing_to_find(headers[at]):
                continue
            if not found or found[-1].end_offset != base:
                found.append(RecentEntries(base, self._memory))
            last = found[-1]
            assert isinstance(last, RecentEntries)
            last.add(NO_ENTRIES, stop)
            last.is_closed = True
        return found

    def close(self) -> None:
        """End what is maintained; called before the logs are let go of."""
        self._upkeep.close()

    # --- the port -----------------------------------------------------------------------------

    def candidates(
        self,
        segment_id: SegmentId,
        hashes: Sequence[int],
        asked: OffsetRange,
        *,
        limit: int,
        newest_first: bool = False,
    ) -> Candidates:
        """See ``LogIndex.candidates``."""
        log = self._find(segment_id)
        search = IndexSearch(log.identity.base_offset, hashes, asked)
        covers = log.coverage.covers if log.is_confirmed else ()
        found = search.run(covers, max(limit, 1), newest_first=newest_first)
        for cover in search.damaged:
            self._upkeep.drop(log, CoverDamagedError(cover, DamagedIndexError("while searched")))
        return found

    def summary(self, segment_id: SegmentId) -> IndexSummary:
        """See ``LogIndex.summary``."""
        covers = self._find(segment_id).coverage.covers
        if not covers:
            return IndexSummary(NO_INDEX)
        try:
            if isinstance(covers[0], SealedCover):
                index = covers[0].index
                facts = index.facts
                times = (facts.min_timestamp_ms, facts.max_timestamp_ms)
                return IndexSummary(
                    SEALED_INDEX,
                    index.length_bytes,
                    index.run.directory.entries,
                    1,
                    times if times[0] <= times[1] else None,
                )
        except DamagedIndexError:
            return IndexSummary(NO_INDEX)  # who searches it drops it
        length_bytes = sum(map(_length_bytes, covers))
        entries = sum(cover.entries for cover in covers)
        return IndexSummary(ACTIVE_INDEX, length_bytes, entries, len(covers))

    def verify(self, segment_id: SegmentId) -> int:
        """See ``LogIndex.verify``: of a sealed log, whose index is a file."""
        log = self._find(segment_id)
        for cover in log.coverage.covers:
            if isinstance(cover, SealedCover):
                try:
                    cover.index.verify()
                    return cover.index.length_bytes
                except DamagedIndexError as error:
                    self._upkeep.drop(log, CoverDamagedError(cover, error))
        return 0

    def sealed_part(self, segment_id: SegmentId, length: int, position: int) -> bytes:
        """See ``LogIndex.sealed_part``."""
        log = self._find(segment_id)
        for cover in log.coverage.covers:
            if isinstance(cover, SealedCover):
                try:
                    return cover.read(length, position)
                except DamagedIndexError as error:
                    self._upkeep.drop(log, CoverDamagedError(cover, error))
        return b""

    def maintain(self) -> bool:
        """See ``LogIndex.maintain``."""
        return self._upkeep.step()

    def flush(self) -> None:
        """See ``LogIndex.flush``."""
        try:
            self._index.flush()
        except SHORTAGES as error:
            event(_log, logging.WARNING, "index_lags", error=error)

    def _find(self, segment_id: SegmentId) -> SegmentLog:
        """A log whose coverage is here."""
        log = self._logs.get(segment_id)
        if log is None:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        if not log.coverage.is_loaded:
            self._upkeep.load(log)
        return log


def _base_offset(header: bytes) -> int:
    return peek(header)[1]


def _length_bytes(cover: Cover) -> int:
    if isinstance(cover, StoredRun):
        return cover.run.directory.length_bytes
    return cover.entries * ENTRY_BYTES
