"""Lets nodes drop what they have of segments that lie in object storage (R87).

By the local retention of topics, and where no copy on nodes is left: then it is only noted. It
looks only where something may be due: at partitions that changed, and at those of which a segment
expires now. What one look does is bounded.
"""

import heapq
import logging
import math
from collections.abc import Callable
from typing import TypeVar

from icecore.errors import IcecoreError
from icecore.model import NodeId, SegmentId
from icecore.process.log import event
from icecore_coordinator.decisions.local_copies import (
    drop_copies,
    drop_expired_copies,
    drop_lost_copies,
    next_expiry_ms,
    spare_copies,
)
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    Change,
    PartitionKey,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
)
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

K = TypeVar("K")

DROPS_PER_LOOK = 512
PARTITIONS_PER_LOOK = 512


class LocalCopies:
    """Keeps only when it looked, and where to; a new one looks everywhere once."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._clock = ports.clock
        self._timing = ports.timing
        self._looked_ms = -math.inf
        self._changed: dict[PartitionKey, None] = {}
        self._due: list[tuple[int, PartitionKey]] = []
        """A heap: when to look at a partition again, in counted time."""
        self._due_ms: dict[PartitionKey, int] = {}
        """Time of each partition's valid entry in the heap. Later entries of a partition are not
        made."""

    def start(self) -> None:
        """Everything has to be looked at once. The ledger is open."""
        self._changed = dict.fromkeys(self._ledger.state.partitions)
        self._ledger.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        """Note what a committed change may have made due."""
        for record in change.puts:
            match record:
                case SegmentRecord() | PartitionRecord():
                    self._changed[record.partition_key] = None
                case TopicRecord():
                    for partition in self._ledger.state.partitions_of(record):
                        self._changed[partition.partition_key] = None
                case _:
                    pass

    async def look(self) -> None:
        """Drop what local retention says, and note what was lost; now and then."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < self._timing.local_look_ms:
            return
        self._looked_ms = now_ms
        wall_ms = self._clock.now_ms()
        await self._drop(
            self._suspects(),
            lambda state, each: drop_lost_copies(state, each, self._is_lost(each), wall_ms),
            "lost",
        )
        keys = self._take_due()
        await self._drop(
            keys,
            lambda state, key: drop_expired_copies(state, key, wall_ms),
            "local_retention",
        )
        self._note_next(keys)

    async def free(self, node_id: NodeId, lacking: int) -> int:
        """Drop the oldest published segments of a node whose disk is nearly full, until they free
        enough, however long their topics keep them there; how many bytes they free."""
        chosen: list[SegmentId] = []
        found = 0
        for each in spare_copies(self._ledger.state, node_id):
            if found >= lacking or len(chosen) >= DROPS_PER_LOOK:
                break
            chosen.append(each.segment_id)
            found += each.length_bytes
        wall_ms = self._clock.now_ms()
        await self._drop(
            chosen,
            lambda state, each: drop_copies(state, each, wall_ms),
            "disk_full",
        )
        return found

    def _take_due(self) -> list[PartitionKey]:
        state = self._ledger.state
        while self._due and self._due[0][0] <= state.counted_ms:
            at_ms, key = heapq.heappop(self._due)
            if self._due_ms.get(key) == at_ms:
                del self._due_ms[key]
                self._changed[key] = None
        # What has no copies in object storage is looked at once it has.
        self._changed = {key: None for key in self._changed if key[0] in state.tiers.held}
        keys = list(self._changed)[:PARTITIONS_PER_LOOK]
        for key in keys:
            del self._changed[key]
        return keys

    def _note_next(self, keys: list[PartitionKey]) -> None:
        for key in keys:
            next_ms = next_expiry_ms(self._ledger.state, key)
            if next_ms is not None and next_ms < self._due_ms.get(key, next_ms + 1):
                self._due_ms[key] = next_ms
                heapq.heappush(self._due, (next_ms, key))

    def _suspects(self) -> list[SegmentId]:
        """Published segments with a copy that counts no more."""
        state, now_ms = self._ledger.state, self._clock.monotonic_ms()
        gone = [each for each in state.nodes if self._is_gone(each, now_ms)]
        found = {each: None for node_id in gone for each in state.segments_of_node.get(node_id, ())}
        found.update((segment_id, None) for _, segment_id in self._copies.unknown())
        records = (state.segments[each] for each in found if each in state.segments)
        return [each.segment.segment_id for each in records if each.segment.is_tiered]

    def _is_gone(self, node_id: NodeId, now_ms: float) -> bool:
        down_ms = self._live.down_ms(node_id, now_ms)
        return down_ms is not None and down_ms >= self._timing.lost_replica_grace_ms

    def _is_lost(self, segment_id: SegmentId) -> Callable[[NodeId], bool]:
        """Return a test of node ids: true where the copy is damaged, or the node was down too long.
        A node that comes back is told to delete what it has."""
        now_ms = self._clock.monotonic_ms()

        return lambda node_id: (
            self._is_gone(node_id, now_ms) or self._copies.is_unknown(node_id, segment_id)
        )

    async def _drop(
        self, items: list[K], decision: Callable[[ClusterState, K], Change], why: str
    ) -> None:
        for change in await self._ledger.decide_each(items, decision):
            for record in () if isinstance(change, IcecoreError) else change.puts:
                if isinstance(record, SegmentRecord):
                    segment_id = record.segment.segment_id
                    event(
                        _log, logging.INFO, "local_copies_dropped", segment_id=segment_id, why=why
                    )
