"""Staged worlds of segments that move into object storage while everything fails that they need.

They are survivable and must be clean; see ``tiered``. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable

from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import PATIENCE_S, plan, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.object_store import SimBucket
from tests.simulation.plan import Plan
from tests.simulation.tiered import TieredTopic


def segments_are_tiered_plan(seed: int) -> Plan:
    """Little traffic beside it; nodes have an object store."""
    return plan("segments_are_tiered", producers=1, has_store=True)


async def segments_are_tiered(scene: Scene, fault: Fault) -> None:
    """The store fails in each of its ways, and so do those who upload and those who decide."""
    world, faults = scene.world, scene.world.bucket.faults
    topic = TieredTopic(
        world,
        scene.plan,
        "tiered",
        {"retention_bytes": 64 * 1024} if world.seed % 2 else {"tier_format": "segment"},
    )
    world.fleeting.append(topic)
    await topic.live()
    leader, followers = await roles(world)
    await asyncio.sleep(PATIENCE_S)
    for name in ("refused", "lost_answers", "untrue_puts", "cut_puts", "altered_puts"):
        setattr(faults, name, 3)
        await asyncio.sleep(PATIENCE_S / 2)
    faults.body_s_per_mib, faults.listing_lag_s = 60.0, 5.0
    await asyncio.sleep(PATIENCE_S)
    faults.request_s = 0.05  # so that whoever dies is in the middle of something
    for name in (leader, COORDINATOR, followers[0]):
        world.kill(name, power_cut=name != COORDINATOR)
        await asyncio.sleep(0.3)
        world.start(name)
        await asyncio.sleep(PATIENCE_S)
    faults.body_s_per_mib = faults.listing_lag_s = 0.0
    await _strangers(world.bucket, PATIENCE_S)
    world.pause(followers[1])
    await asyncio.sleep(PATIENCE_S)
    world.resume(followers[1])
    world.take_over()
    world.count_fault("second_coordinator")
    await asyncio.sleep(PATIENCE_S)


async def _strangers(bucket: SimBucket, patience_s: float) -> None:
    """Remove an object of the oldest records, and alter one of the next, as a program outside the
    cluster. In the end the provider's version of both comes back. Until then reads of them fail,
    and none is wrong."""
    until_s = asyncio.get_running_loop().time() - patience_s
    old = {key for at_s, key, _ in bucket.changes if at_s < until_s}  # published by now
    names = (".parquet", ".batches")
    keys = sorted(each for each in bucket.objects if each in old and each.endswith(names))
    for key, is_removal in zip(keys, (True, False), strict=False):
        bucket.damage(key, is_removal=is_removal)
    await asyncio.sleep(patience_s)
    bucket.mend()


KEPT_MS = 4_000
"""How long nodes keep what is published in the other world,"""
YOUNG_MS = 2_000
"""and how long none of them has looked for it yet."""


def bucket_emptied_plan(seed: int) -> Plan:
    """Little traffic beside it; nodes have an object store."""
    return plan("bucket_emptied", producers=1, has_store=True, may_page=True)


async def bucket_emptied(scene: Scene, fault: Fault) -> None:
    """Objects of segments that nodes have, too, vanish for good, and nobody is told: what nodes
    have is all that is left. The marker stays where it is."""
    world = scene.world
    settings = {"local_retention_ms": KEPT_MS}
    topic = TieredTopic(world, scene.plan, "tiered", settings, merges=False)
    world.fleeting.append(topic)
    await topic.live()
    leader, followers = await roles(world)
    for name in (leader, COORDINATOR, followers[0]):
        await until(lambda: topic.lose_objects(YOUNG_MS) > 0)
        world.count_fault("bucket_emptied")
        await asyncio.sleep(KEPT_MS / 1000)
        world.kill(name)
        await asyncio.sleep(0.3)
        world.start(name)
        await asyncio.sleep(KEPT_MS / 1000)


def tables_go_back_plan(seed: int) -> Plan:
    """Little traffic beside it; nodes have an object store."""
    return plan("tables_go_back", producers=1, has_store=True)


async def tables_go_back(scene: Scene, fault: Fault) -> None:
    """While no coordinator is there, the table loses its last commits, and in the end all of them,
    when nothing is published any more that would bring it up to date."""
    world = scene.world
    settings = {"retention_bytes": 64 * 1024}
    topic = TieredTopic(world, scene.plan, "tiered", settings, loses_table=True)
    world.fleeting.append(topic)
    await topic.live()
    for commits in (1, 3):
        await asyncio.sleep(PATIENCE_S)
        world.kill(COORDINATOR, kind="")
        if topic.lose_commits(commits):
            world.count_fault("table_goes_back")
        world.start(COORDINATOR)
    await asyncio.sleep(PATIENCE_S)


def deletions_are_told_plan(seed: int) -> Plan:
    """Little traffic beside it; nodes have an object store."""
    return plan("deletions_are_told", producers=1, has_store=True)


async def deletions_are_told(scene: Scene, fault: Fault) -> None:
    """Records are deleted all the time, and twice the topic; each time the store is away, and the
    coordinator or all nodes die before the bucket can say it. The topic comes back when it does."""
    world, faults = scene.world, scene.world.bucket.faults
    topic = TieredTopic(world, scene.plan, "tiered", deletes_by_hand=True)
    world.fleeting.append(topic)
    await topic.live()
    leader, followers = await roles(world)
    for victims in ([COORDINATOR], [leader, *followers]):
        await asyncio.sleep(PATIENCE_S)
        faults.refused, faults.lost_answers, faults.untrue_puts = 5, 2, 2
        topic_id = await topic.delete()
        await asyncio.sleep(world.rng.choice([0.0, 0.05, 0.3]))
        for name in victims:
            world.kill(name)
        await asyncio.sleep(0.3)
        for name in victims:
            world.start(name)
        await topic.undelete(topic_id)
    await asyncio.sleep(PATIENCE_S)


PLANS: dict[str, Callable[[int], Plan]] = {
    "tables_go_back": tables_go_back_plan,
    "segments_are_tiered": segments_are_tiered_plan,
    "bucket_emptied": bucket_emptied_plan,
    "deletions_are_told": deletions_are_told_plan,
}
KINDS = (
    Kind("segments_are_tiered", segments_are_tiered),
    Kind("bucket_emptied", bucket_emptied),
    Kind("tables_go_back", tables_go_back),
    Kind("deletions_are_told", deletions_are_told),
)
