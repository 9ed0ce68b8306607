"""Selects the leaders that get a tick: those that have something to do as time passes. The others
rest, and cost nothing.

A leader is awake from anything that happens to it until a tick after which its core rests
(``LeaderCore.rests_until_ms``). One that rests until some time is looked at again then. Of very
many leaders nearly all rest, so they lie in a heap by that time, each where it was first put: a
rest that got longer meanwhile is seen when its first time comes.
"""

import heapq
import itertools
import weakref
from math import inf
from typing import Generic, Protocol, TypeVar


class _Core(Protocol):
    @property
    def rests_until_ms(self) -> float: ...


class Ticked(Protocol):
    """A leader, as far as ticks go; known by its identity."""

    @property
    def core(self) -> _Core:
        """Says until when it rests."""
        ...


L = TypeVar("L", bound=Ticked)


class LeaderTicks(Generic[L]):
    """All leaders of a node that are not over. Loop only."""

    def __init__(self) -> None:
        self._awake: dict[L, None] = {}
        self._resting: list[tuple[float, int, weakref.ref[L]]] = []
        self._looked_at_ms: weakref.WeakKeyDictionary[L, float] = weakref.WeakKeyDictionary()
        """Time when each resting leader is looked at next."""
        self._count = itertools.count()

    def wake(self, leader: L) -> None:
        """Something happened to it."""
        self._awake[leader] = None

    def due(self, now_ms: float) -> list[L]:
        """Return the leaders that get a tick now. Each must be woken again, which its tick does; a
        leader that gets no tick has ended, and is forgotten."""
        awake, self._awake = self._awake, {}
        self._wake_rested(awake, now_ms)
        found = []
        for leader in awake:
            until_ms = leader.core.rests_until_ms
            if until_ms <= now_ms:
                found.append(leader)
            elif until_ms < self._looked_at_ms.get(leader, inf):
                self._looked_at_ms[leader] = until_ms
                entry = (until_ms, next(self._count), weakref.ref(leader))
                heapq.heappush(self._resting, entry)
        return found

    def _wake_rested(self, awake: dict[L, None], now_ms: float) -> None:
        while self._resting and self._resting[0][0] <= now_ms:
            at_ms, _, reference = heapq.heappop(self._resting)
            leader = reference()
            if leader is not None and self._looked_at_ms.get(leader) == at_ms:
                del self._looked_at_ms[leader]
                awake[leader] = None
