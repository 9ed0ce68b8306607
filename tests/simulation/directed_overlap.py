"""Staged worlds in which several requests of one partition are under way when something happens.

Their leader dies, its segment is rolled, it refuses what came first, or its answers are lost: what
was sent behind the first must be appended in order, once, or not at all. Roles are those of
``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.model import Acks
from tests.simulation.directed import PATIENCE_S, lose_leader, plan, roles, until
from tests.simulation.directed_repeats import roll
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

MANY_BYTES = 1 << 40
UNDER_WAY = 2
"""Minimum number of requests under way before something happens."""


def overlapped_plan(seed: int) -> Plan:
    """Producers send small batches faster than they are acknowledged."""
    calm = plan(
        "overlapped",
        acks=(Acks.ALL,),
        pauses_s=(0.02,),
        burst_max=12,
        padding_bytes=(0, 10),
        batch_bytes=(64,),
    )
    knobs = replace(calm.knobs, latency_s=0.005, thread_delay_s=0.004, segment_bytes=1 << 18)
    return replace(calm, knobs=knobs)


async def overlapped(scene: Scene, fault: Fault) -> None:
    """Three of the things that can happen, another three in the next world."""
    scene.world.network.keeps_order = True
    happenings = (_leader_dies, _rolled, _first_is_refused, _answers_are_lost)
    for number in range(3):
        await roles(scene.world)
        await until(lambda: scene.traffic.most_under_way() >= UNDER_WAY)
        await happenings[(scene.world.seed + number) % len(happenings)](scene)
    await asyncio.sleep(PATIENCE_S)


async def _leader_dies(scene: Scene) -> None:
    leader, _ = await roles(scene.world)
    await until(lambda: scene.traffic.most_under_way() >= UNDER_WAY)
    await lose_leader(scene.world, leader)


async def _rolled(scene: Scene) -> None:
    await roll(scene.world)


async def _first_is_refused(scene: Scene) -> None:
    """A has too much to do for a moment, again and again: it refuses one request and takes the
    next, for it looks at the size of a request before it looks into it."""
    leader, _ = await roles(scene.world)
    produce = scene.world.shells[leader].data._produce
    for _ in range(40):
        await until(lambda: scene.traffic.most_under_way() >= UNDER_WAY)
        produce.inflight_bytes += MANY_BYTES
        await asyncio.sleep(scene.world.rng.uniform(0.0, 0.004))
        produce.inflight_bytes -= MANY_BYTES
        scene.world.count_fault("refused_requests")


async def _answers_are_lost(scene: Scene) -> None:
    """Lose answers, so that appended batches are sent again to the next leader."""
    leader, _ = await roles(scene.world)
    await until(lambda: scene.traffic.most_under_way() >= UNDER_WAY)
    scene.world.network.faults.reply_loss = 0.7
    await asyncio.sleep(0.05)
    await lose_leader(scene.world, leader)
    scene.world.network.faults.reply_loss = 0.0


PLANS: dict[str, Callable[[int], Plan]] = {"overlapped": overlapped_plan}
KINDS = (Kind("overlapped", overlapped),)
