"""Has objects removed that nobody may look at any more: those of closed attempts, and topics that
are gone (R89).

Only what metadata have closed, and closed attempts are never opened again: so an order that comes
late, even one of a coordinator that was replaced, removes nothing that counts.
"""

import logging
from collections.abc import Sequence

from icecore.errors import IcecoreError
from icecore.model import NodeId, SegmentId
from icecore.process.log import event
from icecore.tier_records import TierTopicRecord
from icecore_coordinator.decisions.tier_withdrawal import held_attempt
from icecore_coordinator.decisions.tiering import (
    Sweeping,
    emptied,
    gone_topics,
    release,
    sweepings,
    swept,
)
from icecore_coordinator.decisions.topic_deletion import marked, to_mark
from icecore_coordinator.nodes.tier_calls import SweepItem, TierCalls
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.remote.tier_nodes import TierNodes
from icecore_coordinator.work.remote.tiering_errors import SWEEP, TieringErrors
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

ATTEMPTS_PER_SWEEP = 200
SWEEP_WAIT_MS_MAX = 60_000.0


class SweepScheduler:
    """Keeps no state that matters.

    Args:
        ports: The cluster.
        errors: What went wrong, for people.
    """

    def __init__(self, ports: WorkerPorts, errors: TieringErrors) -> None:
        self._ledger = ports.ledger
        self._timing = ports.timing
        self._calls = TierCalls(ports.calls)
        self._errors = errors
        self._nodes = TierNodes(ports.ledger.state, ports.live, ports.clock)
        waits_ms = ports.timing.sweep_retry_ms, SWEEP_WAIT_MS_MAX
        self._attempts: KeyedBackoff[SegmentId] = KeyedBackoff(ports.clock, *waits_ms)
        self._topics: KeyedBackoff[bytes] = KeyedBackoff(ports.clock, *waits_ms)
        self._marks: KeyedBackoff[bytes] = KeyedBackoff(ports.clock, *waits_ms)

    async def look(self) -> None:
        """Mark what is deleted, release what is retired, then sweep what is closed."""
        tiers = self._ledger.state.tiers
        self._attempts.forget(lambda each: each not in tiers.closed)
        for known in (self._topics, self._marks):
            known.forget(lambda each: each not in tiers.topics)
        for topic in to_mark(self._ledger.state):
            node_id = self._nodes.for_key(b"sweep")
            if node_id is not None and self._marks.is_due(topic.topic_id):
                await self._mark(node_id, topic)
        grace_ms = self._timing.tier_reader_grace_ms
        await self._ledger.decide_each(
            list(tiers.retiring), lambda state, each: release(state, each, grace_ms)
        )
        due, node_id = self._due(), self._nodes.for_key(b"sweep")
        if due and node_id is not None:
            await self._sweep(node_id, due)
        for topic_id in gone_topics(self._ledger.state):
            node_id = self._nodes.for_key(b"sweep")
            if node_id is not None and self._topics.is_due(topic_id):
                await self._empty(node_id, topic_id)

    def _due(self) -> list[Sweeping]:
        state, keep_ms = self._ledger.state, self._timing.tier_closed_keep_ms
        grace_ms = self._timing.tier_reader_grace_ms
        found: list[Sweeping] = []
        for segment_id in state.tiers.closed:
            if len(found) >= ATTEMPTS_PER_SWEEP:
                break
            if self._attempts.is_due(segment_id):
                held = held_attempt(state, state.tiers.segments[segment_id], grace_ms)
                found += sweepings(state, segment_id, keep_ms, held)
        return found[:ATTEMPTS_PER_SWEEP]

    async def _sweep(self, node_id: NodeId, due: Sequence[Sweeping]) -> None:
        tiers = self._ledger.state.tiers.segments
        items = [SweepItem(tiers[each.segment_id], each.attempt) for each in due]
        results: Sequence[IcecoreError | bool]
        try:
            results = await self._calls.sweep(node_id, items, self._timing.tier_call_ms / 1000)
        except IcecoreError as error:
            results = [error] * len(items)
        done = [
            each
            for each, result in zip(due, results, strict=True)
            if not isinstance(result, IcecoreError)
        ]
        self._nodes.note(node_id, is_done=len(done) == len(due))
        await self._ledger.decide_each(done, swept)
        for item, each, result in zip(items, due, results, strict=True):
            is_done = not isinstance(result, IcecoreError)
            self._attempts.release(each.segment_id, is_done=is_done)
            if isinstance(result, IcecoreError):
                self._errors.note(item.tier.topic_id, result.message, SWEEP)
            else:
                self._errors.forget(item.tier.topic_id, SWEEP)
            _tell_swept(each, result)

    async def _mark(self, node_id: NodeId, topic: TierTopicRecord) -> None:
        try:
            error = await self._calls.mark_gone(node_id, topic, self._timing.tier_call_ms / 1000)
        except IcecoreError as failure:
            error = failure
        self._nodes.note(node_id, is_done=error is None)
        self._marks.release(topic.topic_id, is_done=error is None)
        if error is not None:
            event(_log, logging.WARNING, "topic_not_marked", topic_id=topic.topic_id, error=error)
        else:
            await self._ledger.decide(lambda state: marked(state, topic))

    async def _empty(self, node_id: NodeId, topic_id: bytes) -> None:
        """``is_last`` is judged before the call: what is closed after it may still be put."""
        is_last = not self._ledger.state.tiers.of_topic.get(topic_id)
        try:
            error = await self._calls.empty_topic(
                node_id, topic_id, self._timing.tier_call_ms / 1000
            )
        except IcecoreError as failure:
            error = failure
        self._nodes.note(node_id, is_done=error is None)
        self._topics.release(topic_id, is_done=error is None)
        if error is not None:
            event(_log, logging.WARNING, "topic_not_emptied", topic_id=topic_id, error=error)
        else:
            event(_log, logging.INFO, "topic_emptied", topic_id=topic_id)
            await self._ledger.decide(lambda state: emptied(state, topic_id, is_last=is_last))


def _tell_swept(each: Sweeping, result: object) -> None:
    if isinstance(result, IcecoreError):
        event(
            _log,
            logging.WARNING,
            "not_swept",
            segment_id=each.segment_id,
            attempt=each.attempt,
            error=result,
        )
    else:
        event(
            _log,
            logging.INFO,
            "swept",
            segment_id=each.segment_id,
            attempt=each.attempt,
            is_last=each.is_last,
        )
