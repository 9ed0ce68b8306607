"""Rolls that the coordinator asks leaders for: of tails whose records could not go otherwise,
and how many at once.

A few at a time, and each again only after a while: an empty tail can't be sealed, and a leader that
finds no node for a successor goes on with what it has.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from icecore.errors import IcecoreError
from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_coordinator.nodes.fan_out import by_node
from icecore_coordinator.nodes.node_calls import NodeCalls, RollAnswer
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.worker_ports import WorkerPorts

# --- asking leaders -------------------------------------------------------------------------------

# Asks leaders to roll segments, and logs what each says.


_log = logging.getLogger(__name__)


async def ask_to_roll(
    calls: NodeCalls, leader: NodeId, segments: Sequence[Segment], why: str, timeout_s: float
) -> None:
    """Ask one of them for all that it leads. That it refuses, or can't be reached, is only logged:
    who wants them rolled looks again."""
    try:
        answers = await calls.roll(leader, segments, why, timeout_s)
    except IcecoreError as error:
        answers = [RollAnswer(error)] * len(segments)
    for segment, rolling in zip(segments, answers, strict=True):
        event(
            _log,
            logging.INFO,
            "roll_asked",
            segment_id=segment.segment_id,
            leader=leader,
            why=why,
            error=rolling.error,
        )


ROLLS_AT_ONCE = 8
ROLL_WAIT_MS_MAX = 60_000.0


class TailRolls:
    """Keeps only when each tail was asked for last."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._timing = ports.timing
        self._rolling: KeyedBackoff[SegmentId] = KeyedBackoff(
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


# --- pace -----------------------------------------------------------------------------------------

# How many rolls to ask for at once: rolls share disks and processors with produce.
#
# A few are asked for first. From then on as many are under way as twice those that were done
# since the last look, so a cluster with much to move gets to the rate that it is capable of
# within a few looks, and one that is slow or busy has no more to do than it finishes in two of
# them.


ROLLS_MIN: Final = 4
ROLLS_MAX: Final = 16


class RollPace:
    """Rolls that were asked for and are not done, and how many more there may be.

    Args:
        clock: Counts the patience.
        patience_ms: A roll that was asked for longer ago counts as refused.
    """

    def __init__(self, clock: Clock, patience_ms: float) -> None:
        self._clock = clock
        self._patience_ms = patience_ms
        self._asked_ms: dict[SegmentId, float] = {}

    @property
    def is_under_way(self) -> bool:
        """Return whether there were any at the last look, or have been asked for since."""
        return bool(self._asked_ms)

    def room(self, is_under_way: Callable[[SegmentId], bool]) -> int:
        """Return how many may be asked for now.

        Args:
            is_under_way: Whether a roll that was asked for is still to be done.
        """
        asked = self._asked_ms
        left = {key: at for key, at in asked.items() if is_under_way(key)}
        done = len(asked) - len(left)
        since_ms = self._clock.monotonic_ms() - self._patience_ms
        self._asked_ms = {key: at for key, at in left.items() if at > since_ms}
        at_once = min(max(2 * done, ROLLS_MIN), ROLLS_MAX)
        return max(0, at_once - len(self._asked_ms))

    def ask(self, segment_id: SegmentId) -> None:
        """A roll of it is asked for now."""
        self._asked_ms[segment_id] = self._clock.monotonic_ms()
