"""Staged worlds of a streaming query whose driver dies again and again while it writes, and whose
micro-batches are run again by the same tasks, or by others.

Its tasks are the production core of the Spark sink (``sink_queries``). Meanwhile who leads its
topic loses power, stands still, or is cut off from everybody but clients, the coordinator dies,
replies are lost, and requests come twice, or late.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError
from icecore.model import Acks
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import cut, heal, plan, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan
from tests.simulation.shells import coordinator_address
from tests.simulation.sink_queries import Death, SinkQuery
from tests.simulation.sink_rows import other_number

NAME = "sink"
OTHERWISE = 0.6
"""Probability that a run again has other tasks or rows, in worlds of such."""
ROUNDS = 3
HEARD_S = 1.0
"""By then all nodes have heard of the topic."""
LIMIT_S = 60.0
"""A query may last longer; nothing falls into it any more."""


def _plan(kind: str, seed: int) -> Plan:
    """Little traffic beside the query; in every second world clients begin at nodes."""
    calm = plan(kind, producers=1, pauses_s=(1.0,), acks=(Acks.ALL,), begins_at_nodes=seed % 2 == 1)
    knobs = replace(calm.knobs, latency_s=0.005, lease_ms=1_000, heartbeat_ms=200)
    return replace(calm, knobs=knobs)


def sink_runs_again_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("sink_runs_again", seed)


async def sink_runs_again(scene: Scene, fault: Fault) -> None:
    """Each run again has the tasks that it had."""
    await _write(scene, 0.0)


def sink_divides_otherwise_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("sink_divides_otherwise", seed)


async def sink_divides_otherwise(scene: Scene, fault: Fault) -> None:
    """Many of the runs again have other tasks, or other rows."""
    await _write(scene, OTHERWISE)


def sink_asks_an_old_leader_plan(seed: int) -> Plan:
    """Clients begin at nodes."""
    return replace(_plan("sink_asks_an_old_leader", seed), begins_at_nodes=True)


async def sink_asks_an_old_leader(scene: Scene, fault: Fault) -> None:
    """A led the topic and is cut off from everybody but clients. Rows go to the next leader. Then
    the driver dies, and the tasks of the next one, which has divided the rows otherwise, begin at
    A: it must not be believed that nobody has written anything."""
    world = scene.world
    query = SinkQuery(world, scene.plan, NAME, otherwise=OTHERWISE, partitions=1)
    query.asked_first_share = 1.0
    world.fleeting.append(query)
    await asyncio.sleep(1.0)
    await query.make()
    await until(lambda: bool(_led(world)))
    await asyncio.sleep(HEARD_S)
    for _ in range(ROUNDS):
        leader, partition = world.rng.choice(_led(world))
        others = [name for name in (*world.hosts, COORDINATOR) if name != leader]
        cut(world, leader, others)
        world.count_fault("cut")
        at_others = {(name, partition) for name in others}
        await until(lambda at_others=at_others: not at_others.isdisjoint(_led(world)))
        batch = query.next_batch()
        query.asked_first = world.rng.choice([name for name in world.hosts if name != leader])
        await query.attempt(batch, batch.original, Death(within_s=3.0, records=3))
        query.asked_first = leader
        other = other_number(world.rng, batch.original)
        await query.attempt(batch, other, Death(within_s=8.0))
        query.asked_first = ""
        heal(world, leader, others)
        await query.write(batch)


def sink_topic_is_made_again_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("sink_topic_is_made_again", seed)


async def sink_topic_is_made_again(scene: Scene, fault: Fault) -> None:
    """Its topic is deleted under the query, also in the middle of a micro-batch, and another one of
    the name is made. Where the first micro-batch was not written yet the query begins there; else
    it ends."""
    world = scene.world
    query = SinkQuery(world, scene.plan, NAME)
    query.forgets = False
    world.fleeting.append(query)
    await asyncio.sleep(1.0)
    await query.make()
    query.live()
    await asyncio.sleep(world.rng.choice([0.02, 0.1, 0.3, 1.0, 3.0]) * world.rng.random())
    world.count_fault("topic_made_again")
    await query.make_again()
    rng = random.Random(f"faults of {NAME} {world.seed}")
    for _ in range(3):
        await asyncio.sleep(rng.expovariate(1 / 0.8))
        await rng.choice(HAPPENINGS)(world, rng, query)


async def _write(scene: Scene, otherwise: float) -> None:
    world = scene.world
    query = SinkQuery(world, scene.plan, NAME, otherwise=otherwise)
    world.fleeting.append(query)
    await asyncio.sleep(1.0)
    await query.make()
    query.live()
    rng = random.Random(f"faults of {NAME} {world.seed}")
    end_s = world.loop.time() + LIMIT_S
    while not query.is_over and world.loop.time() < end_s:
        await asyncio.sleep(rng.expovariate(1 / 0.8))
        await rng.choice(HAPPENINGS)(world, rng, query)


# --- what happens meanwhile -----------------------------------------------------------------------


def leader_of_sink(world: World, rng: random.Random) -> str:
    """The process that leads some partition of the query's topic, as nodes know; any else."""
    return rng.choice([name for name, _ in _led(world)] or list(world.hosts))


