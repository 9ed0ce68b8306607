"""Which of the seals that wait comes next.

What a record says is sealed is sealed on this replica too, in time: until then readers of it stop
at the highest watermark that it knows. After the failover of very many partitions thousands wait,
and with its index file and its digest each costs a node more than to open the successor did. So
while fences come, which is while partitions still wait for a leader, only those seals go on whose
partition is read. Nobody else misses them.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, Generic, TypeVar

from icecore_node.identity.readers import PartitionKey

T = TypeVar("T")

CROWD_MIN: Final = 64
"""Fewer are sealed at once, whatever else goes on."""
CALM_MS: Final = 1_000.0
"""So long after a fence the next one may be on its way."""
PUT_OFF_MS_MAX: Final = 30_000.0
"""Somebody may fence something for ever."""


class SealOrder(Generic[T]):
    """Seals that wait. Loop only.

    Args:
        is_read: Whether somebody reads a partition at the moment; who comes later is told of by
            ``want``.
    """

    def __init__(self, is_read: Callable[[PartitionKey], bool]) -> None:
        self._is_read = is_read
        self._wanted: deque[T] = deque()
        self._others: dict[PartitionKey, list[T]] = {}
        """First come first."""
        self._others_count = 0
        self._fenced_ms = -inf
        self._since_ms = inf
        """Since when others have waited, if any do."""

    def __len__(self) -> int:
        return len(self._wanted) + self._others_count

    def note_fence(self, now_ms: float) -> None:
        """A recovery goes on."""
        self._fenced_ms = now_ms

    def put(self, key: PartitionKey, seal: T, now_ms: float) -> None:
        """One more waits."""
        if self._is_read(key):
            self._wanted.append(seal)
            return
        if not self._others:
            self._since_ms = now_ms
        self._others.setdefault(key, []).append(seal)
        self._others_count += 1

    def want(self, key: PartitionKey) -> None:
        """Somebody reads this partition from now on."""
        found = self._others.pop(key, ())
        self._others_count -= len(found)
        self._wanted += found

    def next(self, now_ms: float) -> T | None:
        """Whose turn it is, which waits no more; None = nobody's yet."""
        if not self._wanted and self._others and not self._is_put_off(now_ms):
            self.want(next(iter(self._others)))
        return self._wanted.popleft() if self._wanted else None

    def _is_put_off(self, now_ms: float) -> bool:
        return (
            self._others_count >= CROWD_MIN
            and now_ms < self._fenced_ms + CALM_MS
            and now_ms < self._since_ms + PUT_OFF_MS_MAX
        )
