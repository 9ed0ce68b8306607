"""Work that is found by looking and tried until it is done: who is at it, and when to try again."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from icecore.rpc.ports import Clock

K = TypeVar("K")

AWAITED_WAIT_MS = 100.0


class KeyedBackoff(Generic[K]):
    """Per key: taken by one task at a time, and after each failure a wait that doubles."""

    def __init__(self, clock: Clock, first_wait_ms: float, wait_ms_max: float) -> None:
        self._clock = clock
        self._first_wait_ms = first_wait_ms
        self._wait_ms_max = wait_ms_max
        self._taken: dict[K, None] = {}
        self._waits: dict[K, tuple[float, float]] = {}
        """(when to try again, how long the wait was)."""
        self._awaited: Counter[K] = Counter()

    def is_due(self, key: K) -> bool:
        """Return whether nobody is at it and its wait is over."""
        if key in self._taken:
            return False
        wait = self._waits.get(key)
        return wait is None or self._clock.monotonic_ms() >= wait[0]

    @property
    def is_waiting(self) -> bool:
        """Return whether any key waits for another try, or somebody for a key."""
        return bool(self._waits or self._awaited)

    @contextmanager
    def awaited(self, keys: Iterable[K]) -> Iterator[None]:
        """While somebody waits for these keys: they are due at once, and soon after a failure."""
        mine = list(keys)
        self._awaited.update(mine)
        for key in mine:
            self._waits.pop(key, None)
        try:
            yield
        finally:
            self._awaited.subtract(mine)
            self._awaited = +self._awaited

    def is_taken(self, key: K) -> bool:
        """Return whether somebody is at it."""
        return key in self._taken

    def was_tried(self, key: K) -> bool:
        """Return whether it failed before."""
        return key in self._waits

    def due_ms(self, key: K) -> float:
        """Return when its wait is over; long ago if it has not failed."""
        return self._waits[key][0] if key in self._waits else 0.0

    def in_turn(self, keys: Iterable[K]) -> list[K]:
        """These keys, those first that somebody waits for, then those that have not failed yet."""
        return sorted(keys, key=lambda key: (key not in self._awaited, key in self._waits))

    def take(self, keys: Iterable[K]) -> list[K]:
        """Take those that nobody is at, waiting or not."""
        mine = [key for key in dict.fromkeys(keys) if key not in self._taken]
        self._taken.update(dict.fromkeys(mine))
        return mine

    def forget(self, is_gone: Callable[[K], bool]) -> None:
        """Drop the waits of keys that will not come back."""
        self._waits = {key: wait for key, wait in self._waits.items() if not is_gone(key)}

    def release(self, key: K, *, is_done: bool) -> None:
        """Give a key back; unless it is done, it waits longer than last time."""
        self._taken.pop(key, None)
        if is_done:
            self._waits.pop(key, None)
            return
        _, last_ms = self._waits.get(key, (0.0, self._first_wait_ms / 2))
        wait_ms = min(2 * last_ms, self._wait_ms_max)
        if key in self._awaited:
            wait_ms = min(AWAITED_WAIT_MS, self._first_wait_ms)
        self._waits[key] = (self._clock.monotonic_ms() + wait_ms, wait_ms)
