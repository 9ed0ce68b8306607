"""What is derived from segment files to find records: the ``LogIndex`` of this engine."""

import logging
from collections.abc import Sequence

import numpy as np

from icecore.errors import SHORTAGES, NotReplicaError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.storage.engine import NO_INDEX, Candidates, IndexSummary, OffsetRange
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.segment_engine.segment_log import SegmentLog

_log = logging.getLogger(__name__)


class SegmentIndex:
    """See ``LogIndex``.

    Args:
        index: The database.
        logs: Those in use, by segment id; the engine's, and only looked at.
    """

    def __init__(self, index: DerivedIndex, logs: dict[SegmentId, SegmentLog]) -> None:
        self._index = index
        self._logs = logs

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
        self._find(segment_id)
        nothing = np.empty(0, np.int64)
        return Candidates(asked, tuple(nothing for _ in hashes), (asked,), 0)

    def summary(self, segment_id: SegmentId) -> IndexSummary:
        """See ``LogIndex.summary``."""
        self._find(segment_id)
        return IndexSummary(NO_INDEX)

    def tend(self) -> bool:
        """See ``LogIndex.tend``."""
        return False

    def flush(self) -> None:
        """See ``LogIndex.flush``."""
        try:
            self._index.flush()
        except SHORTAGES as error:
            event(_log, logging.WARNING, "index_lags", error=error)

    def _find(self, segment_id: SegmentId) -> SegmentLog:
        log = self._logs.get(segment_id)
        if log is None:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        return log
