"""Staged worlds of a topic that syncs late (R80-R82): machines stop together, and what each knows.

Nothing is synced by time alone while they last. A node that lost its power has nothing that counts;
one that was only killed, or was stopped cleanly before, has everything. Roles are those of
``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.topic_settings import RESTART_EMPTY, FlushBounds
from tests.simulation.cluster import World
from tests.simulation.directed import plan, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

NEVER = FlushBounds(interval_ms=600_000, length_bytes=1 << 20)
LATE_S = 4.0


def late_plan(kind: str) -> Plan:
    """Segments roll now and then, and the partition may go on without its copies."""
    calm = plan(kind, flush=NEVER, on_total_loss=RESTART_EMPTY)
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=32 * 1024))


async def stop(world: World, name: str) -> None:
    """Cleanly."""
    world.terminate(name)
    await until(lambda: not world.is_up(name))


def late_blackout_plan(seed: int) -> Plan:
    return late_plan("late_blackout")


async def late_blackout(scene: Scene, fault: Fault) -> None:
    """All lose power in mid-traffic, long after the last clean stop: every copy is UNKNOWN."""
    world = scene.world
    await roles(world)
    for name in world.hosts:  # so that each has had a marker
        await stop(world, name)
        world.start(name)
        await asyncio.sleep(0.5)
    await asyncio.sleep(world.rng.uniform(0.5, 1.0))
    for name in world.hosts:
        world.kill(name, power_cut=True)
    for name in world.hosts:
        world.start(name)
        await asyncio.sleep(world.rng.uniform(0.0, 0.3))
    await asyncio.sleep(LATE_S)


def late_survivor_plan(seed: int) -> Plan:
    return late_plan("late_survivor")


async def late_survivor(scene: Scene, fault: Fault) -> None:
    """Two lose power, the third is killed and comes back much later, with everything: nobody may
    have given up what it holds."""
    world = scene.world
    leader, followers = await roles(world)
    names = [leader, *followers]
    world.rng.shuffle(names)
    for name in names:
        world.kill(name, power_cut=name != names[0])
    for name in names[1:]:
        world.start(name)
    await asyncio.sleep(LATE_S)
    world.start(names[0])
    await asyncio.sleep(LATE_S)


def late_stop_plan(seed: int) -> Plan:
    return late_plan("late_stop")


async def late_stop(scene: Scene, fault: Fault) -> None:
    """All stop cleanly, and only then the power goes: nothing may be missing."""
    world = scene.world
    await roles(world)
    for name in world.hosts:
        await stop(world, name)
    for host in world.hosts.values():
        host.power_cuts += 1
        host.disk.power_cut(world.rng)
        host.index.power_cut(world.rng)
    for name in world.hosts:
        world.start(name)
    await asyncio.sleep(LATE_S)


PLANS: dict[str, Callable[[int], Plan]] = {
    "late_blackout": late_blackout_plan,
    "late_survivor": late_survivor_plan,
    "late_stop": late_stop_plan,
}
KINDS = (
    Kind("late_blackout", late_blackout),
    Kind("late_survivor", late_survivor),
    Kind("late_stop", late_stop),
)
