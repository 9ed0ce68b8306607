"""Staged worlds of nodes with two disks: one fails while its node runs, or is missing at a start.

The node goes on with the other one (R83). Each world is survivable and must be clean. Roles are
those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster import World
from tests.simulation.directed import PATIENCE_S, plan, roles, until
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

SEGMENT_BYTES = 8 * 1024
LOGS_THERE = 2


def _small_segments(kind: str) -> Plan:
    """Segments roll all the time, so that new ones come to the new disk."""
    calm = plan(kind, padding_bytes=(400,))
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=SEGMENT_BYTES))


async def _with_two_disks(world: World) -> str:
    """B, once it has logs on a disk that it did not have before."""
    _, (second, _) = await roles(world)
    host = world.hosts[second]
    host.further = further = SimDisk()
    world.kill(second)
    world.start(second)
    await until(lambda: sum(name.endswith(".log") for name in further.names) >= LOGS_THERE)
    world.suspects.add(second)
    return second


async def further_disk_fails(scene: Scene, fault: Fault) -> None:
    """A sync fails on B's other disk; B goes on. Later it starts again, and the disk is fine."""
    world = scene.world
    second = await _with_two_disks(world)
    host, process = world.hosts[second], world.processes[second]
    assert host.further is not None
    faults = host.further.faults
    faults.failing_syncs = 1
    await until(lambda: faults.failed_syncs > 0)
    world.count_fault("fsync_error")
    await asyncio.sleep(PATIENCE_S)
    assert world.is_up(second) and world.processes[second] is process, "it has not ended"
    world.kill(second, power_cut=world.rng.random() < 0.5)
    world.start(second)
    await asyncio.sleep(PATIENCE_S)


async def further_disk_missing(scene: Scene, fault: Fault) -> None:
    """B starts without its other disk, works for a while, and starts again with it."""
    world = scene.world
    second = await _with_two_disks(world)
    host = world.hosts[second]
    for is_missing in (True, False):
        world.kill(second, power_cut=world.rng.random() < 0.5)
        host.is_further_missing = is_missing
        world.start(second)
        world.count_fault("truncation")  # of all that is there
        await asyncio.sleep(PATIENCE_S)


PLANS: dict[str, Callable[[int], Plan]] = {
    kind: lambda seed, kind=kind: _small_segments(kind)  # type: ignore[misc]
    for kind in ("further_disk_fails", "further_disk_missing")
}
KINDS = (
    Kind("further_disk_fails", further_disk_fails),
    Kind("further_disk_missing", further_disk_missing),
)
