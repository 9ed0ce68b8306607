"""Making a topic of segments that are in object storage: what a restore from a bucket ends with."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from icecore.process.log import event
from icecore_coordinator.decisions.remote import tier_import
from icecore_coordinator.decisions.remote.imported import ImportedSegment, ImportedTopic
from icecore_coordinator.decisions.remote.tier_import import SEGMENTS_PER_CHANGE
from icecore_coordinator.state.cluster_state import ClusterState, eligible_nodes
from icecore_coordinator.state.records import Change, TopicRecord
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

Show: TypeAlias = Callable[[bytes], Awaitable[TopicRecord]]


class TierImport:
    """One topic at a time, in calls that may be repeated.

    Args:
        ports: The cluster.
        show: Shows an imported topic and opens its partitions, as ``TopicActs.show_imported`` does.
    """

    def __init__(self, ports: WorkerPorts, show: Show) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._show = show

    async def take(
        self,
        topic: ImportedTopic,
        segments: Sequence[ImportedSegment],
        segment_ids_max: int,
        attempts_max: int,
    ) -> None:
        """Some of its segments.

        Args:
            topic: What comes back.
            segments: Of it, in any order.
            segment_ids_max: The highest id that any object in the bucket has.
            attempts_max: Likewise of uploads.

        Raises what the decisions raise.
        """
        await self._ledger.decide(
            lambda state: tier_import.raise_counters(state, segment_ids_max, attempts_max)
        )
        if tier_import.is_imported(self._ledger.state, topic):
            return
        await self._ledger.decide(
            lambda state: tier_import.begin_import(
                state, topic, len(eligible_nodes(state, self._live))
            )
        )
        for at in range(0, len(segments), SEGMENTS_PER_CHANGE):
            some = segments[at : at + SEGMENTS_PER_CHANGE]
            await self._ledger.decide(partial(_added, topic.topic_id, some))

    async def finish(self, topic: ImportedTopic, table_revisions: Sequence[int]) -> TopicRecord:
        """Show the topic, once each partition is whole.

        Raises what the decisions raise.
        """
        state, topic_id = self._ledger.state, topic.topic_id
        if tier_import.is_imported(state, topic):
            return state.topics[topic_id]
        missing = partial(_missing, topic, table_revisions)
        while (await self._ledger.decide(missing)).puts:
            pass  # a change has a bounded size
        restored = await self._show(topic_id)
        event(
            _log,
            logging.INFO,
            "topic_restored",
            topic=topic.name,
            topic_id=topic_id,
            segments=len(state.tiers.of_topic.get(topic_id, ())),
        )
        return restored


def _added(topic_id: bytes, some: Sequence[ImportedSegment], state: ClusterState) -> Change:
    return tier_import.add_segments(state, topic_id, some)


def _missing(topic: ImportedTopic, table_revisions: Sequence[int], state: ClusterState) -> Change:
    return tier_import.missing_records(state, topic.topic_id, table_revisions, topic.log_starts)
