"""The index of all replicas: the engine that has a replica answers, and all engines flush.

Sealed logs of all engines get the same index, which is why ``maintain`` also hands them over.
"""

from collections.abc import Sequence

from icecore.model import SegmentId
from icecore_node.ports import DiskLostError
from icecore_node.storage.engine import Candidates, Engine, IndexSummary, OffsetRange
from icecore_node.storage.hand_over import HandOver
from icecore_node.storage.replica_catalog import ReplicaCatalog


class ReplicaIndex:
    """``LogIndex`` over all engines; used by any number of threads."""

    def __init__(self, catalog: ReplicaCatalog, hand_over: HandOver) -> None:
        self._catalog = catalog
        self._hand_over = hand_over

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
        return self._catalog.ask(
            segment_id,
            lambda engine: engine.index.candidates(
                segment_id, hashes, asked, limit=limit, newest_first=newest_first
            ),
        )

    def summary(self, segment_id: SegmentId) -> IndexSummary:
        """See ``LogIndex.summary``."""
        return self._catalog.ask(segment_id, lambda engine: engine.index.summary(segment_id))

    def verify(self, segment_id: SegmentId) -> int:
        """See ``LogIndex.verify``."""
        return self._catalog.ask(segment_id, lambda engine: engine.index.verify(segment_id))

    def sealed_part(self, segment_id: SegmentId, length: int, position: int) -> bytes:
        """See ``LogIndex.sealed_part``."""
        return self._catalog.ask(
            segment_id, lambda engine: engine.index.sealed_part(segment_id, length, position)
        )

    def maintain(self) -> bool:
        """See ``LogIndex.maintain``: a step of each engine, and of what was sealed."""
        left = [_maintain(engine) for _, engine in self._catalog.in_use()]
        return any([self._hand_over.step(), *left])

    def flush(self) -> None:
        """See ``LogIndex.flush``."""
        for _, engine in self._catalog.in_use():
            engine.index.flush()
        self._catalog.control.database.keep_reserve()


def _maintain(engine: Engine) -> bool:
    try:
        return engine.index.maintain()
    except DiskLostError:  # it is not in use any more; the others are
        return True
