"""How many rolls to ask for at once: rolls share disks and processors with produce.

A few are asked for first. From then on as many are under way as twice those that were done since
the last look, so a cluster with much to move gets to the rate that it is capable of within a few
looks, and one that is slow or busy has no more to do than it finishes in two of them.
"""

from collections.abc import Callable
from typing import Final

from icecore.model import SegmentId
from icecore.rpc.ports import Clock

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
        """Whether there were any at the last look, or have been asked for since."""
        return bool(self._asked_ms)

    def room(self, is_under_way: Callable[[SegmentId], bool]) -> int:
        """How many may be asked for now.

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
