"""Worlds in which one rule of the protocol is all that stands between a fault and a lost record.

A swarm meets such a moment once in some thousand seeds. Here it is staged: cut at the right time,
let the right node die. Each world is survivable and must be clean; its mutant must not be (see
``mutants``). Roles: A leads partition 0, B and C follow it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from icecore.model import Acks, Segment, SegmentState
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Fault, Kind, Scene, leader_of
from tests.simulation.index import SimIndexDisk
from tests.simulation.plan import Plan
from tests.simulation.ports import memory_database
from tests.simulation.shared_logs import first_batches
from tests.simulation.shells import Knobs

LOOK_S = 0.0005
PATIENCE_S = 3.0


def plan(kind: str, **changes: object) -> Plan:
    """A calm cluster with one partition and much traffic; ``changes`` are of the Plan."""
    knobs = Knobs(
        segment_bytes=1 << 20,
        replica_lag_ms_max=300,
        lease_ms=2_000,
        recovery_wait_ms=100,
        roll_up_wait_ms=60_000,
        latency_s=0.001,
    )
    calm = Plan(
        knobs=knobs,
        partitions=1,
        producers=2,
        bursts=2_000,
        pauses_s=(0.015, 0.03),
        acks=(Acks.ALL, Acks.QUORUM),
        faults=(Fault(0, kind, 0.0, 0.0, "node 1"),),
    )
    return replace(calm, **changes)  # type: ignore[arg-type]


# --- what all of them need ------------------------------------------------------------------------


async def roles(world: World) -> tuple[str, list[str]]:
    """A, and B and C, once there is some traffic."""
    await asyncio.sleep(1.0)
    leader = leader_of(world, 0)
    segment = record(world)
    followers = [f"node-{each}" for each in segment.replicas if f"node-{each}" != leader]
    world.rng.shuffle(followers)
    return leader, followers


def record(world: World) -> Segment:
    """Return the coordinator's current record of partition 0's newest segment."""
    records = world.shells[COORDINATOR].ledger.state.segments.values()
    found: list[Segment] = [each.segment for each in records]
    return max(
        (each for each in found if each.state is not SegmentState.PREPARED),
        key=lambda each: each.segment_id,
    )


async def until(is_so: Callable[[], bool]) -> bool:
    """Look again and again, for a while; whether it came true."""
    for _ in range(int(PATIENCE_S / LOOK_S)):
        if is_so():
            return True
        await asyncio.sleep(LOOK_S)
    return False


def cut(world: World, one: str, others: Iterable[str]) -> None:
    """Both ways."""
    for other in others:
        world.network.cut(one, other)
        world.network.cut(other, one)


def heal(world: World, one: str, others: Iterable[str]) -> None:
    """Both ways."""
    for other in others:
        world.network.heal(one, other)
        world.network.heal(other, one)


async def lose_leader(world: World, leader: str, down_s: float = PATIENCE_S) -> None:
    """A loses power; the others have time to decide without it; A comes back. Until then links that
    are cut stay so: what was sent before would travel on."""
    world.kill(leader, power_cut=True)
    await asyncio.sleep(down_s)
    world.network.heal_all()
    world.start(leader)
    await asyncio.sleep(1.0)


# --- the worlds -----------------------------------------------------------------------------------


def lonely_leader_plan(seed: int) -> Plan:
    """Whatever A acks alone is lost. Every other time A can't even say that it is alone."""
    kind = ("lonely_leader", "lonelier_leader")[seed // 2 % 2]
    return plan(kind, min_insync_replicas=1 + seed % 2)


async def lonely_leader(scene: Scene, fault: Fault) -> None:
    """A does not hear its followers; clients still hear A. Then it dies, and the others decide."""
    leader, followers = await roles(scene.world)
    cut(scene.world, leader, followers)
    await asyncio.sleep(scene.world.rng.uniform(0.8, 1.8))
    await lose_leader(scene.world, leader)


async def lonelier_leader(scene: Scene, fault: Fault) -> None:
    """The same, and A does not hear the coordinator either."""
    leader, followers = await roles(scene.world)
    cut(scene.world, leader, [*followers, COORDINATOR])
    await asyncio.sleep(scene.world.rng.uniform(0.8, 1.8))
    await lose_leader(scene.world, leader)


def sealed_alone_plan(seed: int) -> Plan:
    """Segments are full soon, and nobody is dropped for being late."""
    calm = plan("sealed_alone", acks=(Acks.ALL, Acks.QUORUM))
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=4096, replica_lag_ms_max=60_000))


