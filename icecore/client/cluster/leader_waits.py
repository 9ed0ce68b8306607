"""Waits for partitions without a leader: one question for all of them.

When a node dies, thousands of partitions may wait for a leader at once. Nothing can be sent there
before metadata show one, so nobody tries again meanwhile: all sleep, one task asks, and each answer
wakes those whose partition is led by then.
"""

import asyncio
from collections.abc import Awaitable, Callable

from icecore.client.cluster.connection import Backoff, share
from icecore.errors import IcecoreError
from icecore.rpc.ports import Rng

_FIRST_MS = 30
_LIMIT_MS = 150


class LeaderWaits:
    """Partitions without a leader, and the one task that asks for all of them.

    Args:
        rng: For the distances between questions.
        refresh: Asks for new metadata.
        is_led: Whether a partition has a leader, by the newest metadata.
    """

    def __init__(
        self,
        rng: Rng,
        refresh: Callable[[], Awaitable[None]],
        is_led: Callable[[str, int], bool],
    ) -> None:
        self._rng = rng
        self._refresh = refresh
        self._is_led = is_led
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}
        self._asking: asyncio.Future[None] | None = None

    async def until_led(self, topic: str, partition: int, timeout_s: float) -> bool:
        """Sleep until the partition is led; False when it was not in time."""
        if self._is_led(topic, partition):
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = (topic, partition)
        if self._asking is None or self._asking.done():
            self._asking = share(self._ask())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(waiter, None)
        return True

    def look(self) -> None:
        """Metadata are new: wake whoever needs not wait any more."""
        for waiter, place in self._waiting.items():
            if self._is_led(*place) and not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _ask(self) -> None:
        backoff = Backoff(self._rng, _FIRST_MS, _LIMIT_MS)
        while self._waiting:
            await asyncio.sleep(backoff.next_s())
            try:
                if self._waiting:
                    await self._refresh()
            except IcecoreError:
                continue  # who waits finds out when its time is over, and says so
