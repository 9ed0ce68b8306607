"""Carries out what topics keep: moves log starts, then lets whole segments below them go.

Level-triggered, and it looks only where something may be due: at partitions that changed, at those
whose next segment expires now, and at those whose tail grew as far as more is expired. A look moves
log starts; the next one, a second later, orders the files to be deleted, so nodes have heard the
new start by then. What one look does is bounded.
"""

import heapq
import logging

from icecore.errors import IcecoreError
from icecore.model import SegmentId, SegmentState
from icecore.process.log import event
from icecore_coordinator.decisions.retention import (
    NEVER,
    RetentionVerdict,
    TailNews,
    delete_below_start,
    retain,
    verdict,
)
from icecore_coordinator.state.records import (
    Change,
    PartitionKey,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
)
from icecore_coordinator.work.segments.rolls import TailRolls
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

PARTITIONS_PER_LOOK = 512


class RetentionScheduler:
    """Keeps only where to look; a new one looks everywhere once."""

    def __init__(self, ports: WorkerPorts, rolls: TailRolls) -> None:
        self._ledger = ports.ledger
        self._heard = ports.heard
        self._clock = ports.clock
        self._rolls = rolls
        self._changed: dict[PartitionKey, None] = {}
        self._due: list[tuple[float, PartitionKey]] = []
        """A heap: when to look at a partition again, in counted time."""
        self._due_ms: dict[PartitionKey, float] = {}
        """Time of each partition's valid entry in the heap. Later entries of a partition are not
        made."""
        self._grows_to: dict[SegmentId, float] = {}
        """By tail: how long it is when more of its partition is expired."""

    def start(self) -> None:
        """Everything has to be looked at once. The ledger is open."""
        self._changed = dict.fromkeys(self._ledger.state.partitions)
        self._ledger.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        """Note what a committed change may have made due."""
        for record in (*change.puts, *change.deletes):
            match record:
                case SegmentRecord():
                    self._changed[record.partition_key] = None
                    if record.segment.state == SegmentState.SEALED:
                        self._grows_to.pop(record.segment.segment_id, None)
                case PartitionRecord():
                    self._changed[record.partition_key] = None
                case TopicRecord():
                    for partition in self._ledger.state.partitions_of(record):
                        self._changed[partition.partition_key] = None
                case _:
                    pass

    async def look(self) -> None:
        """Let go what may go, then move log starts, then have old tails sealed."""
        keys = self._take_due()
        now_ms = self._clock.now_ms()
        await self._ledger.decide_each(
            keys, lambda state, key: delete_below_start(state, key, now_ms)
        )
        state = self._ledger.state
        found = {key: self._judge(key) for key in keys if key in state.partitions}
        await self._move(
            [
                key
                for key, each in found.items()
                if each.start_offset > state.partitions[key].log_start_offset
            ]
        )
        ripe = [state.partitions.get(key) for key, each in found.items() if each.is_roll_due]
        tails = [state.tail(each) for each in ripe if each is not None]
        await self._rolls.roll([each.segment for each in tails if each is not None], "retention")

    # --- where to look --------------------------------------------------------------------------

    def _take_due(self) -> list[PartitionKey]:
        state = self._ledger.state
        while self._due and self._due[0][0] <= state.counted_ms:
            at_ms, key = heapq.heappop(self._due)
            if self._due_ms.get(key) == at_ms:
                del self._due_ms[key]
                self._changed[key] = None
        for segment_id in self._heard.take_grown():
            record = state.segments.get(segment_id)
            grows_to = self._grows_to.get(segment_id, NEVER)
            if record is not None and self._heard.length_bytes(segment_id) >= grows_to:
                self._changed[record.partition_key] = None
        keys = list(self._changed)[:PARTITIONS_PER_LOOK]
        for key in keys:
            del self._changed[key]
        return [key for key in keys if key in state.partitions]

    def _judge(self, key: PartitionKey) -> RetentionVerdict:
        """Return the verdict on the partition, and note when to look again."""
        found = verdict(self._ledger.state, key, self._tail_news(key))
        if found.next_ms < self._due_ms.get(key, NEVER):
            self._due_ms[key] = found.next_ms
            heapq.heappush(self._due, (found.next_ms, key))
        if found.next_tail_bytes != NEVER:
            tail_segment_id = self._ledger.state.partitions[key].tail_segment_id
            self._grows_to[tail_segment_id] = found.next_tail_bytes
        return found

    def _tail_news(self, key: PartitionKey) -> TailNews:
        partition = self._ledger.state.partitions.get(key)
        if partition is None:
            return TailNews()
        tail = partition.tail_segment_id
        return TailNews(self._heard.length_bytes(tail), self._heard.high_watermark(tail) or 0)

    # --- what to do -----------------------------------------------------------------------------

    async def _move(self, keys: list[PartitionKey]) -> None:
        results = await self._ledger.decide_each(
            keys, lambda state, key: retain(state, key, self._tail_news(key))
        )
        for result in results:
            for record in () if isinstance(result, IcecoreError) else result.puts:
                assert isinstance(record, PartitionRecord)
                event(
                    _log,
                    logging.INFO,
                    "log_start_moved",
                    topic_id=record.topic_id,
                    partition=record.partition,
                    log_start_offset=record.log_start_offset,
                    why="retention",
                )
