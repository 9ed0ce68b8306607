"""Slots for running calls: each service has its own, and no host has more than half of them.

So no flood of fetches keeps a fence out, and no host all others. A call that only waits for
something to happen, a long poll, is parked: it leaves its slot to others and has one of those for
waiting. Calls of clients begin, and go on after waiting, in fair turns (``turns.py``).
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from icecore.errors import ThrottledError
from icecore.rpc.turns import FairTurns

RETRY_AFTER_MS: Final = 50
PARKED_RETRY_AFTER_MS: Final = 1_000


class _Places:
    """So many of one kind."""

    __slots__ = ("by_host", "count", "count_max", "share_max")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.share_max = (count_max + 1) // 2
        """Maximum slots of one host."""
        self.count = 0
        self.by_host: Counter[str] = Counter()

    def are_full(self, host: str) -> bool:
        return self.count >= self.count_max or self.by_host[host] >= self.share_max

    def take(self, host: str) -> None:
        self.count += 1
        self.by_host[host] += 1

    def leave(self, host: str) -> None:
        self.count -= 1
        self.by_host[host] -= 1
        if not self.by_host[host]:
            del self.by_host[host]


class HeldSlot:
    """Slot of one call; see ``icecore.rpc.ports.CallSlot``. ``end`` gives it back."""

    __slots__ = ("_at", "_host", "_parked", "_running", "_turns")

    def __init__(self, running: _Places, parked: _Places, turns: FairTurns, host: str) -> None:
        self._running, self._parked = running, parked
        self._turns = turns
        self._host = host
        self._at: _Places | None = running
        running.take(host)

    def park(self) -> None:
        """As the port says."""
        if self._parked.are_full(self._host):
            raise ThrottledError(
                f"{self._parked.count} calls wait for something to happen",
                retry_after_ms=PARKED_RETRY_AFTER_MS,
            )
        self._move(self._parked)

    async def resume(self) -> None:
        """As the port says: those that ran before are not refused."""
        self._move(self._running)
        await self.turn()

    async def turn(self) -> None:
        """As the port says."""
        await self._turns.wait(self._host)

    def begin(self, start: Callable[[], None]) -> None:
        """Call ``start`` when it is the turn of a call that has not begun."""
        self._turns.begin(self._host, start)

    def note_begun(self) -> None:
        """It runs now."""
        self._turns.note_begun()

    def end(self, _: object = None) -> None:
        """The call has ended. Does nothing the second time."""
        self._move(None)

    def _move(self, to: _Places | None) -> None:
        if self._at is not None:
            self._at.leave(self._host)
        self._at = to
        if to is not None:
            to.take(self._host)


class Slots:
    """All slots of one server.

    Args:
        calls_max: Of each service.
        parked_max: Of all services together.
    """

    def __init__(self, calls_max: int, parked_max: int) -> None:
        self._calls_max = calls_max
        self._services: dict[str, _Places] = {}
        self._parked = _Places(parked_max)
        self._turns = FairTurns()

    def why_not(self, method: str, host: str) -> ThrottledError | None:
        """Return why a call of this method may not begin now."""
        running = self._running(method)
        if not running.are_full(host):
            return None
        return ThrottledError(f"{running.count} calls are running", retry_after_ms=RETRY_AFTER_MS)

    def take(self, method: str, host: str) -> HeldSlot:
        """For a call that begins now."""
        return HeldSlot(self._running(method), self._parked, self._turns, host)

    def _running(self, method: str) -> _Places:
        service = method.rpartition("/")[0]
        found = self._services.get(service)
        if found is None:
            found = self._services[service] = _Places(self._calls_max)
        return found


def host_of(peer: str) -> str:
    """Return the host of a peer like ``ipv4:127.0.0.1:4711``: the part without the port."""
    return peer.rpartition(":")[0]
