"""The index of logs is tended in the background: step after step while there is something to do.

What a step does is the engine's business (``LogIndex.tend``). Steps run on a reader thread, one at
a time. Between two of them whoever waits for the interpreter gets it.
"""

import asyncio
from typing import Final

from icecore_node.context import NodeContext

LOOK_AGAIN_S: Final = 0.5


class IndexTender:
    """The background work of one node."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Until cancelled."""
        context = self._context
        while True:
            while await context.executor.run(context.store.index.tend):
                pass
            await asyncio.sleep(LOOK_AGAIN_S)
