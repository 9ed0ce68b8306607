"""Share one loop among many handlers: each has a few milliseconds, and hosts take turns.

A handler that goes through a long list asks now and then whether its time is over (``Turns``). Who
is to begin or to go on waits in the line of his host, and hosts are served in turn (``FairTurns``),
so a host with a thousand calls costs another one no more than a host with one.

A handler whose caller has given up ends where it waits, if its method only reads: there it is
cancelled (``icecore/rpc/bounds.py`` says which methods are).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from icecore.rpc.ports import NO_SLOT, CallSlot

TURN_S: Final = 0.002
"""How long a handler may keep the loop; a heartbeat or a fence that waits so long notices
nothing."""
ROUND_S: Final = 0.003
"""How long those should take together that were let in at once: what others send is looked at only
once in a round of the loop, and gRPC takes a call in no more often."""
AT_ONCE_MAX: Final = 64


class Turns:
    """The turns of one handler.

    Args:
        slot: Of its call.
    """

    __slots__ = ("_loop", "_slot", "_until_s")

    def __init__(self, slot: CallSlot = NO_SLOT) -> None:
        self._loop = asyncio.get_running_loop()
        self._slot = slot
        self._until_s = self._loop.time() + TURN_S

    async def give(self) -> None:
        """Let others run if this handler has had its time."""
        if self._loop.time() < self._until_s:
            return
        await asyncio.sleep(0)
        await self._slot.turn()
        self._until_s = self._loop.time() + TURN_S


_Waiting: TypeAlias = asyncio.Future[None] | Callable[[], None]
"""Somebody who goes on, or what is to begin."""


class FairTurns:
    """Lets so many in with each round of the loop: fewer when rounds take long. Calls of one host
    begin in the order in which they came: batches of a producer must not overtake each other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, deque[_Waiting]] = {}
        """Waiting calls by host, the next one first."""
        self._at_once = AT_ONCE_MAX // 4
        self._left = self._at_once
        self._woken = 0
        """Those whose turn it is and who have not run since."""
        self._is_due = False
        """A round begins soon."""
        self._began_s: float | None = None
        """When the first of those began that were let in."""

    async def wait(self, host: str) -> None:
        """Return when it is this host's turn; at once when nobody waits and little goes on."""
        if self._is_free():
            return
        turn = self._loop.create_future()
        self._lines.setdefault(host, deque()).append(turn)
        try:
            await turn
        finally:
            if turn.done() and not turn.cancelled():
                self._woken -= 1
        self.note_begun()

    def begin(self, host: str, start: Callable[[], None]) -> None:
        """Call ``start`` when it is this host's turn, at once as for ``wait``; for what costs
        less while it is not begun. It must not raise."""
        if self._is_free():
            start()
        else:
            self._lines.setdefault(host, deque()).append(start)

    def note_begun(self) -> None:
        """Note that a call which was let in runs now."""
        if self._began_s is None:
            self._began_s = self._loop.time()

    def _is_free(self) -> bool:
        """Return whether one more may run in this round; it counts as one that does."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._round)
        if self._left > 0 and not self._lines and not self._woken:
            self._left -= 1
            return True
        return False

    def _round(self) -> None:
        if self._began_s is not None and self._loop.time() - self._began_s > ROUND_S:
            self._at_once = max(1, self._at_once // 2)
        else:
            self._at_once = min(AT_ONCE_MAX, self._at_once + 1)
        self._began_s, self._left = None, self._at_once
        while self._lines and self._left > 0:
            host, line = next(iter(self._lines.items()))
            del self._lines[host]
            turn = line.popleft()
            if line:
                self._lines[host] = line  # behind the others
            if not isinstance(turn, asyncio.Future):
                turn()
                self._left -= 1
            elif not turn.done():  # else its handler was stopped
                turn.set_result(None)
                self._woken += 1
                self._left -= 1
        self._is_due = bool(self._lines)
        if self._is_due:
            self._loop.call_soon(self._round)
