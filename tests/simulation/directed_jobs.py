"""Staged worlds of Spark jobs that are killed between any two of their steps and begun again.

What plans, notes and goes on is production's code (``icecore.spark.runs``); ``job_exports`` is the
side where Spark would be. Meanwhile the cluster lives under faults, and the file system of the job
refuses and loses answers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from icecore.model import Acks
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import cut, heal, plan
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.job_backfills import BackfillJob
from tests.simulation.job_exports import ExportJob
from tests.simulation.job_runs import Happening, Interruptions, Job
from tests.simulation.job_topic import JobTopic
from tests.simulation.plan import Plan

NAME = "exported"
STEPS_MAX = 120
"""Most runs have fewer steps; some deaths come too late."""
BACKFILL_STEPS_MAX = 25
RUN_S = 6.0
ROUNDS = 4


def _plan(kind: str, seed: int) -> Plan:
    """Little traffic beside the job; in every second world clients begin at nodes."""
    calm = plan(kind, producers=1, pauses_s=(1.0,), acks=(Acks.ALL,), begins_at_nodes=seed % 2 == 1)
    knobs = replace(calm.knobs, latency_s=0.002, lease_ms=1_000, heartbeat_ms=200)
    return replace(calm, knobs=knobs)


def exports_are_killed_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("exports_are_killed", seed)


async def exports_are_killed(scene: Scene, fault: Fault) -> None:
    """Run after run dies, or ends with an error of the file system."""
    job = await _begin(scene)
    for _ in range(ROUNDS):
        await job.run(_death(scene.world.rng), within_s=RUN_S)
        await asyncio.sleep(scene.world.rng.choice([0.0, 0.3]))
    job.end()


def exports_meet_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("exports_meet", seed)


async def exports_meet(scene: Scene, fault: Fault) -> None:
    """Two runs at once, with or without a death."""
    rng = scene.world.rng
    job = await _begin(scene)
    for _ in range(ROUNDS):
        first = asyncio.create_task(job.run(_death(rng), within_s=RUN_S))
        await asyncio.sleep(rng.choice([0.0, 0.01, 0.1, 0.3]))
        await asyncio.gather(first, job.run(_death(rng), within_s=RUN_S))
    job.end()


def exports_lose_records_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("exports_lose_records", seed)


async def exports_lose_records(scene: Scene, fault: Fault) -> None:
    """Between two steps of a run records are deleted, partitions are added, or its topic is deleted
    and made again."""
    rng = scene.world.rng
    job = await _begin(scene)
    topic = job.topic
    acts: list[Happening] = [
        lambda: topic.drop_records(rng.choice([0.2, 0.6, 1.0])),
        topic.add_partition,
        topic.add_partition,
    ]
    if scene.world.seed % 2:
        acts += [lambda: _make_again(topic, rng)] * 2
    if scene.world.seed % 6 == 3:  # offsets are of the old topic then, and the id is the next one's
        await job.run(Interruptions(happens={("describe_topics", 1): topic.make_again}))
    for _ in range(ROUNDS):
        interruptions = _death(rng)
        interruptions.happens[_moment(rng, STEPS_MAX)] = rng.choice(acts)
        await job.run(interruptions, within_s=RUN_S)
    job.end()


def backfills_are_killed_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("backfills_are_killed", seed)


async def backfills_are_killed(scene: Scene, fault: Fault) -> None:
    """A backfill dies again and again, also two at once. In some worlds its topic gets more
    partitions, or is deleted and made again, between two steps of it."""
    world, rng = scene.world, scene.world.rng
    topic = JobTopic(world, scene.plan, NAME, mean_s=0.0)
    job = BackfillJob(world, topic)
    await _live(job)
    acts = {1: topic.add_partition, 2: topic.make_again}
    for _ in range(ROUNDS):
        interruptions = _death(rng, BACKFILL_STEPS_MAX)
        if (act := acts.get(world.seed % 4)) is not None and rng.random() < 0.5:
            at = ("append", rng.randrange(1, 6))
            interruptions.happens[rng.choice([at, _moment(rng, BACKFILL_STEPS_MAX)])] = act
        within_s = rng.choice([RUN_S, rng.uniform(0.05, 0.5)])
        runs = [asyncio.create_task(job.run(interruptions, within_s=within_s))]
        if rng.random() < 0.3:
            await asyncio.sleep(rng.choice([0.01, 0.1]))
            runs.append(asyncio.create_task(job.run(_death(rng, BACKFILL_STEPS_MAX))))
        await asyncio.gather(*runs)
    job.end()


# --- what all of them need ------------------------------------------------------------------------


async def _begin(scene: Scene) -> ExportJob:
    """A topic with some records, a job of it, and faults from now on."""
    world = scene.world
    job = ExportJob(world, JobTopic(world, scene.plan, NAME), may_lose=world.seed % 3 == 0)
    await _live(job)
    return job


async def _live(job: Job) -> None:
    """Its topic is made, and is written for a while. Then faults begin."""
    world, rng = job.world, job.world.rng
    world.fleeting.append(job)
    await asyncio.sleep(1.0)
    await job.topic.make()
    await asyncio.sleep(rng.choice([0.1, 1.0]))
    job.disk.refused = rng.choice([0.0, 0.005])
    job.disk.lost_answers = rng.choice([0.0, 0.02])
    disturbing = asyncio.create_task(_disturb(world, random.Random(f"jobs {world.seed}")))
    job.ends_with(disturbing)


async def _make_again(topic: JobTopic, rng: random.Random) -> None:
    """Often the next topic has as many records as a step of the one before when the job goes on."""
    await topic.make_again()
    await asyncio.sleep(rng.choice([0.0, 2.0, 2.0]))


def _moment(rng: random.Random, steps_max: int) -> tuple[str, int]:
    """Return when something happens: before any step, or around a question or a read."""
    if rng.random() < 0.3:
        return "", rng.randrange(1, steps_max)
    call, steps = rng.choice([("list_offsets", 8), ("describe_topics", 3), ("read", 6)])
    return call, rng.randrange(1, steps)


def _death(rng: random.Random, steps_max: int = STEPS_MAX) -> Interruptions:
    """Return when a run dies: at any step, or in the middle of what changes files."""
    if rng.random() < 0.3:
        return Interruptions()
    if rng.random() < 0.5:
        return Interruptions(rng.randrange(1, steps_max))
    call, steps = rng.choice([("move", 30), ("move", 30), ("copy", 4), ("delete", 12)])
    return Interruptions(rng.randrange(1, steps), call)


async def _disturb(world: World, rng: random.Random) -> None:
    """One thing after the other happens to the cluster."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / 0.8))
        await rng.choice(HAPPENINGS)(world, rng)