async def sealed_alone(scene: Scene, fault: Fault) -> None:
    """A's followers have slow disks when its segment is full. Then it dies."""
    world = scene.world
    leader, followers = await roles(world)
    for follower in followers:
        world.hosts[follower].slowness = 100.0
    await asyncio.sleep(2.0)
    for follower in followers:
        world.hosts[follower].slowness = 1.0
    await lose_leader(world, leader)


def late_answers_plan(seed: int) -> Plan:
    """A counts on its lease with every record."""
    return plan("late_answers", acks=(Acks.LEADER, Acks.ALL))


async def late_answers(scene: Scene, fault: Fault) -> None:
    """The coordinator's answers to A's heartbeats are late; when they come, it hears A no more."""
    world = scene.world
    leader, _ = await roles(world)
    world.network.clog(COORDINATOR, leader, 1.5)
    await asyncio.sleep(0.2)
    world.network.cut(leader, COORDINATOR)
    await asyncio.sleep(4.0)
    world.network.heal_all()
    await asyncio.sleep(1.0)


def two_coordinators_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("two_coordinators")


async def two_coordinators(scene: Scene, fault: Fault) -> None:
    """Another coordinator takes over from one that does not know; then A dies, and both see it."""
    world = scene.world
    leader, _ = await roles(world)
    world.take_over()
    await asyncio.sleep(0.1)
    await lose_leader(world, leader)


def slow_joiner_plan(seed: int) -> Plan:
    """With ``min_insync_replicas`` 1 A goes on alone, and whoever joins must have what A has
    acked."""
    return plan("slow_joiner", min_insync_replicas=1, acks=(Acks.ALL,), pauses_s=(0.004,))


async def slow_joiner(scene: Scene, fault: Fault) -> None:
    """B and C join A's in-sync set again; their disks are always a little late. Then A dies, and
    they lose power."""
    world = scene.world
    leader, followers = await roles(world)
    cut(world, leader, followers)
    await until(lambda: len(record(world).isr) == 1)
    for follower in followers:
        world.hosts[follower].slowness = 20.0
    heal(world, leader, followers)
    await until(lambda: len(record(world).isr) > 1)
    cut(world, leader, followers)
    for follower in followers:
        world.kill(follower, power_cut=True)
        world.hosts[follower].slowness = 1.0
        world.start(follower)
    await lose_leader(world, leader)


def unheard_answer_plan(seed: int) -> Plan:
    """As above."""
    return plan("unheard_answer", min_insync_replicas=1, acks=(Acks.ALL,))


async def unheard_answer(scene: Scene, fault: Fault) -> None:
    """B and C join A's in-sync set, and A does not hear that they did. Then A dies."""
    world = scene.world
    leader, followers = await roles(world)
    cut(world, leader, followers)
    await until(lambda: len(record(world).isr) == 1)
    await asyncio.sleep(0.1)
    world.network.cut(COORDINATOR, leader)
    heal(world, leader, followers)
    await until(lambda: len(record(world).isr) > 1)
    cut(world, leader, followers)
    await asyncio.sleep(0.2)
    await lose_leader(world, leader)


HARMS = ("none", "replaced", "rotten", "unsynced")


def lagging_third_plan(seed: int) -> Plan:
    """Records are acked by a quorum of A and B; C is in sync and lags. There are nodes to spare."""
    calm = plan(f"lagging_third_{HARMS[seed % len(HARMS)]}", nodes=5, acks=(Acks.QUORUM,))
    return replace(calm, knobs=replace(calm.knobs, replica_lag_ms_max=60_000))


