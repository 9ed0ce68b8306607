"""Brings the tables of partitions to what metadata say is published (R88).

Level-triggered: a partition whose revision is above that of its table is told whole, so that a call
which is lost, repeats or comes late neither leaves a hole nor names anything twice. Metadata only
believe that a table has a revision; somebody may remove the table, or put an older one back. So
each is told again when a coordinator starts, and once a day: one that knows the revision stays as
it is.
"""

import logging
import math
from collections.abc import Callable, Iterator
from itertools import islice

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.process.log import event
from icecore_coordinator.decisions.tier_withdrawal import awaits_copy
from icecore_coordinator.decisions.tiering import committed
from icecore_coordinator.nodes.tier_calls import CopyMissingError, TableItem, TierCalls
from icecore_coordinator.state.cluster_state import stored_version
from icecore_coordinator.state.records import PartitionKey
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.remote.tier_nodes import TierNodes
from icecore_coordinator.work.remote.tiering_errors import TABLE, TieringErrors
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

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
