"""Staged worlds whose bucket is that of a lost cluster: its topics come back while all fails that a
restore needs, and go on.

They are survivable and must be clean; see ``lost_cluster`` and ``restorer``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import PATIENCE_S, plan
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan
from tests.simulation.restorer import Restorer
from tests.simulation.tiered import TieredTopic

STRIKES = 3


def clusters_are_restored_plan(seed: int) -> Plan:
    """Little traffic beside it. Nodes call for help as long as the bucket is another cluster's."""
    calm = plan("clusters_are_restored", producers=1, has_store=True, may_page=True)
    knobs = replace(calm.knobs, roll_up_wait_ms=1_000)
    return replace(calm, knobs=knobs, pauses_s=(0.3,), is_restored=True)


async def clusters_are_restored(scene: Scene, fault: Fault) -> None:
    """Commands are killed and begun again, two at once, while the coordinator, nodes and the store
    fail. Then the topics go on, and the same happens again."""
    world, rng, lost = scene.world, scene.world.rng, scene.world.lost
    assert lost is not None
    restorer = Restorer(world, lost)
    topics = [
        TieredTopic(
            world, scene.plan, each.name, deletes_by_hand=rng.random() < 0.5, earlier=each.life
        )
        for each in lost.topics
        if not each.is_deleted
    ]
    world.fleeting += [restorer, *topics]
    for each in lost.topics:  # by hand as well, in the other cluster
        world.deleted_by_hand[each.name] = each.life.log_start_offset
    world.bucket.faults.request_s = rng.choice([0.005, 0.02])  # a command takes its time
    restores = [
        asyncio.create_task(restorer.restore(rng.randrange(4))) for _ in range(rng.choice([1, 2]))
    ]
    await _strike(scene)
    await asyncio.gather(*restores)
    await asyncio.gather(*(each.live() for each in topics))
    await asyncio.sleep(PATIENCE_S)
    await _strike(scene)


async def _strike(scene: Scene) -> None:
    world, rng, faults = scene.world, scene.world.rng, scene.world.bucket.faults
    for _ in range(STRIKES):
        await asyncio.sleep(rng.uniform(0.02, 0.8))
        faults.refused, faults.lost_answers = rng.randrange(4), rng.randrange(4)
        faults.request_s = rng.choice([0.0, 0.05])
        faults.listing_lag_s = rng.choice([0.0, 2.0])
        name = rng.choice([COORDINATOR, COORDINATOR, *world.hosts])
        world.kill(name, power_cut=name != COORDINATOR)
        await asyncio.sleep(0.3)
        world.start(name)
    faults.listing_lag_s = 0.0


PLANS: dict[str, Callable[[int], Plan]] = {"clusters_are_restored": clusters_are_restored_plan}
KINDS = (Kind("clusters_are_restored", clusters_are_restored),)
