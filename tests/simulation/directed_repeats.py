"""Staged worlds of calls that arrive twice, late, or while another one is carried out.

An Open that comes again when the segment is in use, or when the disk is another one; two orders to
make the same copy; a copy that is half done when its donor dies; a partition that goes on from
replicas that were restarted. Each world is survivable and must be clean. Roles are those of
``directed``.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace

from icecore.client.admin.admin import Admin
from icecore.model import Acks, Segment, SegmentState
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import PATIENCE_S, _replace_disk, cut, plan, record, roles, until
from tests.simulation.disk import Inode
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.shells import coordinator_address

OPEN = "/icecore.v1.NodeService/Open"
ALMOST_FULL = 0.92
BATCH = "<QIq"
"""Layout of a batch in a producer's window: base sequence, record count, base offset."""


def repeated_open_plan(seed: int) -> Plan:
    """Segments are full soon, and half of all requests arrive twice."""
    calm = plan("repeated_open", acks=(Acks.ALL,), producers=4, pauses_s=(0.004,))
    knobs = replace(
        calm.knobs,
        latency_s=0.005,
        segment_bytes=4096,
        thread_delay_s=0.004,
        roll_up_wait_ms=1_000,
    )
    return replace(calm, knobs=knobs)


async def repeated_open(scene: Scene, fault: Fault) -> None:
    """Opens, and the Seals behind them, come again within milliseconds of an ACTIVE."""
    world = scene.world
    await roles(world)
    world.network.faults.repeats = 0.5
    await asyncio.sleep(8.0)
    world.network.faults.repeats = 0.0


def late_open_plan(seed: int) -> Plan:
    """Records are acked by a quorum of A and B; C is in sync and lags."""
    calm = plan("late_open", acks=(Acks.QUORUM,))
    return replace(calm, knobs=replace(calm.knobs, replica_lag_ms_max=60_000))


async def late_open(scene: Scene, fault: Fault) -> None:
    """B comes back without its disk, and then the Open of the segment arrives there once more.
    A dies before B has anything."""
    world = scene.world
    await roles(world)
    world.network.faults.echo_s[OPEN] = 1.2
    await roll(world)
    world.network.faults.echo_s.clear()
    segment = record(world)
    leader, second, third = _leader_first(segment)
    cut(world, leader, [third])
    await asyncio.sleep(0.4)
    world.kill(second)
    _replace_disk(world, second)
    world.start(second)
    cut(world, leader, [second])
    await asyncio.sleep(1.2)
    world.kill(leader, power_cut=True)
    await asyncio.sleep(PATIENCE_S)
    world.network.heal_all()
    world.start(leader)
    await asyncio.sleep(1.0)


def half_copied_plan(seed: int) -> Plan:
    """Records are acked by a quorum of A and B; C lags and is out of the in-sync set."""
    return plan("half_copied", acks=(Acks.QUORUM,))


async def half_copied(scene: Scene, fault: Fault) -> None:
    """B comes back without its disk, and A's segment is recovered, for too few are in sync. A dies
    when B has begun its copy, and so does the coordinator."""
    world = scene.world
    leader, (second, third) = await roles(world)
    segment_id = record(world).segment_id
    cut(world, leader, [third])
    await until(lambda: len(record(world).isr) == 2)
    await asyncio.sleep(0.4)
    world.kill(second)
    _replace_disk(world, second)
    world.start(second)

    def has_begun() -> bool:
        node = world.shells.get(second)
        replica = node.replicas.get(segment_id) if node is not None else None
        return replica is not None and replica.base_offset >= 0

    await until(has_begun)
    world.kill(leader, power_cut=True)
    world.kill(COORDINATOR)
    world.start(COORDINATOR)
    world.network.heal_all()
    await asyncio.sleep(2 * PATIENCE_S)
    world.start(leader)
    await asyncio.sleep(1.0)


def double_create_plan(seed: int) -> Plan:
    """There are some sealed segments to copy, fewer than a node copies at a time: of more, the
    second order waits for the first."""
    calm = plan("double_create", acks=(Acks.ALL,), pauses_s=(0.01,), producers=3)
    knobs = replace(calm.knobs, latency_s=0.005, segment_bytes=200_000, lease_ms=2_500)
    return replace(calm, knobs=knobs)


