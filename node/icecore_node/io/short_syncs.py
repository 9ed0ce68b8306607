"""Whether appends may be synced on the loop's own thread: only while syncs take next to no time.

A change of threads costs a lone small append more than its sync does on a healthy disk. But a sync
on the loop holds back leases, fences and every other partition, so one long sync ends it for a
while: the longer it was, the more short ones it takes on the worker before the disk is trusted
again. The judgement counts syncs and asks no clock.
"""

from typing import Final

PATIENCE_MIN: Final = 4
"""Short syncs in a row, on a worker, before the first one on the loop."""
PATIENCE_MAX: Final = 1024
_PATIENCE_PER_LIMIT: Final = 2
"""And so many for each time that the limit goes into a long sync."""


class ShortSyncs:
    """Tracks whether recent syncs of all I/O workers of a node were short.

    Args:
        limit_ms: A sync that takes longer is a long one; 0 = nothing is ever synced on the loop.
    """

    def __init__(self, limit_ms: float) -> None:
        self._limit_ms = limit_ms
        self._wanted = PATIENCE_MIN
        """Short syncs until the disk is trusted."""

    def may_inline(self) -> bool:
        """Whether the next sync may hold the loop."""
        return not self._wanted and self._limit_ms > 0

    def note(self, duration_ms: float) -> None:
        """One group was written and synced, on whichever thread."""
        if duration_ms <= self._limit_ms:
            if self._wanted:
                self._wanted -= 1
        elif self._limit_ms > 0:
            limits = min(duration_ms / self._limit_ms, PATIENCE_MAX)
            patience = max(PATIENCE_MIN, int(_PATIENCE_PER_LIMIT * limits))
            self._wanted = max(self._wanted, min(patience, PATIENCE_MAX))
