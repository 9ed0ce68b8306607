"""Staged worlds of a deleted topic: what must still be there when it is brought back.

While nobody sees the topic, a node that led it loses power, another one loses its disk, and the
coordinator dies. Each world is survivable and must be clean: every acknowledged record is read from
every copy, and the topic takes appends again. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import PATIENCE_S, plan, roles
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.faults_cluster import bring_back, delete
from tests.simulation.index import SimIndexDisk
from tests.simulation.plan import Plan
from tests.simulation.ports import memory_database


def deleted_for_a_while_plan(seed: int) -> Plan:
    """Small segments, so that there are sealed ones; four nodes, so that one can be replaced."""
    calm = plan("deleted_for_a_while", partitions=2, nodes=4)
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=8 * 1024))


async def deleted_for_a_while(scene: Scene, fault: Fault) -> None:
    """The leader loses power just after the deletion, a follower its disk, and the coordinator is
    another one before the topic is back."""
    world = scene.world
    leader, (second, _) = await roles(world)
    await delete(scene, fault)
    await asyncio.sleep(world.rng.choice([0.0, 0.005, 0.05, 1.0]))
    world.kill(leader, power_cut=True)
    await asyncio.sleep(PATIENCE_S)
    world.start(leader)
    await asyncio.sleep(PATIENCE_S)
    world.kill(second)
    host = world.hosts[second]
    host.disk, host.index, host.control = SimDisk(), SimIndexDisk(), memory_database()
    world.count_fault("disk_replaced")
    world.start(second)
    await asyncio.sleep(world.rng.choice([0.1, PATIENCE_S]))
    world.kill(COORDINATOR, kind="coordinator_killed")
    world.start(COORDINATOR)
    await bring_back(scene, fault)
    await asyncio.sleep(PATIENCE_S)


PLANS: dict[str, Callable[[int], Plan]] = {"deleted_for_a_while": deleted_for_a_while_plan}
KINDS = (Kind("deleted_for_a_while", deleted_for_a_while),)
