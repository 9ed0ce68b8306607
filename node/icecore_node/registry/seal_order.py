"""The order in which waiting seals are carried out.

A segment that its record says is sealed is sealed on this replica later. Until then its readers
stop at the highest watermark that the replica knows. After the failover of very many partitions
thousands wait, and with its index file and its digest each costs a node more than to open the
successor did. So while fences come, which is while partitions still wait for a leader, only the
seals of partitions with readers go on.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, Generic, TypeVar

from icecore_node.identity.readers import PartitionKey

T = TypeVar("T")

CROWD_MIN: Final = 64
"""With fewer waiting seals than this, none is put off."""
CALM_MS: Final = 1_000.0
"""Milliseconds after a fence in which another fence may still follow."""
PUT_OFF_MS_MAX: Final = 30_000.0
"""Longest time, in milliseconds, that seals are put off: fences might never stop."""


class SealOrder(Generic[T]):
    """Seals that wait. Loop only.

    Args:
        is_read: Whether a reader waits for a partition at the moment; ``want`` reports later
            readers.
    """

    def __init__(self, is_read: Callable[[PartitionKey], bool]) -> None:
        self._is_read = is_read
        self._wanted: deque[T] = deque()
        self._others: dict[PartitionKey, list[T]] = {}
        """Seals of partitions without readers, oldest partition first."""
        self._others_count = 0
        self._fenced_ms = -inf
        self._since_ms = inf
        """Time when the first seal began to wait in ``_others`` since it was last empty."""

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
        """Move a partition's seals to the front: a reader asks for it."""
        found = self._others.pop(key, ())
        self._others_count -= len(found)
        self._wanted += found

    def next(self, now_ms: float) -> T | None:
        """Take the next seal from the queue and return it; None = all of them are put off, or none
        waits."""
        if not self._wanted and self._others and not self._is_put_off(now_ms):
            self.want(next(iter(self._others)))
        return self._wanted.popleft() if self._wanted else None

    def _is_put_off(self, now_ms: float) -> bool:
        return (
            self._others_count >= CROWD_MIN
            and now_ms < self._fenced_ms + CALM_MS
            and now_ms < self._since_ms + PUT_OFF_MS_MAX
        )
