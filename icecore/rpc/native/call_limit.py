"""A connection with many calls that run is not read until some have ended: its caller waits.

Over gRPC the number of streams does that. Calls that are parked do not count, for they cost little
and may take long; what waits behind them on the connection would wait as long.
"""

from collections.abc import Callable

from icecore.rpc.native.connection import UNSENT_HIGH_BYTES, NativeConnection
from icecore.rpc.slots import HeldSlot


class ConnectionCalls:
    """Counts the calls of one connection.

    Args:
        connection: That is read or not.
        count_max: So many may run.
    """

    __slots__ = ("_connection", "_count", "_count_max")

    def __init__(self, connection: NativeConnection, count_max: int) -> None:
        self._connection = connection
        self._count_max = count_max
        self._count = 0

    @property
    def are_full(self) -> bool:
        """Return whether the connection should not be read."""
        return self._count >= self._count_max

    def enter(self) -> None:
        """One runs."""
        self._count += 1
        if self.are_full:
            self._connection.pause()

    def leave(self) -> None:
        """One has ended, or waits for something to happen."""
        was_full = self.are_full
        self._count -= 1
        has_room = self._connection.unsent_bytes <= UNSENT_HIGH_BYTES
        if was_full and not self.are_full and has_room:
            self._connection.resume()


class CountedSlot:
    """A slot whose call counts for its connection, too, while it runs."""

    __slots__ = ("_calls", "_is_counted", "_slot")

    def __init__(self, slot: HeldSlot, calls: ConnectionCalls) -> None:
        self._slot = slot
        self._calls = calls
        self._is_counted = True
        calls.enter()

    def park(self) -> None:
        """See ``icecore.rpc.ports.CallSlot``."""
        self._slot.park()
        self._leave()

    async def resume(self) -> None:
        """See ``icecore.rpc.ports.CallSlot``."""
        self._is_counted = True
        self._calls.enter()
        await self._slot.resume()

    async def turn(self) -> None:
        """See ``icecore.rpc.ports.CallSlot``."""
        await self._slot.turn()

    def begin(self, start: Callable[[], None]) -> None:
        """See ``HeldSlot``."""
        self._slot.begin(start)

    def note_begun(self) -> None:
        """See ``HeldSlot``."""
        self._slot.note_begun()

    def end(self, _: object = None) -> None:
        """The call has ended."""
        self._slot.end()
        self._leave()

    def _leave(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._calls.leave()
