"""The faults of a seed: drawn as a list before the world starts, then let loose, all or some."""

import asyncio
import random
from collections.abc import Iterable

from tests.simulation import (
    directed,
    directed_belief,
    directed_bootstrap,
    directed_clocks,
    directed_deletion,
    directed_disks,
    directed_forgotten,
    directed_jobs,
    directed_late,
    directed_lookups,
    directed_metadata,
    directed_overlap,
    directed_poison,
    directed_registry,
    directed_repeats,
    directed_restore,
    directed_retention,
    directed_shortage,
    directed_sink,
    directed_standby,
    directed_starts,
    directed_storage,
    directed_surplus,
    directed_tiering,
    faults_cluster,
    faults_disk,
    faults_network,
    faults_ports,
    faults_process,
    faults_standby,
    faults_store,
    faults_topics,
)
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

SWARM = (
    *faults_process.KINDS,
    *faults_network.KINDS,
    *faults_disk.KINDS,
    *faults_cluster.KINDS,
)
EXTRA = (*faults_ports.KINDS, *faults_topics.KINDS)
"""They come on top of a swarm: single calls go wrong while larger things do."""
COMPOSED = (
    *faults_process.COMPOSED,
    *directed.KINDS,
    *directed_disks.KINDS,
    *directed_storage.KINDS,
    *directed_deletion.KINDS,
    *directed_late.KINDS,
    *directed_lookups.KINDS,
    *directed_poison.KINDS,
    *directed_repeats.KINDS,
    *directed_overlap.KINDS,
    *directed_registry.KINDS,
    *directed_retention.KINDS,
    *directed_tiering.KINDS,
    *directed_restore.KINDS,
    *directed_belief.KINDS,
    *directed_bootstrap.KINDS,
    *directed_forgotten.KINDS,
    *directed_clocks.KINDS,
    *directed_shortage.KINDS,
    *directed_starts.KINDS,
    *directed_surplus.KINDS,
    *directed_metadata.KINDS,
    *directed_sink.KINDS,
    *directed_jobs.KINDS,
    *directed_standby.KINDS,
)
ALONE = (*faults_store.KINDS, *faults_standby.KINDS)
"""Drawn by themselves, where nodes have an object store, or coordinators stand by."""
KINDS: dict[str, Kind] = {kind.name: kind for kind in (*SWARM, *EXTRA, *ALONE, *COMPOSED)}


def single(kind: str) -> tuple[Fault, ...]:
    """A schedule of one composed fault."""
    return (Fault(0, kind, 0.0, 0.0, "node 1"),)


def draw(rng: random.Random, plan: Plan) -> tuple[Fault, ...]:
    """A swarm: many faults of a few kinds, drawn anew for each seed, some at the same time; and in
    two worlds of three some of what comes on top."""
    possible = [kind for kind in SWARM if kind.fits(plan) for _ in range(kind.weight)]
    rng.shuffle(possible)
    kinds = list(dict.fromkeys(possible))[: rng.randint(4, 12)]
    faults: list[Fault] = []
    at_s = 0.0
    for number in range(rng.randint(10, 18)):
        at_s += rng.expovariate(1.0)
        kind = kinds[number] if number < len(kinds) else rng.choice(kinds)
        faults.append(_fault(rng, plan, number, kind, at_s))
    possible = [kind for kind in EXTRA if kind.fits(plan) for _ in range(kind.weight)]
    numbers = range(len(faults), len(faults) + rng.choice([0, 2, 4]))
    single = (
        _fault(rng, plan, number, rng.choice(possible), rng.uniform(0.2, at_s))
        for number in numbers
    )
    return (*faults, *single)


def _fault(rng: random.Random, plan: Plan, number: int, kind: Kind, at_s: float) -> Fault:
    partition = rng.randrange(plan.partitions)
    target = rng.choice(
        [f"leader {partition}", f"follower {partition}", f"node {rng.randrange(plan.nodes)}"]
    )
    return Fault(number, kind.name, at_s, rng.uniform(*kind.lasts_s), target)


async def inject(scene: Scene, faults: Iterable[Fault]) -> None:
    """Let all faults happen, each at its time; returns when the last one is over."""

    async def strike(fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        scene.world.loop.trace(f"fault {fault}")
        await KINDS[fault.kind].run(scene, fault)

    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(strike(fault))
