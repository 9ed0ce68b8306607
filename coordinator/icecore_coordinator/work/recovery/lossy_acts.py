"""Acts that give up data: a lost segment, an unproved end, a disk. Only an operator may decide on
them.

Each act is logged and kept in the record of its segment or node.
"""

import logging

from icecore.errors import NotEnoughReplicasError
from icecore.model import NodeId, SegmentId, SegmentState
from icecore.process.log import event
from icecore_coordinator.decisions.disk_changes import accept_disk, last_copies
from icecore_coordinator.decisions.lossy_changes import allow_unclean, declare_lost, named
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import SegmentRecord
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)


class LossyActs:
    """Acts of an admin.

    Args:
        ports: The cluster.
        recoveries: Segments that are being recovered: hurried while somebody waits.
    """

    def __init__(self, ports: WorkerPorts, recoveries: KeyedBackoff[SegmentId]) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._clock = ports.clock
        self._timing = ports.timing
        self._recoveries = recoveries

    async def declare_lost(
        self, topic: str, partition: int, segment_id: SegmentId
    ) -> SegmentRecord:
        """Give up a sealed segment whose every copy is gone.

        Raises what ``named`` and ``lossy_changes.declare_lost`` raise.
        """
        change = await self._ledger.decide(
            lambda state: declare_lost(
                named(state, topic, partition, segment_id),
                self._live,
                lambda node_id: self._copies.has_copy(node_id, segment_id),
                self._clock.now_ms(),
            )
        )
        if change.puts:
            event(
                _log,
                logging.CRITICAL,
                "declared_lost",
                topic=topic,
                partition=partition,
                segment_id=segment_id,
            )
        return named(self._ledger.state, topic, partition, segment_id)

    async def recover_unclean(
        self, topic: str, partition: int, segment_id: SegmentId
    ) -> SegmentRecord | None:
        """End a segment at the longest log left, and wait until that is done.

        Returns:
            The record as it is SEALED; None when the segment was empty and is gone.

        Raises what ``named`` and ``allow_unclean`` raise, and NotEnoughReplicasError when it takes
        too long: the permission is kept.
        """
        change = await self._ledger.decide(
            lambda state: allow_unclean(named(state, topic, partition, segment_id))
        )
        if change.puts:
            event(
                _log,
                logging.CRITICAL,
                "unclean_allowed",
                topic=topic,
                partition=partition,
                segment_id=segment_id,
            )

        def is_ended(state: ClusterState) -> bool:
            record = state.segments.get(segment_id)
            return record is None or record.segment.state == SegmentState.SEALED

        with self._recoveries.awaited([segment_id]):
            # The permission stays when this is too short.
            if not await self._ledger.until(is_ended, self._timing.unclean_wait_ms):
                raise NotEnoughReplicasError(
                    f"segment {segment_id} can't be sealed yet, for want of "
                    f"min_insync_replicas nodes that "
                    "are up; the permission is kept, and it will be"
                )
        return self._ledger.state.segments.get(segment_id)

    async def accept_disk(self, node_id: NodeId) -> int:
        """Let a node come with another disk, whatever was on the one before: how many segments have
        their last copy there. Raises what ``disk_changes.accept_disk`` raises."""
        change = await self._ledger.decide(lambda state: accept_disk(state, self._live, node_id))
        lost = last_copies(self._ledger.state, self._live, node_id, self._copies.has_copy)
        if change.puts:
            event(_log, logging.CRITICAL, "disk_accepted", node_id=node_id, last_copies=len(lost))
        return len(lost)
