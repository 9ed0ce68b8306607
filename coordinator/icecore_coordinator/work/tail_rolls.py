"""Has leaders seal tails whose records could not go otherwise: only whole sealed segments do.

A few at a time, and each again only after a while: an empty tail can't be sealed, and a leader that
finds no node for a successor goes on with what it has.
"""

from collections.abc import Iterable

from icecore.model import Segment, SegmentId, SegmentState
from icecore_coordinator.nodes.fan_out import by_node
from icecore_coordinator.work.backoff import Backoff
from icecore_coordinator.work.roll_asking import ask_to_roll
from icecore_coordinator.work.worker_ports import WorkerPorts

ROLLS_AT_ONCE = 8
ROLL_WAIT_MS_MAX = 60_000.0


class TailRolls:
    """Keeps only when each tail was asked for last."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._timing = ports.timing
        self._rolling: Backoff[SegmentId] = Backoff(
            ports.clock, ports.timing.roll_retry_ms, ROLL_WAIT_MS_MAX
        )

    async def roll(self, tails: Iterable[Segment], why: str) -> None:
        """Ask the leaders of those that are active and were not asked just now."""
        state = self._ledger.state
        self._rolling.forget(lambda segment_id: segment_id not in state.unsealed)
        ripe = [
            each
            for each in tails
            if each.state == SegmentState.ACTIVE and self._rolling.is_due(each.segment_id)
        ][:ROLLS_AT_ONCE]
        self._rolling.take(each.segment_id for each in ripe)
        try:
            for leader, mine in by_node((each.leader, each) for each in ripe).items():
                await ask_to_roll(self._calls, leader, mine, why, self._timing.node_call_ms / 1000)
        finally:
            for each in ripe:
                self._rolling.release(each.segment_id, is_done=False)