def lagging_third(harm: str) -> Callable[[Scene, Fault], asyncio.Future[None]]:
    """A and B die, and one disk of the two is harmed: B's."""

    async def strike(scene: Scene, fault: Fault) -> None:
        world = scene.world
        leader, (second, third) = await roles(world)
        cut(world, leader, [third])
        await asyncio.sleep(world.rng.uniform(0.4, 0.8))
        host = world.hosts[second]
        if harm != "none":
            world.suspects.add(second)
        if harm == "unsynced":
            host.disk.faults.failing_syncs = 1
            await until(lambda: host.disk.faults.failing_syncs == 0)
            await asyncio.sleep(0.05)
        world.kill(leader, power_cut=True)
        world.kill(second, power_cut=True)
        if harm == "replaced":
            _replace_disk(world, second)
        if harm == "rotten":
            _rot_first_batch(world, second)
        if harm != "none":
            world.start(second)
        await asyncio.sleep(PATIENCE_S)
        world.network.heal_all()
        for name in (leader, second):
            if not world.is_up(name):
                world.start(name)
        await asyncio.sleep(1.0)

    return strike  # type: ignore[return-value]


def rebuilt_plan(seed: int) -> Plan:
    """As above."""
    calm = plan("rebuilt", nodes=5, acks=(Acks.QUORUM,))
    return replace(calm, knobs=replace(calm.knobs, replica_lag_ms_max=60_000))


async def rebuilt(scene: Scene, fault: Fault) -> None:
    """B comes back without its disk while A lives and C lags; then A dies."""
    world = scene.world
    leader, (second, third) = await roles(world)
    segment_id = record(world).segment_id
    cut(world, leader, [third])
    await asyncio.sleep(0.5)
    world.kill(second)
    _replace_disk(world, second)
    world.start(second)

    def has_begun() -> bool:
        node = world.shells.get(second)
        return node is not None and node.replicas.get(segment_id) is not None

    await until(has_begun)
    cut(world, leader, [second])
    await asyncio.sleep(0.05)
    await lose_leader(world, leader, down_s=1.0)


def torn_creation_plan(seed: int) -> Plan:
    """Segments are full soon, so that files are created all the time."""
    calm = plan("torn_creation", partitions=2)
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=2048, group_items_max=4))


async def torn_creation(scene: Scene, fault: Fault) -> None:
    """Nodes die between two operations of their disks, again and again."""
    world = scene.world
    for _ in range(12):
        name = world.rng.choice(list(world.hosts))
        world.kill_in_mid_write(name, world.rng.randint(5, 40))
        await asyncio.sleep(0.6)
        world.kill(name)
        world.start(name)
        await asyncio.sleep(0.2)


def _replace_disk(world: World, name: str) -> None:
    """A stopped node has an empty folder."""
    host = world.hosts[name]
    host.disk, host.index, host.control = SimDisk(), SimIndexDisk(), memory_database()
    world.suspects.add(name)
    world.count_fault("disk_replaced")


def _rot_first_batch(world: World, name: str) -> None:
    """A bit of the first batch's header flips in every file of a node."""
    disk = world.hosts[name].disk
    world.count_fault("bit_rot_active")
    for file in sorted(disk.names):
        if file.startswith("segments/"):
            disk.names[file].flip_bit(4096 + 40, world.rng.randrange(8))
    for file, position in first_batches(disk):
        disk.names[file].flip_bit(position + 40, world.rng.randrange(8))


PLANS: dict[str, Callable[[int], Plan]] = {
    "lonely_leader": lonely_leader_plan,
    "sealed_alone": sealed_alone_plan,
    "late_answers": late_answers_plan,
    "two_coordinators": two_coordinators_plan,
    "slow_joiner": slow_joiner_plan,
    "unheard_answer": unheard_answer_plan,
    "lagging_third": lagging_third_plan,
    "rebuilt": rebuilt_plan,
    "torn_creation": torn_creation_plan,
}
KINDS = (
    Kind("lonely_leader", lonely_leader),
    Kind("lonelier_leader", lonelier_leader),
    Kind("sealed_alone", sealed_alone),
    Kind("late_answers", late_answers),
    Kind("two_coordinators", two_coordinators),
    Kind("slow_joiner", slow_joiner),
    Kind("unheard_answer", unheard_answer),
    Kind("rebuilt", rebuilt),
    Kind("torn_creation", torn_creation),
    *(Kind(f"lagging_third_{harm}", lagging_third(harm)) for harm in HARMS),
)
