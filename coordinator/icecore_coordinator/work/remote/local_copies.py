"""Lets nodes drop what they have of segments that lie in object storage (R87).

By the local retention of topics, and where no copy on nodes is left: then it is only noted. It
looks only where something may be due: at partitions that changed, and at those of which a segment
expires now. What one look does is bounded. Nothing goes that a node has not just seen in the object
store.
"""

import heapq
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from icecore.errors import IcecoreError
from icecore.model import NodeId, SegmentId
from icecore.process.log import event
from icecore_coordinator.decisions.local_copies import (
    SpareCopy,
    drop_copies,
    drop_expired_copies,
    drop_lost_copies,
    expired_copies,
    has_lost_all,
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
    """Keeps only when it looked, and where to; a new one looks everywhere once.

    Args:
        ports: The cluster.
        verify: Has published copies seen; see ``CopyVerifier.verify``.
        is_due: Whether a copy may be asked for now.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        verify: Callable[[Iterable[SegmentId]], Awaitable[Mapping[SegmentId, int]]],
        is_due: Callable[[SegmentId], bool],
    ) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._verify = verify
        self._is_due = is_due
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
        await self._drop_lost()
        await self._drop_expired()

    async def _drop_lost(self) -> None:
        state = self._ledger.state
        lost = [each for each in self._suspects() if has_lost_all(state, each, self._is_lost(each))]
        verified = await self._verify(lost[:DROPS_PER_LOOK])
        wall_ms = self._clock.now_ms()
        await self._drop(
            list(verified),
            lambda state, each: drop_lost_copies(
                state, each, self._is_lost(each), verified, wall_ms
            ),
            "lost",
        )

    async def _drop_expired(self) -> None:
        keys, expired = self._take_due(), dict[PartitionKey, list[SegmentId]]()
        for key in keys:
            found = expired_copies(self._ledger.state, key)
            due = [each for each in found if self._is_due(each)]
            expired[key] = due[: DROPS_PER_LOOK - sum(map(len, expired.values()))]
            if len(expired[key]) < len(found):
                self._changed[key] = None  # the others later
        verified = await self._verify(each for of in expired.values() for each in of)
        wall_ms = self._clock.now_ms()
        await self._drop(
            [key for key, of in expired.items() if any(each in verified for each in of)],
            lambda state, key: drop_expired_copies(state, key, verified, wall_ms),
            "local_retention",
        )
        for key, of in expired.items():
            if any(each not in verified for each in of):
                self._changed[key] = None
        self._note_next(keys)

    async def free(self, node_id: NodeId, lacking: int) -> int:
        """Drop the oldest published segments of a node whose disk is nearly full, until they free
        enough, however long their topics keep them there; how many bytes they free."""
        chosen: list[SpareCopy] = []
        found = 0
        for each in spare_copies(self._ledger.state, node_id):
            if found >= lacking or len(chosen) >= DROPS_PER_LOOK:
                break
            if self._is_due(each.segment_id):
                chosen.append(each)
                found += each.length_bytes
        verified = await self._verify(each.segment_id for each in chosen)
        wall_ms = self._clock.now_ms()
        await self._drop(
            list(verified),
            lambda state, each: drop_copies(state, each, verified, wall_ms),
            "disk_full",
        )
        return sum(each.length_bytes for each in chosen if each.segment_id in verified)

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
