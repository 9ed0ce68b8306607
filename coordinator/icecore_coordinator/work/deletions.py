"""Carries deletions of topics through: counts what is left of each grace, then lets go.

The grace is counted here, by the monotonic clock of a coordinator that runs. What was counted is
stored every minute and at the end; a coordinator that dies takes less than a minute of it along, so
that files may go later than promised and never sooner (R68). Then segments become tombstones, which
are remembered for as long as an old disk might turn up with their bytes.
"""

import logging

from icecore.rpc.ports import Clock
from icecore_coordinator.decisions.topic_deletion import continue_delete, kept_topics, spend_grace
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.records import Change, TopicRecord

log = logging.getLogger(__name__)

STORE_EVERY_MS = 60_000
TOMBSTONE_KEEP_MS = 30 * 24 * 3600 * 1000


class Deletions:
    """Level-triggered, but for the time that it counts between two stores."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._since_ms: dict[tuple[bytes, int], float] = {}
        """(topic id, version of its record) and since when nothing was taken off its grace."""

    async def look(self) -> None:
        """Do what is due."""
        await self._count()
        topics = self._ledger.state.topics.values()
        for topic_id in [each.topic_id for each in topics if each.is_deleting]:
            await self.finish(topic_id)
        await self._forget_tombstones()

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
            log.info("event=grace_over topic=%s topic_id=%s", topic.name, topic.topic_id.hex())

    async def finish(self, topic_id: bytes) -> None:
        """Let a topic go for good; does nothing for topics that are not marked so."""
        now_ms = self._clock.now_ms()
        while True:
            change = await self._ledger.decide(
                lambda state: continue_delete(state, topic_id, now_ms)
            )
            if not change.puts and not change.deletes:
                return

    async def _forget_tombstones(self) -> None:
        oldest = self._clock.now_ms() - TOMBSTONE_KEEP_MS
        old = [
            each
            for each in self._ledger.state.deleted.values()
            if not each.holders and each.deleted_at_ms < oldest
        ]
        for record in old:
            await self._ledger.decide(
                lambda state, each=record: (
                    Change(deletes=(each,))  # type: ignore[misc]
                    if state.deleted.get(each.segment_id) is each
                    else Change()
                )
            )
