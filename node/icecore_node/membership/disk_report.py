"""The part of heartbeats that describes the disk, so that an older copy of it is noticed (R58,
R59).

A counter in the data folder grows while the process runs, and is durable before the heartbeat that
carries it: a copy of the folder has it as it was then. Durable ends of unsealed logs say the same
of each log by itself, also where only some files went back. Both ride on every fourth heartbeat:
one synced write of the folder every two seconds, whatever the load.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Protocol

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.v1 import coordinator_pb2
from icecore_node.ports import Executor, Folder
from icecore_node.replica.replica import Replica
from icecore_node.storage.disk_levels import DiskLimits, reclaim_bytes

_log = logging.getLogger(__name__)

HEARTBEATS_PER_REPORT = 4


class Replicas(Protocol):
    """The replicas of a node."""

    def __iter__(self) -> Iterator[Replica]: ...

    def get(self, segment_id: SegmentId) -> Replica | None:
        """Return the replica of a segment; None when it is not here."""


class DiskReport:
    """Fills in the part of heartbeats that describes the disk.

    Args:
        executor: Runs what writes the folder.
        folder: Keeps the counter.
        replicas: All replicas of the node; read when a stream begins.
        changed: Replicas to look at again in the next report, which clears it.
        limits: How full the disk may get.
    """

    def __init__(
        self,
        executor: Executor,
        folder: Folder,
        replicas: Replicas,
        changed: dict[SegmentId, None],
        limits: DiskLimits,
    ) -> None:
        self._executor = executor
        self._folder = folder
        self._replicas = replicas
        self._changed = changed
        self._limits = limits
        self._wants_room = False
        self._heartbeats = 0
        self._told: dict[SegmentId, int] = {}
        """Durable end last reported on this stream, by segment; unsealed intact logs only."""
        self._is_begun = False

    def begin(self) -> None:
        """Begin a new stream with a full report: its coordinator may know nothing."""
        self._heartbeats = 0
        self._told = {}
        self._is_begun = False

    def measured(self, heartbeat: coordinator_pb2.HeartbeatRequest, used: int, free: int) -> None:
        """Add what the disk looks like, and how much is to be freed of it, in bytes."""
        heartbeat.disk_used_bytes, heartbeat.disk_free_bytes = used, free
        heartbeat.reclaim_bytes = reclaim_bytes(used, free, self._limits, before=self._wants_room)
        self._wants_room = heartbeat.reclaim_bytes > 0

    async def fill(self, heartbeat: coordinator_pb2.HeartbeatRequest) -> None:
        """Add what is due. When the folder can't be written, the heartbeat has no counter."""
        self._heartbeats += 1
        if self._heartbeats % HEARTBEATS_PER_REPORT != 1:
            return
        try:
            heartbeat.disk_counter = await self._executor.run_first(
                partial(self._folder.raise_disk_counter, heartbeat.metadata_revision)
            )
        except IcecoreError as error:
            event(_log, logging.WARNING, "disk_counter_kept", error=error)
        for segment_id, replica in self._suspects().items():
            end_offset = _open_end(replica)
            if end_offset is None:
                self._told.pop(segment_id, None)
            elif self._told.get(segment_id) != end_offset:
                self._told[segment_id] = end_offset
                heartbeat.durable_ends.add(segment_id=segment_id, durable_end_offset=end_offset)

    def _suspects(self) -> dict[SegmentId, Replica | None]:
        """Return the replicas whose durable end may differ from the one reported: all at the start
        of a stream, later those that changed. On a node with very many replicas these are few."""
        if self._is_begun:
            found = {each: self._replicas.get(each) for each in self._changed}
        else:
            found = {each.segment_id: each for each in self._replicas}
        self._is_begun = True
        self._changed.clear()
        return found


def _open_end(replica: Replica | None) -> int | None:
    """Return the durable end of an unsealed, intact log; None for any other replica."""
    if replica is None or not replica.life.is_intact or replica.sealed or replica.base_offset < 0:
        return None
    return replica.log.durable_tail.end_offset
