"""The faults of a seed: drawn as a list before the world starts, then let loose, all or some."""

import asyncio
import random
from collections.abc import Iterable

from tests.simulation import (
    directed,
    directed_belief,
    directed_deletion,
    directed_poison,
    directed_registry,
    directed_repeats,
    directed_shortage,
    directed_storage,
    faults_cluster,
    faults_disk,
    faults_network,
    faults_process,
)
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

SWARM = (
    *faults_process.KINDS,
    *faults_network.KINDS,
    *faults_disk.KINDS,
    *faults_cluster.KINDS,
)
COMPOSED = (
    *faults_process.COMPOSED,
    *directed.KINDS,
    *directed_storage.KINDS,
    *directed_deletion.KINDS,
    *directed_poison.KINDS,
    *directed_repeats.KINDS,
    *directed_registry.KINDS,
    *directed_belief.KINDS,
    *directed_shortage.KINDS,
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in (*SWARM, *COMPOSED)}


def single(kind: str) -> tuple[Fault, ...]:
    """A schedule of one composed fault."""
    return (Fault(0, kind, 0.0, 0.0, "node 1"),)


def draw(rng: random.Random, plan: Plan) -> tuple[Fault, ...]:
    """A swarm: many faults of a few kinds, drawn anew for each seed, some at the same time."""
    possible = [kind for kind in SWARM if kind.fits(plan) for _ in range(kind.weight)]
    rng.shuffle(possible)
    kinds = list(dict.fromkeys(possible))[: rng.randint(4, 12)]
    faults: list[Fault] = []
    at_s = 0.0
    for number in range(rng.randint(10, 18)):
        at_s += rng.expovariate(1.0)
        kind = kinds[number] if number < len(kinds) else rng.choice(kinds)
        partition = rng.randrange(plan.partitions)
        target = rng.choice(
            [f"leader {partition}", f"follower {partition}", f"node {rng.randrange(plan.nodes)}"]
        )
        faults.append(Fault(number, kind.name, at_s, rng.uniform(*kind.lasts_s), target))
    return tuple(faults)


async def inject(scene: Scene, faults: Iterable[Fault]) -> None:
    """Let all faults happen, each at its time; returns when the last one is over."""

    async def strike(fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        scene.world.loop.trace(f"fault {fault}")
        await KINDS[fault.kind].run(scene, fault)

    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(strike(fault))
