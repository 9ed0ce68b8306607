"""A staged world of records that expire: clocks jump, the leader dies, the coordinator is another.

It is survivable and must be clean; see ``expiring``. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable

from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import PATIENCE_S, plan, roles
from tests.simulation.expiring import ExpiringTopic
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

YEAR_MS = 366 * 24 * 3600 * 1000


def records_expire_plan(seed: int) -> Plan:
    """Little traffic beside it."""
    return plan("records_expire", producers=1)


async def records_expire(scene: Scene, fault: Fault) -> None:
    """Both clocks that could matter jump by a year, forward and back; then processes die."""
    world = scene.world
    topic = ExpiringTopic(world, scene.plan, "expiring")
    world.fleeting.append(topic)
    await topic.live()
    leader, _ = await roles(world)
    for name in (COORDINATOR, leader):
        for skew_ms in (YEAR_MS, -YEAR_MS, 0):
            world.set_clock(name, skew_ms)
            await asyncio.sleep(1.0)
    world.count_fault("clock_jump")
    world.kill(COORDINATOR, kind="coordinator_killed")
    world.start(COORDINATOR)
    await asyncio.sleep(PATIENCE_S)
    world.kill(leader, power_cut=True)
    await asyncio.sleep(PATIENCE_S)
    world.start(leader)
    await asyncio.sleep(PATIENCE_S)


PLANS: dict[str, Callable[[int], Plan]] = {"records_expire": records_expire_plan}
KINDS = (Kind("records_expire", records_expire),)