def _leader(world: World, rng: random.Random) -> str:
    """A process that leads some partition of the topic, as nodes know; any else."""
    found = [
        name
        for name in world.hosts
        if world.is_up(name) and (node := world.shells.get(name)) is not None
        if any(leader.segment.topic == NAME for leader in node.leaders.all())
    ]
    return rng.choice(found or [*world.hosts])


async def _leader_dies(world: World, rng: random.Random) -> None:
    leader = _leader(world, rng)
    world.kill(leader, power_cut=True)
    await asyncio.sleep(rng.uniform(0.1, 2.0))
    world.start(leader)


async def _leader_stands_still(world: World, rng: random.Random) -> None:
    leader = _leader(world, rng)
    world.pause(leader)
    await asyncio.sleep(rng.uniform(0.1, 3.0))
    world.resume(leader)


async def _leader_is_cut_off(world: World, rng: random.Random) -> None:
    """Clients still hear it, and it does not know that another one leads."""
    leader = _leader(world, rng)
    others = [name for name in (*world.hosts, COORDINATOR) if name != leader]
    cut(world, leader, others)
    world.count_fault("cut")
    await asyncio.sleep(rng.uniform(0.5, 4.0))
    heal(world, leader, others)


async def _coordinator_dies(world: World, rng: random.Random) -> None:
    world.kill(COORDINATOR, kind="coordinator_killed")
    await asyncio.sleep(rng.uniform(0.05, 1.5))
    world.start(COORDINATOR)


async def _replies_are_lost(world: World, rng: random.Random) -> None:
    world.network.faults.reply_loss = 0.3
    await asyncio.sleep(rng.uniform(0.2, 1.5))
    world.network.faults.reply_loss = 0.0


HAPPENINGS: tuple[Callable[[World, random.Random], Awaitable[None]], ...] = (
    _leader_dies,
    _leader_stands_still,
    _leader_is_cut_off,
    _coordinator_dies,
    _replies_are_lost,
)


PLANS: dict[str, Callable[[int], Plan]] = {
    "exports_are_killed": exports_are_killed_plan,
    "exports_meet": exports_meet_plan,
    "exports_lose_records": exports_lose_records_plan,
    "backfills_are_killed": backfills_are_killed_plan,
}
KINDS = (
    Kind("exports_are_killed", exports_are_killed),
    Kind("exports_meet", exports_meet),
    Kind("exports_lose_records", exports_lose_records),
    Kind("backfills_are_killed", backfills_are_killed),
)
