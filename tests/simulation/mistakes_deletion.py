"""Seeded mistakes in what becomes of deleted topics; see ``mistakes``."""

from icecore.model import SegmentState
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, drop
from icecore_coordinator.work.topic_deletion import TopicDeletions
from tests.simulation.mistakes import Mistake, patch


def grace_ignored() -> Mistake:
    """R68: the sealed segments of a deleted topic become deletion records at once."""
    look = TopicDeletions.look

    def deletions(state: ClusterState) -> Change:
        records = [
            each
            for each in state.segments.values()
            if each.segment.state is SegmentState.SEALED
            and not state.is_live_topic(each.segment.topic_id)
        ]
        return drop(records[:40], 0)

    async def wrong(self: TopicDeletions) -> None:
        await look(self)
        await self._ledger.decide(deletions)

    return patch(TopicDeletions, "look", wrong)
