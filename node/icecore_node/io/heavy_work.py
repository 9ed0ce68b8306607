"""Decoding and encoding of batches: on reader threads, a bounded amount at once, first come first.

A few stored bytes may stand for megabytes, and a thousand requests for a thousand times as many. So
whoever inflates payloads says how many bytes it may need, and waits until that many are free.
Only some of the reader threads do this work, because the others must read disks.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from icecore_node.ports import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BYTES_MAX = 128 << 20
"""Twice the largest payload of any topic."""
CALLS_MAX = 2


class HeavyWork:
    """Runs functions that hold inflated payloads; all methods belong to the loop."""

    def __init__(
        self, executor: Executor, *, bytes_max: int = BYTES_MAX, calls_max: int = CALLS_MAX
    ) -> None:
        self._executor = executor
        self._bytes_max = bytes_max
        self._calls_max = calls_max
        self._bytes = self._calls = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def run(self, weight_bytes: int, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The function's result. Its bytes are freed by the thread's end, also if the caller left.

        Args:
            weight_bytes: What the function may hold at its peak.
            function: Blocking; must not touch what the loop owns.
            args: Its arguments.
        """
        weight_bytes = min(weight_bytes, self._bytes_max)
        await self._enter(weight_bytes)
        task = asyncio.ensure_future(self._executor.run(function, *args))

        def done(ended: "asyncio.Future[T]") -> None:
            if not ended.cancelled():
                ended.exception()  # looked at, even when the caller is gone
            self._leave(weight_bytes)

        task.add_done_callback(done)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # it has an error, which has this frame: neither would go by itself

    def _fits(self, weight_bytes: int) -> bool:
        return self._calls < self._calls_max and self._bytes + weight_bytes <= self._bytes_max

    async def _enter(self, weight_bytes: int) -> None:
        if not self._waiting and self._fits(weight_bytes):
            self._take(weight_bytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((weight_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(weight_bytes)  # its turn came in the same moment
            else:
                turn.cancel()
                self._admit()
            raise

    def _take(self, weight_bytes: int) -> None:
        self._calls += 1
        self._bytes += weight_bytes

    def _leave(self, weight_bytes: int) -> None:
        self._calls -= 1
        self._bytes -= weight_bytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            weight_bytes, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(weight_bytes):
                    return
                self._take(weight_bytes)
                turn.set_result(None)
            self._waiting.popleft()
