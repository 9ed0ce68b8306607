"""The parts of an engine that a search reads. They are few, so that object storage can offer them
too."""

from collections.abc import Sequence
from typing import Protocol

from icecore.model import SegmentId
from icecore_node.storage.engine import Candidates, IndexSummary, LogTail, OffsetRange


class SearchedLog(Protocol):
    """The part of a ``LogReader`` that searches use."""

    def tail(self, segment_id: SegmentId, /) -> LogTail:
        """See ``LogReader.tail``."""
        ...

    def read(
        self, segment_id: SegmentId, offset: int, max_bytes: int, end_offset: int, /
    ) -> tuple[bytes, int]:
        """See ``LogReader.read``."""
        ...


class SearchedIndex(Protocol):
    """The part of a ``LogIndex`` that searches use."""

    def candidates(
        self,
        segment_id: SegmentId,
        hashes: Sequence[int],
        asked: OffsetRange,
        /,
        *,
        limit: int,
        newest_first: bool = False,
    ) -> Candidates:
        """See ``LogIndex.candidates``."""
        ...

    def summary(self, segment_id: SegmentId, /) -> IndexSummary:
        """See ``LogIndex.summary``."""
        ...
