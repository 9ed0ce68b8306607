"""Faults of processes: killed, without power, stopped for a while, asked to leave."""

import asyncio

from tests.simulation.cluster import COORDINATOR
from tests.simulation.faults import Fault, Kind, Scene, back_later, leader_of


async def kill(scene: Scene, fault: Fault) -> None:
    """SIGKILL of a node, back a little later."""
    name = scene.victim(fault)
    scene.world.kill(name)
    await back_later(scene, name, fault.lasts_s)


async def power_cut(scene: Scene, fault: Fault) -> None:
    """One machine loses power and what it had not synced."""
    name = scene.victim(fault)
    scene.world.kill(name, power_cut=True)
    await back_later(scene, name, fault.lasts_s)


async def kill_in_mid_write(scene: Scene, fault: Fault) -> None:
    """One node dies between two disk operations."""
    rng, name = scene.rng(fault), scene.victim(fault)
    power_cut = rng.random() < 0.5
    scene.world.kill_in_mid_write(name, rng.randint(0, 20), power_cut=power_cut)
    await back_later(scene, name, fault.lasts_s)


async def blackout(scene: Scene, fault: Fault) -> None:
    """The whole cluster loses power at once, coordinator included."""
    rng, world = scene.rng(fault), scene.world
    names = [*world.hosts, *world.coordinators]
    for name in names:
        world.kill(name, power_cut=True, kind="")
    world.count_fault("blackout")
    await asyncio.sleep(fault.lasts_s)
    rng.shuffle(names)
    for name in names:
        await back_later(scene, name, rng.uniform(0.0, 0.3))


async def pause(scene: Scene, fault: Fault) -> None:
    """SIGSTOP, often for longer than the lease."""
    name = scene.victim(fault)
    scene.world.pause(name)
    await asyncio.sleep(fault.lasts_s)
    scene.world.resume(name)


async def clean_stop(scene: Scene, fault: Fault) -> None:
    """SIGTERM of one node, or of one after the other; each is back before the next leaves."""
    world, rng = scene.world, scene.rng(fault)
    names = list(world.hosts) if rng.random() < 0.3 else [scene.victim(fault)]
    for name in names:
        world.terminate(name)
        for _ in range(100):
            await asyncio.sleep(0.1)
            if not world.is_up(name):
                break
        else:
            world.kill(name, kind="")  # a supervisor's patience ends: its disk hangs, maybe
        await back_later(scene, name, fault.lasts_s / len(names))


async def producer_killed(scene: Scene, fault: Fault) -> None:
    """A client dies with records under way; another takes its place."""
    scene.traffic.replace_producer(scene.rng(fault))
    scene.world.count_fault(fault.kind)


# --- composed ones, of the smaller scenarios ------------------------------------------------------


async def death_of_a_leader(scene: Scene, fault: Fault) -> None:
    """SIGKILL, power cut, or death in the middle of a write; back after a while. Sometimes its
    followers hear nothing of its last moments."""
    world = scene.world
    rng = world.rng
    await asyncio.sleep(rng.uniform(0.2, 1.0))
    name = leader_of(world, rng.randrange(scene.plan.partitions)) or rng.choice(list(world.hosts))
    power_cut = rng.random() < 0.5
    others = [other for other in world.hosts if other != name]
    if rng.random() < 0.5:
        for other in others:
            world.network.cut(name, other)
        await asyncio.sleep(rng.uniform(0.02, 0.5))
    if rng.random() < 0.4:
        world.kill_in_mid_write(name, rng.randint(0, 12), power_cut=power_cut)
        await asyncio.sleep(rng.uniform(0.1, 0.5))
    world.kill(name, power_cut=power_cut)
    for other in others:
        world.network.heal(name, other)
    await asyncio.sleep(rng.uniform(0.05, 4.0))
    if not world.is_up(name):
        world.start(name)
    await asyncio.sleep(rng.uniform(0.5, 2.0))


async def three_blackouts(scene: Scene, fault: Fault) -> None:
    """Power cuts everywhere at once, some of them in the middle of a write. One node comes back
    much later than the others, or much earlier."""
    world, plan = scene.world, scene.plan
    rng = world.rng
    for _ in range(3):
        await asyncio.sleep(rng.uniform(0.2, 0.8))
        names = list(world.hosts)
        rng.shuffle(names)
        leader = leader_of(world, rng.randrange(plan.partitions))
        if leader and rng.random() < 0.5:
            names.sort(key=lambda name: name == leader)
        if rng.random() < 0.5:
            for name in world.hosts:
                world.kill_in_mid_write(name, rng.randint(0, 10), power_cut=True)
            await asyncio.sleep(rng.uniform(0.0, 0.05))
        for name in (COORDINATOR, *names):
            world.kill(name, power_cut=True)
        world.start(COORDINATOR)
        alone = rng.choice([0, 1])
        for position, name in enumerate(names):
            world.start(name)
            await asyncio.sleep(4.0 if position == alone else rng.uniform(0.01, 0.2))
        await asyncio.sleep(plan.knobs.lease_ms / 1000)


KINDS = (
    Kind("kill", kill),
    Kind("power_cut", power_cut),
    Kind("kill_in_mid_write", kill_in_mid_write, (0.2, 2.0)),
    Kind("blackout", blackout, (0.1, 1.0)),
    Kind("pause", pause, (0.05, 4.0)),
    Kind("clean_stop", clean_stop, (0.1, 1.0)),
    Kind("producer_killed", producer_killed),
)
COMPOSED = (
    Kind("death_of_a_leader", death_of_a_leader),
    Kind("three_blackouts", three_blackouts),
)