async def double_create(scene: Scene, fault: Fault) -> None:
    """B's disk is replaced. While it waits for donors that are paused, another coordinator orders
    the same copies."""
    world = scene.world
    leader, (second, third) = await roles(world)
    await asyncio.sleep(4.0)
    world.kill(second)
    world.damaged = second
    _replace_disk(world, second)
    world.start(second)

    def is_copying() -> bool:
        node = world.shells.get(second)
        return node is not None and bool(node.orders._under_way)

    await until(is_copying)
    world.pause(leader)
    world.pause(third)
    world.kill(COORDINATOR)
    world.start(COORDINATOR)
    await asyncio.sleep(1.5)
    world.resume(leader)
    world.resume(third)
    await asyncio.sleep(PATIENCE_S)


def restarted_when_sealed_plan(seed: int) -> Plan:
    """Nothing special."""
    calm = plan("restarted_when_sealed", acks=(Acks.ALL,), producers=3, pauses_s=(0.05,))
    knobs = replace(calm.knobs, latency_s=0.01, allocation_step_bytes=4096, lease_ms=1_000)
    return replace(calm, knobs=knobs)


async def restarted_when_sealed(scene: Scene, fault: Fault) -> None:
    """A dies with batches under way, of a producer that is new, while C's disk is nearly full: the
    segment is sealed without a successor. B and C are restarted before A comes back."""
    world = scene.world
    await roles(world)
    await roll(world)
    segment = record(world)
    leader, *others = _leader_first(segment)
    disk = world.hosts[others[1]].disk
    filler = Inode()
    filler.allocated = set(range(25_000))
    disk.names["filler"] = disk.durable_names["filler"] = filler
    disk.limit(int(disk.used_bytes() / ALMOST_FULL))
    world.count_fault("disk_full")
    await asyncio.sleep(2.5)
    tables = [world.shells[each].replicas.get(segment.segment_id) for each in others]
    known = set(tables[0].log.producers._producers)
    scene.traffic.replace_producer(world.rng)

    def is_durable_there() -> bool:
        for replica in tables:
            producers = replica.log.producers._producers
            fresh = [producers[each] for each in producers if each not in known]
            if (
                not fresh
                or replica.log.durable_tail.end_offset
                <= struct.unpack_from(BATCH, fresh[0].window)[2]
            ):
                return False
        return True

    await until(is_durable_there)
    world.kill(leader)
    await until(lambda: record(world).state is SegmentState.SEALED)
    await asyncio.sleep(0.3)
    for name in others:
        world.kill(name)
        world.start(name)
    await asyncio.sleep(1.0)
    world.start(leader)
    await asyncio.sleep(2 * PATIENCE_S)
    disk.limit(None)
    disk.names.pop("filler", None)
    disk.durable_names.pop("filler", None)


def _leader_first(segment: Segment) -> list[str]:
    others = [each for each in segment.replicas if each != segment.leader]
    return [f"node-{each}" for each in (segment.leader, *others)]


async def roll(world: World, operator: str = "operator") -> None:
    """Partition 0 has another active segment."""
    before = record(world).segment_id
    process, net, clock, rng = world.client(operator)

    async def ask() -> None:
        address = coordinator_address(COORDINATOR)
        async with Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng) as admin:
            await admin.roll_topic(TOPIC)

    process.spawn(ask())

    def is_rolled() -> bool:
        now = record(world)
        return now.segment_id != before and now.state is SegmentState.ACTIVE

    await until(is_rolled)


PLANS: dict[str, Callable[[int], Plan]] = {
    "repeated_open": repeated_open_plan,
    "late_open": late_open_plan,
    "half_copied": half_copied_plan,
    "double_create": double_create_plan,
    "restarted_when_sealed": restarted_when_sealed_plan,
}
KINDS = (
    Kind("repeated_open", repeated_open),
    Kind("late_open", late_open),
    Kind("half_copied", half_copied),
    Kind("double_create", double_create),
    Kind("restarted_when_sealed", restarted_when_sealed),
)
