"""Gives memory back to the system that a storm has left behind.

``tune_process`` lets the allocator keep what it has, because bulk data would pay for it again with
every message. So what a flood of requests has needed would stay for ever. Now and then, when there
is much more than there was, the allocator is told to let go of what is free.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

EVERY_S: Final = 5.0
GROWTH_BYTES: Final = 48 << 20
"""Beyond what was left the last time; what is used in turn all the time is not worth it."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What this process has in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def trim() -> None:
    """Let go of what the allocator holds free. Does nothing where the C library can't."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    function(0)


class MemoryReturn:
    """Looks now and then, from ``start`` to ``stop``.

    Args:
        resident: How much this process has.
        let_go: Frees what it can; runs on a thread, for much memory takes a while.
        every_s: How often to look.
    """

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        let_go: Callable[[], None] = trim,
        every_s: float = EVERY_S,
    ) -> None:
        self._resident = resident
        self._let_go = let_go
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        left_bytes = self._resident()
        while True:
            await asyncio.sleep(self._every_s)
            now_bytes = self._resident()
            if now_bytes > left_bytes + GROWTH_BYTES:
                await asyncio.to_thread(self._let_go)
                left_bytes = self._resident()
            left_bytes = min(left_bytes, now_bytes)