def _led(world: World) -> list[tuple[str, int]]:
    """Nodes that lead a partition of it, or have not heard yet that they do not any more."""
    return [
        (name, leader.segment.partition)
        for name in world.hosts
        if world.is_up(name) and (node := world.shells.get(name)) is not None
        for leader in node.leaders.all()
        if leader.segment.topic == NAME
    ]


async def _leader_dies(world: World, rng: random.Random, query: SinkQuery) -> None:
    leader = leader_of_sink(world, rng)
    world.kill(leader, power_cut=True)
    await asyncio.sleep(rng.uniform(0.1, 3.0))
    world.start(leader)


async def _leader_stands_still(world: World, rng: random.Random, query: SinkQuery) -> None:
    leader = leader_of_sink(world, rng)
    world.pause(leader)
    await asyncio.sleep(rng.uniform(0.1, 4.0))
    world.resume(leader)


async def _leader_is_cut_off(world: World, rng: random.Random, query: SinkQuery) -> None:
    """Clients still hear it, and it does not know that another one leads. Those that begin at
    nodes may ask it first."""
    leader = leader_of_sink(world, rng)
    others = [name for name in (*world.hosts, COORDINATOR) if name != leader]
    cut(world, leader, others)
    world.count_fault("cut")
    if world.begins_at_nodes and rng.random() < 0.7:
        await asyncio.sleep(rng.choice([0.0, 1.0, 2.0]))
        query.asked_first = leader
    await asyncio.sleep(rng.uniform(0.5, 6.0))
    query.asked_first = ""
    heal(world, leader, others)


async def _coordinator_dies(world: World, rng: random.Random, query: SinkQuery) -> None:
    world.kill(COORDINATOR, kind="coordinator_killed")
    await asyncio.sleep(rng.uniform(0.05, 1.5))
    world.start(COORDINATOR)


async def _coordinator_is_overtaken(world: World, rng: random.Random, query: SinkQuery) -> None:
    world.take_over()
    world.count_fault("coordinator_overtaken")


async def _replies_are_lost(world: World, rng: random.Random, query: SinkQuery) -> None:
    world.network.faults.reply_loss = 0.3
    await asyncio.sleep(rng.uniform(0.2, 1.5))
    world.network.faults.reply_loss = 0.0


async def _requests_come_again(world: World, rng: random.Random, query: SinkQuery) -> None:
    world.network.faults.repeats = 0.3
    await asyncio.sleep(rng.uniform(0.2, 1.5))
    world.network.faults.repeats = 0.0


async def _rolled(world: World, rng: random.Random, query: SinkQuery) -> None:
    """Every partition of the topic has another active segment."""
    process, net, clock, chance = world.client(f"operator {world.loop.next_serial()}")

    async def ask() -> None:
        address = coordinator_address(COORDINATOR)
        try:
            async with Admin(address, timeout_s=4.0, net=net, clock=clock, rng=chance) as admin:
                await admin.roll_topic(NAME)
        except IcecoreError as error:
            world.loop.trace(f"{NAME} not rolled: {error.reason}")

    await process.spawn(ask())


HAPPENINGS: tuple[Callable[[World, random.Random, SinkQuery], Awaitable[None]], ...] = (
    _leader_dies,
    _leader_dies,
    _leader_stands_still,
    _leader_is_cut_off,
    _leader_is_cut_off,
    _coordinator_dies,
    _coordinator_is_overtaken,
    _replies_are_lost,
    _requests_come_again,
    _rolled,
)


PLANS: dict[str, Callable[[int], Plan]] = {
    "sink_asks_an_old_leader": sink_asks_an_old_leader_plan,
    "sink_runs_again": sink_runs_again_plan,
    "sink_divides_otherwise": sink_divides_otherwise_plan,
    "sink_topic_is_made_again": sink_topic_is_made_again_plan,
}
KINDS = (
    Kind("sink_asks_an_old_leader", sink_asks_an_old_leader),
    Kind("sink_runs_again", sink_runs_again),
    Kind("sink_divides_otherwise", sink_divides_otherwise),
    Kind("sink_topic_is_made_again", sink_topic_is_made_again),
)
