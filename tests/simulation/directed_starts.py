"""Staged worlds of starts that do not end: what a node finds out before it dies again must not be
lost with it.

Records are acknowledged by A and B alone; C lags. B's disk fails a sync, so that no log that B was
writing can be trusted, though all is still in the page cache; then it dies at each point of its
start. A is gone, and whoever decides must not take B's word. Folders are made and writes fail here
as well. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.model import Acks
from tests.simulation.directed import PATIENCE_S, cut, plan, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.machine import Trouble
from tests.simulation.plan import Plan

DEATHS = 7


def dies_at_each_start_plan(seed: int) -> Plan:
    """There are nodes to spare."""
    calm = plan("dies_at_each_start", nodes=5, acks=(Acks.QUORUM,))
    return replace(calm, knobs=replace(calm.knobs, replica_lag_ms_max=60_000))


async def dies_at_each_start(scene: Scene, fault: Fault) -> None:
    """B's start gets a little further each time; then it starts for good, while A is down."""
    world = scene.world
    leader, (second, third) = await roles(world)
    cut(world, leader, [third])
    await asyncio.sleep(world.rng.uniform(0.4, 0.8))
    world.suspects.add(second)
    faults = world.hosts[second].disk.faults
    faults.failing_syncs = 1
    await until(lambda: faults.failing_syncs == 0)
    await asyncio.sleep(0.05)
    world.kill(leader, power_cut=True)
    world.kill(second)
    for operations in range(DEATHS):
        world.start(second)
        world.kill_in_mid_write(second, operations, kind="death_at_start")
        await asyncio.sleep(0.1)
        world.kill(second)
    world.start(second)
    await asyncio.sleep(PATIENCE_S)
    world.network.heal_all()
    world.start(leader)
    await asyncio.sleep(1.0)


def folders_lost_plan(seed: int) -> Plan:
    """Nothing special; partitions are added, so that folders are made."""
    return plan("folders_lost", partitions=2)


async def folders_lost(scene: Scene, fault: Fault) -> None:
    """Everybody loses power soon after the first records of a new cluster were acknowledged."""
    world = scene.world
    await roles(world)
    for name in world.hosts:
        world.kill(name, power_cut=True)
    await asyncio.sleep(0.2)
    for name in world.hosts:
        world.start(name)
    await asyncio.sleep(1.0)


def failing_writes_plan(seed: int) -> Plan:
    """Segments are full soon, so that files are created, too."""
    calm = plan("failing_writes")
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=8 * 1024))


async def failing_writes(scene: Scene, fault: Fault) -> None:
    """The same write fails in its middle everywhere; all must stop and begin again."""
    world = scene.world
    await roles(world)
    for _ in range(3):
        for host in world.hosts.values():
            trouble = Trouble("write_error", ("pwritev",), times=2, partly=True)
            host.machine.troubles.append(trouble)
        await asyncio.sleep(2.5)


PLANS: dict[str, Callable[[int], Plan]] = {
    "dies_at_each_start": dies_at_each_start_plan,
    "folders_lost": folders_lost_plan,
    "failing_writes": failing_writes_plan,
}
KINDS = (
    Kind("dies_at_each_start", dies_at_each_start),
    Kind("folders_lost", folders_lost),
    Kind("failing_writes", failing_writes),
)
