"""``LogIndex`` of an engine that derives nothing: all of a log is a gap, which is always right."""

from collections.abc import Callable, Sequence

import numpy as np

from icecore.model import SegmentId
from icecore_node.storage.engine import NO_INDEX, Candidates, IndexSummary, OffsetRange


class NoIndex:
    """See ``LogIndex``.

    Args:
        find: Raises NotReplicaError when there is no such log.
    """

    def __init__(self, find: Callable[[SegmentId], object]) -> None:
        self._find = find

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

    def verify(self, segment_id: SegmentId) -> int:
        """See ``LogIndex.verify``."""
        self._find(segment_id)
        return 0

    def sealed_part(self, segment_id: SegmentId, length: int, position: int) -> bytes:
        """See ``LogIndex.sealed_part``."""
        self._find(segment_id)
        return b""

    def maintain(self) -> bool:
        """See ``LogIndex.maintain``."""
        return False

    def flush(self) -> None:
        """See ``LogIndex.flush``."""
