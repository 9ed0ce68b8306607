"""The index is maintained step by step, and rests in between as long as a step took."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from icecore_node.context import NodeContext
from icecore_node.maintenance.indexing import REST_S_MAX, IndexMaintainer
from icecore_node.timing import NodeTiming
from tests.simulation.loop import SimLoop
from tests.simulation.ports import SimClock


def test_it_works_while_there_is_something_to_do_and_then_looks_again() -> None:
    loop, look_s = SimLoop(1), NodeTiming().index_look_ms / 1000
    began: list[float] = []
    took_s = iter([0.02, 3.0, 0.0, 0.0])

    class Threads:
        async def run(self, maintain: Any) -> bool:
            began.append(loop.time())
            await asyncio.sleep(next(took_s))
            return bool(maintain())

    more = iter([True, True, False, False])
    index = SimpleNamespace(maintain=lambda: next(more))
    context = SimpleNamespace(
        clock=SimClock(loop),
        executor=Threads(),
        store=SimpleNamespace(index=index),
        settings=SimpleNamespace(timing=NodeTiming()),
    )

    async def main() -> None:
        task = loop.create_task(IndexMaintainer(cast(NodeContext, context)).run())
        await asyncio.sleep(3.0 + REST_S_MAX + 1.5 * look_s)
        task.cancel()

    loop.run_until_complete(main())
    gaps = [round(late - early, 6) for early, late in pairwise(began)]
    assert gaps == [0.04, 3.0 + REST_S_MAX, look_s]
    loop.close()
