"""What beats tell of the disk, so that an older copy of the disk is noticed (R58, R59).

A counter in the data folder grows while the process runs, and is durable before the beat that
carries it: a copy of the folder has it as it was then. Durable ends of unsealed logs say the same
of each log by itself, also where only some files went back. Both ride on every fourth beat: one
synced write of the folder every two seconds, whatever the load.
"""

import logging
from collections.abc import Iterable

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.v1 import coordinator_pb2
from icecore_node.ports import Executor, Folder
from icecore_node.replica.replica import Replica
from icecore_node.storage.disk_levels import DiskLimits, reclaim_bytes

_log = logging.getLogger(__name__)

BEATS_PER_REPORT = 4


class DiskReport:
    """Fills in the part of heartbeats that describes the disk.

    Args:
        executor: Runs what writes the folder.
        folder: Keeps the counter.
        replicas: All of the node; read at each beat.
        limits: How full the disk may get.
    """

    def __init__(
        self,
        executor: Executor,
        folder: Folder,
        replicas: Iterable[Replica],
        limits: DiskLimits,
    ) -> None:
        self._executor = executor
        self._folder = folder
        self._replicas = replicas
        self._limits = limits
        self._wants_room = False
        self._beats = 0
        self._told: dict[SegmentId, int] = {}
        """By segment: the end as this stream's beats told it."""

    def begin(self) -> None:
        """A new stream: whoever hears it may know nothing."""
        self._beats = 0
        self._told = {}

    def measured(self, beat: coordinator_pb2.HeartbeatRequest, used: int, free: int) -> None:
        """Add what the disk looks like, and how much is to be freed of it, in bytes."""
        beat.disk_used_bytes, beat.disk_free_bytes = used, free
        beat.reclaim_bytes = reclaim_bytes(used, free, self._limits, before=self._wants_room)
        self._wants_room = beat.reclaim_bytes > 0

    async def fill(self, beat: coordinator_pb2.HeartbeatRequest) -> None:
        """Add what is due. When the folder can't be written, the beat has no counter."""
        self._beats += 1
        if self._beats % BEATS_PER_REPORT != 1:
            return
        try:
            beat.disk_counter = await self._executor.run_first(self._folder.raise_disk_counter)
        except IcecoreError as error:
            event(_log, logging.WARNING, "disk_counter_kept", error=error)
        ends = {
            each.segment_id: each.log.durable_tail.end_offset
            for each in self._replicas
            if each.life.is_intact and not each.sealed and each.base_offset >= 0
        }
        for segment_id, end_offset in ends.items():
            if self._told.get(segment_id) != end_offset:
                beat.durable_ends.add(segment_id=segment_id, durable_end_offset=end_offset)
        self._told = ends
