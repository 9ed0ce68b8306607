"""Ports of a search: the parts of an engine that it reads, and the sink that takes its
batches (``serving/query/log_search.py``)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from icecore.codec.batch import BatchHeader
from icecore.codec.picking import Picks
from icecore.errors import BatchTooLargeError, CorruptBatchError
from icecore.model import SegmentId
from icecore_node.remote.read.unread import Unread
from icecore_node.storage.engine import Candidates, IndexSummary, LogTail, OffsetRange


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it was read; ``position`` is in bytes."""

    data: bytes
    position: int
    header: BatchHeader

    def stored(self) -> memoryview:
        """Return the bytes of the batch."""
        return memoryview(self.data)[self.position : self.position + self.header.batch_length]


class Sink(Protocol):
    """Takes what a search finds, in its order."""

    @property
    def is_full(self) -> bool:
        """Return whether the sink takes no more records."""
        ...

    def take(self, found: StoredBatch, picks: Picks, places: Sequence[int]) -> int:
        """Take the records at these places of a batch, from the first on; say how many."""
        ...

    def refuse(self, found: StoredBatch, error: CorruptBatchError | BatchTooLargeError) -> bool:
        """Note a batch that can't be decoded, though its CRCs are right. Return whether to go on
        behind it."""
        ...


# --- what a search reads --------------------------------------------------------------------------

# The parts of an engine that a search reads. They are few, so that object storage can offer them
# too.


class SearchedLog(Protocol):
    """The part of a ``LogReader`` that searches use."""

    def tail(self, segment_id: SegmentId, /) -> LogTail:
        """See ``LogReader.tail``."""
        ...

    def read(
        self, segment_id: SegmentId, offset: int, max_bytes: int, end_offset: int, /
    ) -> tuple[bytes, int] | Unread:
        """See ``LogReader.read``. Unread: a log in object storage lacks that part here."""
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
    ) -> Candidates | Unread:
        """See ``LogIndex.candidates``. Unread: as ``SearchedLog.read``."""
        ...

    def summary(self, segment_id: SegmentId, /) -> IndexSummary:
        """See ``LogIndex.summary``."""
        ...
