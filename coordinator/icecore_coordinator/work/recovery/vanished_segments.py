"""Sealed segments that were in memory on all their nodes when the processes ended (R98).

A seal does not make a segment of engine ``memory`` durable; what nodes do within seconds after it
does. When nothing is left of it, no repair can help, and readers would wait for ever. It is
declared lost once each of its nodes has said so. While one of them is silent, an operator is told
which.
"""

import logging
from collections.abc import Callable

from icecore.errors import IcecoreError
from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore_coordinator.decisions.lossy_changes import (
    declare_vanished,
    may_vanish,
    silent_holders,
)
from icecore_coordinator.decisions.node_changes import holds_nothing
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.node_sessions import Registered
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

SEGMENTS_PER_LOOK = 512


class VanishedSegments:
    """Level-triggered; keeps only since when it waits for which.

    Args:
        ports: The cluster.
        registered: The last Register of a node, if this coordinator has seen one.
        is_copying: Whether a copy of a segment is being made on a node.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        registered: Callable[[NodeId], Registered | None],
        is_copying: Callable[[NodeId, SegmentId], bool],
    ) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._alerts = ports.alerts
        self._clock = ports.clock
        self._timing = ports.timing
        self._registered = registered
        self._is_copying = is_copying
        self._waiting_ms: dict[SegmentId, float] = {}
        """Since when the nodes of a segment that have not spoken are waited for."""

    async def look(self) -> None:
        """Declare those lost of which nothing is left; tell a person whom the others wait for."""
        segments = self._ledger.state.segments
        found = sorted(each for each in self._copies.vanished.segment_ids() if each in segments)
        suspects = [each for each in found if _is_suspect(segments[each].segment)]
        self._waiting_ms = {
            each: self._waiting_ms.get(each, self._clock.monotonic_ms()) for each in suspects
        }
        silent = {each: silent_holders(segments[each], self._is_gone(each)) for each in suspects}
        gone = [each for each, nodes in silent.items() if not nodes]
        results = await self._ledger.decide_each(gone[:SEGMENTS_PER_LOOK], self._decision)
        for segment_id, result in zip(gone, results, strict=False):
            if isinstance(result, IcecoreError):
                event(_log, logging.INFO, "not_vanished", segment_id=segment_id, error=result)
            elif result.puts:
                self._tell_lost(result)
        for segment_id, nodes in silent.items():
            record = segments.get(segment_id)
            if nodes and record is not None:
                self._tell_waiting(record, nodes)

    def _decision(self, state: ClusterState, segment_id: SegmentId) -> Change:
        return declare_vanished(state, segment_id, self._is_gone(segment_id))

    def _is_gone(self, segment_id: SegmentId) -> Callable[[NodeId], bool]:
        """Return a test of node ids: true where the registered process has said that nothing of
        its copy is left, or has shown by its inventory that it has none."""
        return lambda node_id: (
            self._copies.vanished.has(node_id, segment_id) or self._lacks(node_id, segment_id)
        )

    def _lacks(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        state, known = self._ledger.state, self._registered(node_id)
        record = state.segments.get(segment_id)
        if record is None or known is None or known.is_disk_unknown:
            return False  # a disk that was replaced may have had it, and may come back
        is_current = state.incarnation(node_id) == known.incarnation
        is_new = segment_id >= known.next_segment_id or self._is_copying(node_id, segment_id)
        return is_current and not is_new and holds_nothing(known.held, record.segment)

    def _tell_lost(self, change: Change) -> None:
        [record] = [each for each in change.puts if isinstance(each, SegmentRecord)]
        segment = record.segment
        event(
            _log,
            logging.CRITICAL,
            "vanished",
            topic=segment.topic,
            partition=segment.partition,
            segment_id=segment.segment_id,
        )
        self._alerts.raise_alert(
            AlertKind.LOST,
            segment.segment_id,
            "every copy was in memory and its process ended: it is declared lost (on_total_loss)",
        )

    def _tell_waiting(self, record: SegmentRecord, silent: list[NodeId]) -> None:
        segment_id = record.segment.segment_id
        waited_ms = self._clock.monotonic_ms() - self._waiting_ms[segment_id]
        if waited_ms < self._timing.return_wait_ms or self._has_copy(record.segment):
            return
        self._waiting_ms[segment_id] = self._clock.monotonic_ms()  # and then again
        nodes = ", ".join(map(str, silent))
        self._alerts.raise_alert(
            AlertKind.LOST,
            segment_id,
            f"copies that were in memory are gone, and nodes {nodes} have not said whether theirs "
            "is: start them, or give the segment up (icecore segment declare-lost)",
        )

    def _has_copy(self, segment: Segment) -> bool:
        """Return whether a node that is up may have it: repair helps, and nobody need look."""
        live = filter(self._live.is_live, segment.replicas)
        return any(self._copies.has_copy(each, segment.segment_id) for each in live)


def _is_suspect(segment: Segment) -> bool:
    """Return whether it is sealed, kept on nodes alone, and may go when nothing is left of it."""
    is_kept = segment.state == SegmentState.SEALED and bool(segment.replicas)
    return is_kept and not segment.is_tiered and may_vanish(segment)
