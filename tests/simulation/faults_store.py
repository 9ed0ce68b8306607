"""Segments of a topic move into an object store, which fails now and then, while a swarm of other
faults goes on. Drawn by itself, so that what a seed has drawn so far stays as it is.
"""

import asyncio
import random
from dataclasses import replace

from icecore.topic_settings import PARQUET_FORMAT, SEGMENT_FORMAT
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.faults_topics import loses_nothing
from tests.simulation.plan import Plan
from tests.simulation.tiered import TIERED, TieredTopic

CHANCE = 0.3
"""Probability that a world with a store has a tiered topic."""
COUNTED = ("refused", "lost_answers", "untrue_puts", "cut_puts", "altered_puts")
LASTING = {"request_s": 0.05, "body_s_per_mib": 60.0, "listing_lag_s": 5.0}


async def topic_is_tiered(scene: Scene, fault: Fault) -> None:
    """A topic is made whose segments leave the nodes, until the world's end."""
    world, rng = scene.world, scene.rng(fault)
    settings = {"tier_format": scene.plan.tier_format, "tier_after_ms": rng.choice([0, 300])}
    if rng.random() < 0.3:
        settings["retention_bytes"] = 64 * 1024
    topic = TieredTopic(world, scene.plan, f"tiered-{fault.number}", settings)
    world.fleeting.append(topic)
    world.keep(asyncio.create_task(topic.live()))
    await asyncio.sleep(fault.lasts_s)


async def store_fails(scene: Scene, fault: Fault) -> None:
    """Some requests fail or are not what they say, and all are slow or late for a while. What
    strikes is counted in the end."""
    faults, rng = scene.world.bucket.faults, scene.rng(fault)
    for name in rng.sample(COUNTED, rng.randint(1, 3)):
        setattr(faults, name, getattr(faults, name) + rng.randint(1, 5))
    lasting = rng.choice([*LASTING, ""])
    if lasting:
        setattr(faults, lasting, LASTING[lasting])
    await asyncio.sleep(fault.lasts_s)
    if lasting:
        setattr(faults, lasting, 0.0)


KINDS = (
    Kind(TIERED, topic_is_tiered, (0.5, 3.0), loses_nothing),
    Kind("store_fails", store_fails, (0.5, 6.0), loses_nothing),
)


def draw_tier(seed: int, plan: Plan) -> Plan:
    """In three worlds of ten, of those in which nothing may be lost, a topic is tiered, and in most
    of them the store fails."""
    rng = random.Random(f"tier {seed}")
    if rng.random() >= CHANCE or not loses_nothing(plan):
        return plan
    number = max((each.number for each in plan.faults), default=-1) + 1
    end_s = max((each.at_s for each in plan.faults), default=1.0)
    node = f"node {rng.randrange(plan.nodes)}"
    drawn = [Fault(number, TIERED, rng.uniform(0.1, 2.0), 1.0, node)]
    for _ in range(rng.choice([0, 1, 2, 4])):
        number += 1
        at_s, lasts_s = rng.uniform(1.0, end_s + 1.0), rng.uniform(0.5, 6.0)
        drawn.append(Fault(number, "store_fails", at_s, lasts_s, node))
    tier_format = rng.choice([PARQUET_FORMAT, SEGMENT_FORMAT])
    return replace(plan, has_store=True, tier_format=tier_format, faults=(*plan.faults, *drawn))
