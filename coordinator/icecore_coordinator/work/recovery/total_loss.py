"""Segments of which no copy can be trusted, and which were opened to go on without (R82).

All replicas have answered a fence and each is UNKNOWN. The record says from then on that the
segment may end unclean, as after an admin's word, and the next round of its recovery goes on by
that. Whoever comes after this coordinator finds the same.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from icecore.errors import IcecoreError
from icecore.model import NodeId, Segment
from icecore.process.log import event
from icecore.topic_settings import RESTART_EMPTY
from icecore_coordinator.decisions.lossy_changes import allow_total_loss
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

    async def allow(self, undecided: Sequence[tuple[Segment, Replies]]) -> None:
        """Look at the replies to the fences of segments; tell a person of what is given up."""
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
            self._alerts.raise_alert(segment.segment_id, why)
