"""Staged worlds of records that go: because they expire, while clocks jump, the leader dies and the
coordinator is another, or because disks are nearly full.

Each is survivable and must be clean; see ``expiring``. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.topic_settings import DELETE_OLDEST
from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import PATIENCE_S, plan, roles
from tests.simulation.expiring import ExpiringTopic
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

SEGMENT_BYTES = 16 * 1024
ROUNDS = 2
USED_SHARE = 0.82
"""A little more than where room is asked for, much less than where nodes stop following."""
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


def disks_fill_plan(seed: int) -> Plan:
    """Two topics, of which one gives room, on disks that are never so full that nodes wait."""
    calm = plan("disks_fill", producers=1, padding_bytes=(200,), data_dirs=1 + seed % 2)
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=SEGMENT_BYTES))


async def disks_fill(scene: Scene, fault: Fault) -> None:
    """Disks are full beyond the level at which room is asked for, until some was made; again and
    again. The leader dies meanwhile."""
    world = scene.world
    topic = ExpiringTopic(world, scene.plan, "giving", {"on_full": DELETE_OLDEST})
    world.fleeting.append(topic)
    await topic.live()
    leader, _ = await roles(world)
    for number in range(ROUNDS):
        await asyncio.sleep(PATIENCE_S)
        world.count_fault("disk_full")
        for disk in [disk for host in world.hosts.values() for disk in host.disks]:
            disk.limit(int(disk.used_bytes() / USED_SHARE))
        if number:
            world.kill(leader, power_cut=True)
        await asyncio.sleep(PATIENCE_S)
        for disk in [disk for host in world.hosts.values() for disk in host.disks]:
            disk.limit(None)
        if not world.is_up(leader):
            world.start(leader)


PLANS: dict[str, Callable[[int], Plan]] = {
    "records_expire": records_expire_plan,
    "disks_fill": disks_fill_plan,
}
KINDS = (Kind("records_expire", records_expire), Kind("disks_fill", disks_fill))
