"""Worlds of the other engines: what each promises, and nothing more, is what is left.

A database keeps what was acknowledged through blackouts, as files do. Memory keeps it as long as
enough processes live: the death of one costs nothing; after a blackout the segments that were in
memory are undecided, for the coordinator calls no loss an end, and all others are whole.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from icecore.model import Acks, Segment, SegmentState
from icecore.topic_settings import MEMORY_ENGINE, RESTART_EMPTY, ROCKSDB_ENGINE
from icecore_replication.recovery import FenceReply, may_decide
from tests.simulation import schedule
from tests.simulation.cluster import World
from tests.simulation.plan import Plan, draw_knobs


def database_blackout_plan(seed: int) -> Plan:
    """The whole cluster loses power in mid-traffic, thrice."""
    rng = random.Random(f"database blackout plan {seed}")
    knobs = replace(draw_knobs(rng), thread_delay_s=rng.choice([0.004, 0.01]), latency_s=0.001)
    return Plan(
        knobs=knobs,
        engine=ROCKSDB_ENGINE,
        producers=2,
        acks=(rng.choice([Acks.ALL, Acks.QUORUM]),),
        faults=schedule.single("three_blackouts"),
    )


def memory_death_plan(seed: int) -> Plan:
    """One process ends in the middle of traffic, and comes back later: every record is there."""
    rng = random.Random(f"memory death plan {seed}")
    return Plan(
        knobs=draw_knobs(rng),
        engine=MEMORY_ENGINE,
        acks=(rng.choice([Acks.ALL, Acks.QUORUM]),),
        faults=schedule.single("death_of_a_leader"),
        all_acked=True,
    )


def memory_blackout_plan(seed: int) -> Plan:
    """All processes end: what they held is gone, and the coordinator says so."""
    rng = random.Random(f"memory blackout plan {seed}")
    return Plan(
        knobs=draw_knobs(rng),
        engine=MEMORY_ENGINE,
        producers=2,
        bursts=60,
        faults=schedule.single("three_blackouts"),
        is_damage_bounded=False,
    )


def memory_restart_plan(seed: int) -> Plan:
    """The same where the topic may go on: what was sealed and not on a disk yet is lost, too (R98),
    and nothing waits for a person."""
    return replace(
        memory_blackout_plan(seed),
        on_total_loss=RESTART_EMPTY,
        is_damage_bounded=True,
        may_page=True,
    )


def needless_losses(world: World, plan: Plan, lost: Iterable[Segment]) -> Iterator[str]:
    """Segments in memory that are given up although enough of their processes never ended."""
    if plan.engine != MEMORY_ENGINE:
        return
    for segment in lost:
        ended = [each for each in segment.replicas if _may_be_gone(world, f"node-{each}")]
        # Of a sealed one each listed copy is whole; the end of another one has to be proved (R31).
        replies = {each: FenceReply(intact=each not in ended) for each in segment.replicas}
        is_sealed = segment.state is SegmentState.SEALED
        if len(ended) < len(segment.replicas) if is_sealed else may_decide(replies, segment):
            yield (
                f"segment {segment.segment_id} is unavailable, of its processes on"
                f" {segment.replicas} only those on {ended} had ended"
            )


def _may_be_gone(world: World, name: str) -> bool:
    """Return whether a copy of a node may be gone: with a process, or, once it was handed over,
    with a further disk of which a sync failed. That disk fails alone, and all of it (R83)."""
    return world.lives(name) > 1 or world.hosts[name].is_further_failed


PLANS: dict[str, Callable[[int], Plan]] = {
    "database_blackout": database_blackout_plan,
    "memory_death": memory_death_plan,
    "memory_blackout": memory_blackout_plan,
    "memory_restart": memory_restart_plan,
}
