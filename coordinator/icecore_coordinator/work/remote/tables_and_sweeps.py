"""Brings what lies in the object store to what metadata say: tables name what is published, and the
objects of what is closed go.

Both are level-triggered. A partition whose revision is above that of its table is told whole, so
that a call which is lost, repeats or comes late neither leaves a hole nor names anything twice
(R88). Metadata only believe that a table has a revision; somebody may remove the table, or put an
older one back. So each is told again when a coordinator starts, and once a day: one that knows the
revision stays as it is.

Objects go that nobody may look at any more: those of closed attempts, and topics that are gone
(R89). Only what metadata have closed, and closed attempts are never opened again: so an order that
comes late, even one of a coordinator that was replaced, removes nothing that counts.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.model import NodeId, SegmentId
from icecore.process.log import event
from icecore.tier_records import TierTopicRecord
from icecore_coordinator.decisions.remote.tiering import (
    Sweeping,
    committed,
    emptied,
    gone_topics,
    release,
    sweepings,
    swept,
)
from icecore_coordinator.decisions.remote.verified_copies import awaits_copy, held_attempt
from icecore_coordinator.decisions.topic_deletion import marked, to_mark
from icecore_coordinator.nodes.tier_calls import CopyMissingError, SweepItem, TableItem, TierCalls
from icecore_coordinator.state.cluster_state import stored_version
from icecore_coordinator.state.records import PartitionKey
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.remote.tier_nodes import SWEEP, TABLE, TieringErrors, TierNodes
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

# --- tables ---------------------------------------------------------------------------------------

TABLES_PER_LOOK = 64
CHECKS_PER_LOOK = 4
"""Each reads a table; nobody waits for it."""
COPIES_PER_TABLE = 500_000
"""Most copies of a partition in one call, at 70 bytes each: a message has 64 MiB at most. An order
with only a part would take the other copies out of the table."""
TABLE_WAIT_MS_MAX = 60_000.0


class TableScheduler:
    """Keeps only when it compared what; a new one compares everything once.

    Args:
        ports: The cluster.
        errors: What went wrong, for people.
        doubt: Told of a partition whose table can't be brought up to date: a copy is missing.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        errors: TieringErrors,
        doubt: Callable[[PartitionKey], None],
    ) -> None:
        self._doubt = doubt
        self._ledger = ports.ledger
        self._timing = ports.timing
        self._calls = TierCalls(ports.calls)
        self._errors = errors
        self._nodes = TierNodes(ports.ledger.state, ports.live, ports.clock)
        self._backoff: KeyedBackoff[PartitionKey] = KeyedBackoff(
            ports.clock, ports.timing.table_retry_ms, TABLE_WAIT_MS_MAX
        )
        self._clock = ports.clock
        self._checked_ms: dict[PartitionKey, float] = {}
        """When a node said last that the table has what is published, on the monotonic clock."""

    async def look(self) -> None:
        """Bring some of those that are behind up to date, one after the other: the table of a topic
        takes one commit at a time."""
        stale = self._ledger.state.tiers.stale_tables
        self._backoff.forget(lambda key: key not in stale and key not in self._checked_ms)
        state = self._ledger.state
        due = [
            key
            for key in stale
            if self._backoff.is_due(key) and self._is_told(key) and not awaits_copy(state, key)
        ]
        for key in (*due[:TABLES_PER_LOOK], *islice(self._unchecked(), CHECKS_PER_LOOK)):
            await self._commit(key)

    def _unchecked(self) -> Iterator[PartitionKey]:
        """Yield the partitions whose tables should be compared now."""
        tiers, now_ms = self._ledger.state.tiers, self._clock.monotonic_ms()
        published = list(tiers.published)
        self._checked_ms = {key: self._checked_ms.get(key, -math.inf) for key in published}
        for key in published:
            is_old = now_ms - self._checked_ms[key] >= self._timing.table_check_ms
            is_due = is_old and key not in tiers.stale_tables and self._backoff.is_due(key)
            if is_due and self._is_told(key):
                yield key

    def _is_told(self, key: PartitionKey) -> bool:
        """Return whether anything may be said of the partition. Not while its topic is imported:
        some log starts may still be missing, and what is stored first stays."""
        topic = self._ledger.state.topics.get(key[0])
        return topic is not None and not (topic.is_deleting or topic.is_import)

    async def _commit(self, key: PartitionKey) -> None:
        item, node_id = self._item(key), self._nodes.for_key(key[0])
        if item is None or node_id is None or awaits_copy(self._ledger.state, key):
            return
        self._backoff.take([key])
        try:
            _check_size(item)
            error = await self._calls.commit_table(node_id, item, self._timing.tier_call_ms / 1000)
        except IcecoreError as failure:
            error = failure
        finally:
            self._backoff.release(key, is_done=False)
        self._nodes.note(node_id, is_done=error is None)
        if error is not None:
            if isinstance(error, CopyMissingError):
                self._doubt(key)
            self._errors.note(key[0], error.message, TABLE)
            event(
                _log,
                logging.WARNING,
                "table_behind",
                topic_id=key[0],
                partition=key[1],
                node_id=node_id,
                error=error,
            )
            return
        self._checked_ms[key] = self._clock.monotonic_ms()
        while (await self._ledger.decide(lambda state: committed(state, key, item.revision))).puts:
            pass
        self._backoff.release(key, is_done=True)
        self._errors.forget(key[0], TABLE)

    def _item(self, key: PartitionKey) -> TableItem | None:
        state = self._ledger.state
        partition, topic = state.partitions.get(key), state.topics.get(key[0])
        if partition is None or topic is None or not self._is_told(key):
            return None
        published = [state.tiers.segments[each] for each in state.tiers.published.get(key, ())]
        published.sort(key=lambda each: each.base_offset)
        starts = {each.partition: each.log_start_offset for each in state.partitions_of(topic)}
        return TableItem(
            topic,
            key[1],
            partition.tier_revision,
            tuple(published),
            stored_version(state, topic),
            tuple(starts.get(number, 0) for number in range(topic.partitions)),
        )


def _check_size(item: TableItem) -> None:
    """Raises InvalidRequestError for more copies than one call takes."""
    if len(item.segments) > COPIES_PER_TABLE:
        raise InvalidRequestError(
            f"partition {item.partition} has {len(item.segments)} copies in object storage, its "
            f"table takes {COPIES_PER_TABLE}: let retention delete old records, and give the topic "
            "larger segments or more partitions"
        )


# --- sweeps ---------------------------------------------------------------------------------------

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
