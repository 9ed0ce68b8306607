"""Which of the seals that wait comes next.

What a record says is sealed is sealed on this replica too, in time: until then readers of it stop
at the highest watermark that it knows. After the failover of very many partitions thousands wait,
and with its index file and its digest each costs a node more than to open the successor did. So
while fences come, which is while partitions still wait for a leader, only those seals go on that a
reader waits for. Nobody else misses them.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, Generic, TypeVar

from icecore.model import SegmentId
from icecore_node.identity.readers import PartitionKey

T = TypeVar("T")

CROWD_MIN: Final = 64
"""Fewer are sealed at once, whatever else goes on."""
CALM_MS: Final = 1_000.0
"""So long after a fence the next one may be on its way."""
PUT_OFF_MS_MAX: Final = 30_000.0
"""Somebody may fence something for ever."""
LOOK_MS: Final = 100.0
"""How often it is seen whom readers wait for."""


class SealOrder(Generic[T]):
    """Seals that wait. Loop only.

    Args:
        is_waited_for: Whether a reader waits for something to happen to a partition.
    """

    def __init__(self, is_waited_for: Callable[[PartitionKey], bool]) -> None:
        self._is_waited_for = is_waited_for
        self._urgent: deque[T] = deque()
        self._others: dict[SegmentId, tuple[PartitionKey, T]] = {}
        """First come first."""
        self._fenced_ms = -inf
        self._since_ms = inf
        """Some have waited since then, if any do."""
        self._look_ms = -inf

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def note_fence(self, now_ms: float) -> None:
        """A recovery goes on."""
        self._fenced_ms = now_ms

    def put(self, segment_id: SegmentId, key: PartitionKey, seal: T, now_ms: float) -> None:
        """One more waits."""
        if self._is_waited_for(key):
            self._urgent.append(seal)
            return
        if not self._others:
            self._since_ms = now_ms
        self._others[segment_id] = key, seal

    def next(self, now_ms: float) -> T | None:
        """Whose turn it is, which waits no more; None = nobody's yet."""
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            self._find_urgent()
        if self._urgent:
            return self._urgent.popleft()
        if not self._others or self._is_put_off(now_ms):
            return None
        _, seal = self._others.pop(next(iter(self._others)))
        return seal

    def _find_urgent(self) -> None:
        found = [id_ for id_, (key, _) in self._others.items() if self._is_waited_for(key)]
        self._urgent.extend(self._others.pop(each)[1] for each in found)

    def _is_put_off(self, now_ms: float) -> bool:
        return (
            len(self._others) >= CROWD_MIN
            and now_ms < self._fenced_ms + CALM_MS
            and now_ms < self._since_ms + PUT_OFF_MS_MAX
        )
