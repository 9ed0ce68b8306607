"""Limits on the reads of object storage that run at once, and on those that wait.

They take seconds where a read of a disk takes milliseconds, and each holds a row group. So they
have threads and places of their own: however many clients read old records, a produce or a fetch
of new ones waits for none of them. Beyond the queue the answer is THROTTLED, with the time after
which a place is likely.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from icecore.errors import ThrottledError
from icecore.rpc.ports import Clock

RUNNING_MAX: Final = 8
WAITING_MAX: Final = 256
_RETRY_MS_MIN: Final = 50
_RETRY_MS_MAX: Final = 5_000
_NEWEST_PART: Final = 0.2
"""Weight of the newest read in the moving mean duration."""


class Admission:
    """Places for remote reads. Loop only.

    Args:
        clock: Measures how long a read takes.
        running_max: Reads at once; with the size of a row group this bounds their memory.
        waiting_max: Reads that wait for a place.
    """

    def __init__(
        self, clock: Clock, *, running_max: int = RUNNING_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        self._clock = clock
        self._running_max, self._waiting_max = running_max, waiting_max
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._mean_ms = float(_RETRY_MS_MIN)

    @property
    def is_idle_enough(self) -> bool:
        """Return whether a read ahead may take a place: no read waits, and at least half the places
        are free."""
        return not self._waiting and 2 * self._running < self._running_max

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and keep it.

        Raises:
            ThrottledError: Too many wait already.
        """
        await self._enter()
        started_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            took_ms = self._clock.monotonic_ms() - started_ms
            self._mean_ms += _NEWEST_PART * (took_ms - self._mean_ms)
            self._leave()

    async def _enter(self) -> None:
        if self._running < self._running_max:
            self._running += 1
            return
        if len(self._waiting) >= self._waiting_max:
            retry_ms = self._mean_ms * len(self._waiting) / self._running_max
            raise ThrottledError(
                f"{self._running} reads of object storage are running and "
                f"{len(self._waiting)} are waiting",
                retry_after_ms=round(min(max(retry_ms, _RETRY_MS_MIN), _RETRY_MS_MAX)),
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # its turn came in the same moment
            else:
                self._waiting.remove(turn)
            raise

    def _leave(self) -> None:
        """Hand the place on, or free it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1
