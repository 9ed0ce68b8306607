"""The index of logs is tended in the background: step after step while there is something to do.

What a step does is the engine's business (``LogIndex.tend``). Steps run on a reader thread, one at
a time. After each of them as much time passes as it took, so that whoever appends has the
interpreter and the disk for at least half of the time, also when all of a disk is to be indexed.
"""

import asyncio
from typing import Final

from icecore_node.context import NodeContext

REST_S_MAX: Final = 0.1
"""After a long step: entries need memory meanwhile."""


class IndexTender:
    """The background work of one node."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Until cancelled."""
        clock, executor = self._context.clock, self._context.executor
        look_s = self._context.settings.timing.index_look_ms / 1000
        while True:
            began_ms = clock.monotonic_ms()
            has_more = await executor.run(self._context.store.index.tend)
            took_s = (clock.monotonic_ms() - began_ms) / 1000
            await asyncio.sleep(min(took_s, REST_S_MAX) if has_more else look_s)
