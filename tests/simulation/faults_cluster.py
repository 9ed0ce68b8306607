"""Faults of the control plane (coordinators, their store, clocks), and what operators do."""

import asyncio
from collections.abc import Awaitable, Callable

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError
from icecore_replication.producers import FORGOTTEN_AFTER_MS
from tests.simulation.cluster import COORDINATOR
from tests.simulation.faults import Fault, Kind, Scene, back_later
from tests.simulation.plan import TOPIC
from tests.simulation.sim_etcd import LATENCY_S

HOSTS_MAX = 6
PARTITIONS_MAX = 6
UNDELETE_TRIES_MAX = 60
JUMP_MS = FORGOTTEN_AFTER_MS + 24 * 3600 * 1000
"""A day more than the longest time that follows a clock, or that somebody might let follow one."""


# --- coordinators ---------------------------------------------------------------------------------


async def coordinator_killed(scene: Scene, fault: Fault) -> None:
    """SIGKILL, back a little later."""
    scene.world.kill(COORDINATOR, kind=fault.kind)
    await back_later(scene, COORDINATOR, fault.lasts_s)


async def coordinator_paused(scene: Scene, fault: Fault) -> None:
    """SIGSTOP, maybe for longer than any lease."""
    scene.world.pause(COORDINATOR, kind=fault.kind)
    await asyncio.sleep(fault.lasts_s)
    scene.world.resume(COORDINATOR)


async def second_coordinator(scene: Scene, fault: Fault) -> None:
    """Another coordinator takes over while the first is stopped, or goes on without knowing."""
    world = scene.world
    if world.standing is not None:  # they have one for that
        await coordinator_paused(scene, fault)
        return
    if not world.is_up(COORDINATOR):
        return
    older = world.processes[COORDINATOR]
    older.paused = scene.rng(fault).random() < 0.7
    world.take_over()
    world.count_fault(fault.kind)
    await asyncio.sleep(fault.lasts_s)
    world.loop.resume(older)


# --- their store ----------------------------------------------------------------------------------


async def store_slow(scene: Scene, fault: Fault) -> None:
    """Each operation of the metadata store takes long."""
    scene.world.count_fault(fault.kind)
    delay_s = scene.rng(fault).choice([0.02, 0.1, 0.5])
    scene.world.store_faults.delay_s = delay_s
    _set_links(scene, "latency_s", delay_s)
    await asyncio.sleep(fault.lasts_s)
    scene.world.store_faults.delay_s = 0.001
    _set_links(scene, "latency_s", LATENCY_S)


async def store_failing(scene: Scene, fault: Fault) -> None:
    """Operations fail and change nothing; each one counts."""
    scene.world.store_faults.failing = 0.5
    _set_links(scene, "loss", 0.5)
    await asyncio.sleep(fault.lasts_s)
    scene.world.store_faults.failing = 0.0
    _set_links(scene, "loss", 0.0)


async def store_ambiguous(scene: Scene, fault: Fault) -> None:
    """Transactions are carried out and their answer is lost; each one counts."""
    scene.world.store_faults.ambiguous = 0.3
    _set_links(scene, "answer_loss", 0.3)
    await asyncio.sleep(fault.lasts_s)
    scene.world.store_faults.ambiguous = 0.0
    _set_links(scene, "answer_loss", 0.0)


def _set_links(scene: Scene, what: str, value: float) -> None:
    """The same of each coordinator's calls to etcd, where metadata are there."""
    if scene.world.standing is not None:
        for links in scene.world.standing.links.values():
            setattr(links, what, value)


# --- clocks ---------------------------------------------------------------------------------------


async def clock_jump(scene: Scene, fault: Fault) -> None:
    """The wall clock of one process is far off, and then right again."""
    rng = scene.rng(fault)
    name = COORDINATOR if rng.random() < 0.2 else scene.victim(fault)
    scene.world.count_fault(fault.kind)
    scene.world.set_clock(name, rng.choice([-JUMP_MS, JUMP_MS]))
    await asyncio.sleep(fault.lasts_s)
    scene.world.set_clock(name, 0)


async def clock_skew(scene: Scene, fault: Fault) -> None:
    """The wall clock of one node is some seconds off, for the rest of the world."""
    rng = scene.rng(fault)
    scene.world.count_fault(fault.kind)
    scene.world.set_clock(scene.victim(fault), rng.randint(-8_000, 8_000))


