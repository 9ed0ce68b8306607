"""Index of logs in shared files: there is none but their runs, which are in memory.

So records in the active part of such a log are found by reading it; once it is sealed and handed
over, it has an index file. ``maintain`` has another purpose here: it removes files in which no log
has bytes.
"""

from collections.abc import Callable, Sequence

from icecore.model import SegmentId
from icecore_node.storage.batches.no_index import NoIndex
from icecore_node.storage.engine import Candidates, IndexSummary, OffsetRange


class SharedIndex:
    """See ``LogIndex``.

    Args:
        find: Raises NotReplicaError when there is no such log.
        free: Removes files in which nothing lives; whether there were any.
    """

    def __init__(self, find: Callable[[SegmentId], object], free: Callable[[], bool]) -> None:
        self._none = NoIndex(find)
        self._free = free

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
        return self._none.candidates(
            segment_id, hashes, asked, limit=limit, newest_first=newest_first
        )

    def summary(self, segment_id: SegmentId) -> IndexSummary:
        """See ``LogIndex.summary``."""
        return self._none.summary(segment_id)

    def verify(self, segment_id: SegmentId) -> int:
        """See ``LogIndex.verify``."""
        return self._none.verify(segment_id)

    def sealed_part(self, segment_id: SegmentId, length: int, position: int) -> bytes:
        """See ``LogIndex.sealed_part``."""
        return self._none.sealed_part(segment_id, length, position)

    def maintain(self) -> bool:
        """See ``LogIndex.maintain``."""
        self._free()
        return False

    def flush(self) -> None:
        """See ``LogIndex.flush``: the segment engine flushes the database in which notes are."""
