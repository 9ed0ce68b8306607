"""A staged world of one wrong clock: a leader's is further ahead than any time that something waits
for, while a producer has batches there whose answers it has not heard. The clock is right again,
the segment ends, and the producer sends once more. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable

from tests.simulation.directed import PATIENCE_S, plan, roles
from tests.simulation.directed_repeats import roll
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.faults_cluster import JUMP_MS
from tests.simulation.plan import Plan


def clock_ahead_plan(seed: int) -> Plan:
    """Nobody dies, so every record must be acknowledged."""
    return plan("clock_ahead", all_acked=True)


async def clock_ahead(scene: Scene, fault: Fault) -> None:
    """A's answers don't reach one producer; the other one writes under A's wrong clock."""
    world = scene.world
    for number in range(2):
        leader, _ = await roles(world)
        unheard = f"producer-{number}"
        world.network.cut(leader, unheard)
        await asyncio.sleep(0.3)
        world.count_fault("clock_jump")
        world.set_clock(leader, JUMP_MS)
        await asyncio.sleep(0.5)
        world.set_clock(leader, 0)
        await roll(world, f"operator {number}")
        world.network.heal(leader, unheard)
        await asyncio.sleep(PATIENCE_S)


PLANS: dict[str, Callable[[int], Plan]] = {"clock_ahead": clock_ahead_plan}
KINDS = (Kind("clock_ahead", clock_ahead),)
