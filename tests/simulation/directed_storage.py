"""Staged worlds of files, disks, openings and terms: what a swarm meets too rarely to count on it.

A file is gone, or rots where no index says how far it was durable; a disk is full for a moment; a
node is another one by the time that its segment opens; a coordinator is, in mid-recovery. Each
world is survivable and must be clean. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError
from icecore.model import SegmentState
from icecore_node.replication.follower import Follower
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import PATIENCE_S, plan, record, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.machine import Trouble
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.shells import coordinator_address

GROUP_BYTES = 16 * 1024
FULL_TIMES = 3


def file_removed_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("file_removed")


async def file_removed(scene: Scene, fault: Fault) -> None:
    """B comes back without the file of the segment that it follows."""
    world = scene.world
    _, (second, _) = await roles(world)
    file = _followed_file(world, second)
    world.kill(second)
    disk = world.hosts[second].disk
    disk.names.pop(file, None)
    disk.durable_names.pop(file, None)
    world.suspects.add(second)
    world.count_fault("truncation")  # of all there is
    world.start(second)
    await asyncio.sleep(PATIENCE_S)


def rot_without_index_plan(seed: int) -> Plan:
    """Groups are small and bursts large: a log is soon longer than what may be torn."""
    calm = plan("rot_without_index", burst_max=5)
    return replace(calm, knobs=replace(calm.knobs, group_bytes_max=GROUP_BYTES))


async def rot_without_index(scene: Scene, fault: Fault) -> None:
    """B comes back without its index, and with a first batch that rots: the log behind it tells
    that this was no torn write."""
    world = scene.world
    _, (second, _) = await roles(world)
    file = _followed_file(world, second)
    host = world.hosts[second]

    def is_long() -> bool:
        inode = host.disk.names[file]
        behind = FILE_HEADER_LENGTH + 2 * GROUP_BYTES
        return bool(inode.read(inode.size, behind).strip(b"\0"))

    await until(is_long)
    world.kill(second)
    host.index.wipe()
    host.disk.names[file].flip_bit(FILE_HEADER_LENGTH + 40, world.rng.randrange(8))
    world.suspects.add(second)
    world.count_fault("bit_rot_active")
    world.start(second)
    await asyncio.sleep(PATIENCE_S)


def space_again_plan(seed: int) -> Plan:
    """Disks are asked for more space all the time."""
    calm = plan("space_again", padding_bytes=(800,))
    return replace(calm, knobs=replace(calm.knobs, allocation_step_bytes=4096))


async def space_again(scene: Scene, fault: Fault) -> None:
    """B's disk has no space until an append has failed, again and again."""
    world = scene.world
    _, (second, _) = await roles(world)
    disk = world.hosts[second].disk

    def has_failed() -> bool:
        node = world.shells[second]
        roles = [each.role for each in node.replicas]
        return any(isinstance(each, Follower) and each.core.stopped for each in roles)

    for _ in range(FULL_TIMES):
        disk.limit(disk.used_bytes())
        world.count_fault("disk_full")
        await until(has_failed)
        disk.limit(None)
        await asyncio.sleep(world.rng.uniform(2.0, 3.0))


def restarted_while_opening_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("restarted_while_opening")


async def restarted_while_opening(scene: Scene, fault: Fault) -> None:
    """The first segment of another partition opens: C is slow to say that it has the file; B has
    said so, and is another incarnation by then."""
    world = scene.world
    _, (second, third) = await roles(world)
    world.hosts[third].stalled_until_s = world.loop.time() + 2 * PATIENCE_S
    world.count_fault("disk_stall")
    process, net, clock, rng = world.client("operator")

    async def add_partition() -> None:
        address = coordinator_address(COORDINATOR)
        async with Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng) as admin:
            try:
                await admin.add_partitions(TOPIC, 2)
            except IcecoreError as error:
                world.loop.trace(f"partition not added: {error.reason}")

    def is_open_at_second() -> bool:
        replicas = world.shells[second].replicas
        return any(each.identity.partition == 1 and each.base_offset >= 0 for each in replicas)

    process.spawn(add_partition())
    await until(is_open_at_second)
    await asyncio.sleep(0.05)
    world.kill(second)
    world.start(second)
    await asyncio.sleep(2 * PATIENCE_S)


def overtaken_in_recovery_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("overtaken_in_recovery")


async def overtaken_in_recovery(scene: Scene, fault: Fault) -> None:
    """The coordinator stops just after it began to recover A's segment, and goes on when another
    one has done that."""
    world = scene.world
    leader, _ = await roles(world)
    world.kill(leader)
    await until(lambda: record(world).state is SegmentState.RECOVERING)
    older = world.processes[COORDINATOR]
    older.paused = True
    world.take_over()
    world.count_fault("second_coordinator")
    await asyncio.sleep(PATIENCE_S)
    world.loop.resume(older)
    await asyncio.sleep(1.0)
    world.start(leader)


def unstored_failure_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("unstored_failure")


async def unstored_failure(scene: Scene, fault: Fault) -> None:
    """A sync of B fails while its control store is full, so nothing tells the next start of it."""
    world = scene.world
    _, (second, _) = await roles(world)
    host = world.hosts[second]
    world.suspects.add(second)
    for _ in range(FULL_TIMES):
        full = Trouble("control_full", ("control commit",), times=1 << 30)
        host.machine.troubles.append(full)
        host.disk.faults.failing_syncs = 1
        await until(lambda: not world.is_up(second))
        host.machine.troubles.remove(full)
        world.start(second)
        await asyncio.sleep(PATIENCE_S)


def _followed_file(world: World, name: str) -> str:
    """Return the name of a follower's file of partition 0's newest segment."""
    replica = world.shells[name].replicas.get(record(world).segment_id)
    return file_name(replica.identity)


PLANS: dict[str, Callable[[int], Plan]] = {
    "file_removed": file_removed_plan,
    "rot_without_index": rot_without_index_plan,
    "space_again": space_again_plan,
    "restarted_while_opening": restarted_while_opening_plan,
    "overtaken_in_recovery": overtaken_in_recovery_plan,
    "unstored_failure": unstored_failure_plan,
}
KINDS = (
    Kind("file_removed", file_removed),
    Kind("rot_without_index", rot_without_index),
    Kind("space_again", space_again),
    Kind("restarted_while_opening", restarted_while_opening),
    Kind("overtaken_in_recovery", overtaken_in_recovery),
    Kind("unstored_failure", unstored_failure),
)
