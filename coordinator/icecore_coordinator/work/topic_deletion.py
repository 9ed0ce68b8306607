"""Carry deletions of topics through: count what is left of each grace, then let go.

The grace is counted here, by the monotonic clock of a coordinator that runs. What was counted is
stored every minute and at the end; a coordinator that dies takes less than a minute of it along, so
that files may go later than promised and never sooner (R68). Then segments become deletion
records, which are remembered for as long as an old disk might turn up with their bytes.
"""

import asyncio
import logging
from collections.abc import Sequence

from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_coordinator.decisions.node_changes import confirm_deletion
from icecore_coordinator.decisions.topic_deletion import continue_delete, kept_topics, spend_grace
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, DeletionRecord, TopicRecord
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.backoff import KeyedBackoff

_log = logging.getLogger(__name__)

PAUSES_PER_STEP = 3
"""Letting a large topic go takes a quarter of the time: others' changes and acks have the rest."""
STORE_EVERY_MS = 60_000
CONFIRMED_PER_LOOK = 1_000
DELETIONS_PER_LOOK = 10_000
DELETION_KEEP_MS = 30 * 24 * 3600 * 1000


class TopicDeletions:
    """Level-triggered, but for the time that it counts between two stores. ``needed`` says which
    topics go; nobody else lets them go."""

    def __init__(self, ledger: Ledger, copies: CopyReports, clock: Clock, timing: Timing) -> None:
        self._ledger = ledger
        self._copies = copies
        self._clock = clock
        self._backoff: KeyedBackoff[bytes] = KeyedBackoff(
            clock, timing.retry_ms, timing.retry_max_ms
        )
        self._since_ms: dict[tuple[bytes, int], float] = {}
        """(topic id, version of its record) and since when nothing was taken off its grace."""
        self._remembered: list[SegmentId] = []
        """Deletion records still to be looked at in this round."""

    async def look(self) -> None:
        """Count what is left of each grace, and forget what nobody can come back with."""
        await self._count()
        gone = self._copies.deleted.take(CONFIRMED_PER_LOOK)
        await self._ledger.decide_each(
            gone.items(), lambda state, each: confirm_deletion(state, *each)
        )
        await self._forget_deletions()

    def needed(self) -> list[bytes]:
        """Topics that are deleted for good and that nobody lets go yet."""
        topics = self._ledger.state.topics.values()
        return [
            each.topic_id
            for each in topics
            if each.is_deleting and self._backoff.is_due(each.topic_id)
        ]

    async def _count(self) -> None:
        now = self._clock.monotonic_ms()
        kept = kept_topics(self._ledger.state)
        self._since_ms = {
            key: self._since_ms.get(key, now)
            for key in ((each.topic_id, each.version) for each in kept)
        }
        for topic in kept:
            spent_ms = int(now - self._since_ms[topic.topic_id, topic.version])
            if spent_ms >= min(topic.grace_left_ms, STORE_EVERY_MS):
                await self._spend(topic, spent_ms)

    async def _spend(self, topic: TopicRecord, spent_ms: int) -> None:
        change = await self._ledger.decide(
            lambda state: spend_grace(state, topic.topic_id, topic.version, spent_ms)
        )
        if any(isinstance(each, TopicRecord) and each.is_deleting for each in change.puts):
            event(_log, logging.INFO, "grace_over", topic=topic.name, topic_id=topic.topic_id)

    async def finish(self, topic_ids: Sequence[bytes]) -> None:
        """Let topics go for good; does nothing for those that are not marked so."""
        mine = self._backoff.take(topic_ids)
        try:
            for topic_id in mine:
                await self._finish(topic_id)
        finally:
            for topic_id in mine:
                self._backoff.release(topic_id, is_done=True)

    async def _finish(self, topic_id: bytes) -> None:
        now_ms = self._clock.now_ms()
        while True:
            began_ms = self._clock.monotonic_ms()
            change = await self._ledger.decide(
                lambda state: continue_delete(state, topic_id, now_ms)
            )
            if not change.puts and not change.deletes:
                return
            took_ms = self._clock.monotonic_ms() - began_ms
            await asyncio.sleep(PAUSES_PER_STEP * took_ms / 1000)

    async def _forget_deletions(self) -> None:
        """A part of them at a time: with retention there may be very many."""
        oldest = self._clock.now_ms() - DELETION_KEEP_MS
        deleted = self._ledger.state.deleted
        self._remembered = self._remembered or list(deleted)
        part = self._remembered[-DELETIONS_PER_LOOK:]
        del self._remembered[-DELETIONS_PER_LOOK:]
        known = [deleted[each] for each in part if each in deleted]
        old = [
            each
            for each in known
            if not each.holders
            and each.deleted_at_ms < oldest
            and each.segment_id not in self._ledger.state.segments
        ]
        await self._ledger.decide_each(old, _forgotten)


def _forgotten(state: ClusterState, record: DeletionRecord) -> Change:
    is_known = state.deleted.get(record.segment_id) is record
    return Change(deletes=(record,)) if is_known else Change()
