"""Gives memory back to the system that a storm has left behind.

``tune_process`` lets the allocator keep what it has, because bulk data would pay for it again with
every message. So what a flood of requests has needed would stay for ever. When there is much more
than there was, the allocator is told to let go of what is free: once the flood is over, for until
it is done nobody in the process can allocate (50 to 130 ms beside a scan). A process that stays
busy does so now and then. What is garbage, and old, may hold messages for long, for full
collections are rare; so there is one before, unless the process is busy or it would take long.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from icecore.process.garbage import collect_if_short

EVERY_S: Final = 5.0
GROWTH_BYTES: Final = 48 << 20
"""Beyond what was left the last time; what is used in turn all the time is not worth it."""
QUIET_SHARE: Final = 0.5
"""Share of one processor since the last look. A process below it is quiet: a pause holds up
nothing."""
BUSY_LOOKS: Final = 4
"""Number of looks after which a busy process frees memory all the same."""
AGAIN_LOOKS: Final = 4
"""Number of quiet looks after which memory is freed once more. Memory in use the first time may be
free by then."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell."""
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
        collect: Finds garbage that refers to itself; nothing else runs meanwhile.
        every_s: How often to look.
        used_s: Seconds of processor that this process has used.
    """

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        let_go: Callable[[], None] = trim,
        collect: Callable[[], None] = collect_if_short,
        every_s: float = EVERY_S,
        used_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._resident = resident
        self._let_go = let_go
        self._collect = collect
        self._every_s = every_s
        self._used_s = used_s
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
        left_bytes, used_s, grown_looks = self._resident(), self._used_s(), 0
        again_looks = 0
        while True:
            await asyncio.sleep(self._every_s)
            now_bytes, now_s = self._resident(), self._used_s()
            is_quiet = now_s - used_s < QUIET_SHARE * self._every_s
            used_s = now_s
            grown_looks = grown_looks + 1 if now_bytes > left_bytes + GROWTH_BYTES else 0
            again_looks -= again_looks > 0 and is_quiet
            is_last = again_looks == 1
            if (grown_looks and (is_quiet or grown_looks >= BUSY_LOOKS)) or is_last:
                if is_quiet:
                    self._collect()
                await asyncio.to_thread(self._let_go)
                again_looks = 0 if is_last else AGAIN_LOOKS
                left_bytes, grown_looks = self._resident(), 0
            left_bytes = min(left_bytes, now_bytes)
