"""Segments of which no copy can be trusted, and which were opened to go on without (R82).

All replicas have answered a fence and each is UNKNOWN. The record says from then on that the
segment may end unclean, as after an admin's word, and the next round of its recovery goes on by
that. Whoever comes after this coordinator finds the same. A segment that was opened to wait
instead waits for a person, who is told.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from icecore.errors import IcecoreError
from icecore.model import NodeId, Segment, SegmentId
from icecore.process.log import event
from icecore.topic_settings import RESTART_EMPTY
from icecore_coordinator.decisions.lossy_changes import allow_total_loss
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.recovery import FenceReply, is_total_loss

Replies: TypeAlias = Mapping[NodeId, FenceReply]
_log = logging.getLogger(__name__)


class TotalLosses:
    """Gives recoveries the permission that their segments were opened with."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._alerts = ports.alerts
        self._told: set[SegmentId] = set()
        """Those that wait for a person, who was told."""

    async def allow(self, undecided: Sequence[tuple[Segment, Replies]]) -> None:
        """Look at the replies to the fences of segments; tell a person of what is given up, and of
        what waits."""
        self._tell_waiting(undecided)
        lost = [
            (segment, replies)
            for segment, replies in undecided
            if segment.settings.on_total_loss == RESTART_EMPTY and is_total_loss(replies, segment)
        ]

        def decision(state: ClusterState, each: tuple[Segment, Replies]) -> Change:
            segment, replies = each
            return allow_total_loss(state, segment.segment_id, replies)

        results = await self._ledger.decide_each(lost, decision)
        for (segment, _), result in zip(lost, results, strict=True):
            if isinstance(result, IcecoreError):
                event(
                    _log,
                    logging.WARNING,
                    "total_loss_refused",
                    segment_id=segment.segment_id,
                    error=result,
                )
                continue
            event(_log, logging.CRITICAL, "total_loss", segment_id=segment.segment_id)
            why = "every copy is UNKNOWN: it ends at what can be proved (on_total_loss)"
            self._alerts.raise_alert(AlertKind.LOST, segment.segment_id, why)

    def _tell_waiting(self, undecided: Sequence[tuple[Segment, Replies]]) -> None:
        """Once for each segment, and again when a copy was intact in between."""
        self._told &= self._ledger.state.unsealed.keys()
        for segment, replies in undecided:
            segment_id = segment.segment_id
            if any(reply.intact for reply in replies.values()):
                self._told.discard(segment_id)
            waits = segment.settings.on_total_loss != RESTART_EMPTY
            if segment_id in self._told or not (waits and is_total_loss(replies, segment)):
                continue
            self._told.add(segment_id)
            nodes = ", ".join(map(str, segment.replicas))
            self._alerts.raise_alert(
                AlertKind.LOST,
                segment_id,
                f"every copy is UNKNOWN, on nodes {nodes}: {segment.topic}/{segment.partition} has "
                "no leader. Bring back a disk that had a copy. If there is none, give up what "
                "can't be proved: icecore segment recover-unclean",
                partial(self._is_unsealed, segment_id),
            )

    def _is_unsealed(self, segment_id: SegmentId) -> bool:
        return segment_id in self._ledger.state.unsealed
