"""Background work on the index of logs: step after step while there is something to do.

The engine decides what a step does (``LogIndex.maintain``). Steps run on a reader thread, one at a
time. After each of them as much time passes as it took, so that appends have the interpreter and
the disk for at least half of the time, also when all of a disk is to be indexed.
"""

import asyncio
from typing import Final

from icecore_node.context import NodeContext

REST_S_MAX: Final = 0.1
"""Longest pause after a step, in seconds: the entries take memory meanwhile."""


class IndexMaintainer:
    """The background work of one node."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Run steps until cancelled."""
        clock, executor = self._context.clock, self._context.executor
        look_s = self._context.settings.timing.index_look_ms / 1000
        while True:
            began_ms = clock.monotonic_ms()
            has_more = await executor.run(self._context.store.index.maintain)
            took_s = (clock.monotonic_ms() - began_ms) / 1000
            await asyncio.sleep(min(took_s, REST_S_MAX) if has_more else look_s)
