"""Staged worlds of shortages and of start-ups that go wrong: what costs time may cost nothing else.

Descriptors run out while segments roll and are read back; a process dies between the sync and the
index of its own recovery; the index rots under a node. None of it is damage of a log: every world
must end whole, with nobody condemned and, where it says so, nobody ended. Roles are those of
``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster import World
from tests.simulation.directed import PATIENCE_S, plan, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

TIMES = 6


def descriptors_run_out_plan(seed: int) -> Plan:
    """Segments are full soon, so that files are made, sealed and read back all the time."""
    calm = plan("descriptors_run_out")
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=4096))


async def descriptors_run_out(scene: Scene, fault: Fault) -> None:
    """All nodes at once, as they have the same to do; sometimes after a few files more."""
    world = scene.world
    await roles(world)
    for _ in range(TIMES):
        for host in world.hosts.values():
            host.disk.faults.opens_left = world.rng.randrange(6)
        world.count_fault("out_of_descriptors")
        await asyncio.sleep(world.rng.uniform(0.5, 3.5))
        for host in world.hosts.values():
            host.disk.faults.opens_left = None
        await asyncio.sleep(0.5)
    _nobody_ended(world)
    _nobody_condemned(world)


def dies_in_recovery_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("dies_in_recovery")


async def dies_in_recovery(scene: Scene, fault: Fault) -> None:
    """B is killed with bytes that only the page cache has, again as it recovers, and then the power
    fails: what its index says by then must be on the disk."""
    world = scene.world
    _, (second, _) = await roles(world)
    for _ in range(TIMES):
        world.hosts[second].index.flush()
        world.kill_in_mid_write(second, world.rng.randrange(1, 12))
        await until(lambda: not world.is_up(second))
        world.start(second)
        world.kill_in_mid_write(second, world.rng.randrange(2), power_cut=True)
        await until(lambda: not world.is_up(second))
        if world.is_up(second):
            world.kill(second, power_cut=True)
        world.start(second)
        await asyncio.sleep(1.0)
    _nobody_condemned(world)


def index_rots_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("index_rots")


async def index_rots(scene: Scene, fault: Fault) -> None:
    """Whatever is read from B's index, or written to it, fails: while it runs, and as it starts."""
    world = scene.world
    _, (second, _) = await roles(world)
    index = world.hosts[second].index
    for number in range(TIMES):
        index.is_rotten = True
        world.count_fault("index_lost")
        if number % 2:
            world.kill(second)
            world.start(second)
        await until(lambda: not index.is_rotten)
        await asyncio.sleep(0.5)
    await asyncio.sleep(PATIENCE_S)
    _nobody_ended(world)
    _nobody_condemned(world)


def _nobody_ended(world: World) -> None:
    """Note a failure for each process that ended by itself."""
    world.loop.failures += [f"ended although nothing was damaged: {each}" for each in world.exits]


def _nobody_condemned(world: World) -> None:
    for name, host in world.hosts.items():
        query = "SELECT segment_id, damage FROM replicas WHERE damage != ''"
        world.loop.failures += [
            f"{name}: segment {segment_id} is UNKNOWN although nothing was damaged: {why}"
            for segment_id, why in host.control.execute(query)
        ]


PLANS: dict[str, Callable[[int], Plan]] = {
    "descriptors_run_out": descriptors_run_out_plan,
    "dies_in_recovery": dies_in_recovery_plan,
    "index_rots": index_rots_plan,
}
KINDS = (
    Kind("descriptors_run_out", descriptors_run_out),
    Kind("dies_in_recovery", dies_in_recovery),
    Kind("index_rots", index_rots),
)
