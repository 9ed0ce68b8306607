"""Has copies dropped that there are beyond the replication factor, some at a time (R93), and takes
that back where one is missed before it is gone."""

import logging
from collections.abc import Callable
from itertools import islice

from icecore.errors import IcecoreError
from icecore.model import NodeId, NodeState, SegmentId
from icecore.process.log import event
from icecore_coordinator.decisions.sealed_copies import drop_surplus, keep_surplus
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

DROPS_PER_LOOK = 128
_SOUND: frozenset[NodeState] = frozenset({NodeState.UP, NodeState.READ_ONLY})


class SurplusCopies:
    """Level-triggered; keeps only where it looked last.

    Args:
        ports: What it works with.
        is_copying: Whether a node is at a copy that was ordered before it was to drop it: once the
            order to drop is taken back, such a copy must not count.
    """

    def __init__(self, ports: WorkerPorts, is_copying: Callable[[NodeId, SegmentId], bool]) -> None:
        self._is_copying = is_copying
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._clock = ports.clock
        self._timing = ports.timing
        self._looked_at = 0

    async def look(self) -> None:
        """Let go of a bounded number, once the nodes that keep theirs are up for a while."""
        await self._keep()
        state, first = self._ledger.state, self._looked_at
        thick = list(islice(state.thick, first, first + DROPS_PER_LOOK))
        self._looked_at = first + len(thick) if len(thick) == DROPS_PER_LOOK else 0
        for change in await self._ledger.decide_each(thick, self._decision):
            for record in () if isinstance(change, IcecoreError) else change.puts:
                if isinstance(record, SegmentRecord):
                    event(
                        _log,
                        logging.INFO,
                        "surplus_dropped",
                        segment_id=record.segment.segment_id,
                        node_id=record.segment.surplus[0],
                    )

    async def _keep(self) -> None:
        """Take back the orders to drop a copy that is missed, of all that wait. A node that is away
        may be back at any moment, and obey."""
        state = self._ledger.state
        missed = [each for each in state.dropping if self._kept(state, each).puts]
        for change in await self._ledger.decide_each(missed, self._kept) if missed else ():
            for record in () if isinstance(change, IcecoreError) else change.puts:
                if isinstance(record, SegmentRecord):
                    segment_id = record.segment.segment_id
                    event(_log, logging.INFO, "surplus_kept", segment_id=segment_id)

    def _kept(self, state: ClusterState, segment_id: SegmentId) -> Change:
        record = state.segments.get(segment_id)
        dropping = record.segment.surplus if record is not None else ()
        if any(self._is_copying(each, segment_id) for each in dropping):
            return Change()
        return keep_surplus(state, segment_id, lambda each: self._counts(each, segment_id))

    def _counts(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        """As for a repair: nodes that are merely down count for a grace period."""
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        is_there = down_ms is None or down_ms < self._timing.lost_replica_grace_ms
        return is_there and not self._copies.is_unknown(node_id, segment_id)

    def _decision(self, state: ClusterState, segment_id: SegmentId) -> Change:
        return drop_surplus(
            state, segment_id, lambda each: self._is_sound(each, segment_id), self._is_up
        )

    def _is_up(self, node_id: NodeId) -> bool:
        status = self._live.of(node_id)
        return status.is_connected and status.state in _SOUND and status.up_since_ms is not None

    def _is_sound(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        status = self._live.of(node_id)
        if not self._is_up(node_id) or self._copies.is_unknown(node_id, segment_id):
            return False
        assert status.up_since_ms is not None
        return self._clock.monotonic_ms() - status.up_since_ms >= self._timing.roll_up_wait_ms