# --- operators ------------------------------------------------------------------------------------


async def node_added(scene: Scene, fault: Fault) -> None:
    """One more node joins."""
    if len(scene.world.hosts) < HOSTS_MAX:
        scene.world.start(scene.world.add_host())
        scene.world.count_fault(fault.kind)


async def topic_altered(scene: Scene, fault: Fault) -> None:
    """New settings, so that every partition rolls under load."""
    segment_bytes = scene.rng(fault).choice([8, 16, 24, 48, 96]) * 1024
    await _ask(scene, fault, lambda admin: admin.alter_topic(TOPIC, segment_bytes=segment_bytes))


async def topic_rolled(scene: Scene, fault: Fault) -> None:
    """Every partition rolls under load."""
    await _ask(scene, fault, lambda admin: admin.roll_topic(TOPIC))


async def partitions_added(scene: Scene, fault: Fault) -> None:
    """One partition more; producers use it as soon as they know."""
    wanted = scene.traffic.partitions + 1
    if wanted > PARTITIONS_MAX:
        return
    if await _ask(scene, fault, lambda admin: admin.add_partitions(TOPIC, wanted)):
        scene.traffic.partitions = max(scene.traffic.partitions, wanted)


async def topic_deleted_and_undeleted(scene: Scene, fault: Fault) -> None:
    """Delete a topic by mistake, and bring it back. Producers and consumers find no topic
    meanwhile."""
    await delete(scene, fault)
    await asyncio.sleep(fault.lasts_s)
    await bring_back(scene, fault)


async def delete(scene: Scene, fault: Fault) -> None:
    """Delete the topic, perhaps without hearing so. Nobody says it again by accident once it has
    been brought back: a deletion names a topic, and would be obeyed."""
    scene.world.network.faults.sent_once.add(_operator(fault))
    await _ask(scene, fault, lambda admin: admin.delete_topic(TOPIC))


async def bring_back(scene: Scene, fault: Fault) -> None:
    """Undelete the topic, however long that takes; a world without it is not whole. An operator
    who has not heard whether a topic was deleted first looks."""
    world = scene.world
    process, net, clock, rng = world.client(f"operator-{fault.number}")

    async def undelete() -> None:
        address = world.coordinator_address
        async with Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng) as admin:
            for _ in range(UNDELETE_TRIES_MAX):
                try:
                    if await admin.describe_topics([TOPIC], deleted=True):
                        await admin.undelete_topic(TOPIC)
                    elif await admin.describe_topics([TOPIC]):
                        return
                except IcecoreError as error:
                    world.loop.trace(f"not undeleted: {error.reason}")
                    await asyncio.sleep(0.5)
            world.loop.failures.append("a deleted topic can't be brought back")

    await process.spawn(undelete())


def _operator(fault: Fault) -> str:
    return f"admin-{fault.number}"


async def _ask(scene: Scene, fault: Fault, what: Callable[[Admin], Awaitable[object]]) -> bool:
    """Have an operator do something; whether it was said to be done."""
    world = scene.world
    process, net, clock, rng = world.client(_operator(fault))
    world.count_fault(fault.kind)

    async def ask() -> bool:
        address = world.coordinator_address
        async with Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng) as admin:
            try:
                await what(admin)
            except IcecoreError as error:
                world.loop.trace(f"{fault.kind}: {error.reason}")
                return False
            return True

    done: bool = await process.spawn(ask())
    return done


KINDS = (
    Kind("coordinator_killed", coordinator_killed),
    Kind("coordinator_paused", coordinator_paused),
    Kind("second_coordinator", second_coordinator),
    Kind("store_slow", store_slow, (0.5, 4.0)),
    Kind("store_failing", store_failing, (0.2, 2.0)),
    Kind("store_ambiguous", store_ambiguous, (0.2, 2.0)),
    Kind("clock_jump", clock_jump, (0.1, 5.0)),
    Kind("clock_skew", clock_skew),
    Kind("node_added", node_added),
    Kind("topic_altered", topic_altered),
    Kind("topic_rolled", topic_rolled),
    Kind("partitions_added", partitions_added),
    Kind("topic_deleted_and_undeleted", topic_deleted_and_undeleted),
)
