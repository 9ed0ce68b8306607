"""A cluster that is lost, and its bucket: a restore begins with these.

The cluster lives in a world of its own, which ends before the one begins that restores it. Its
bucket is taken as it lies in the middle of uploads, merges, deletions and commits, while requests
fail. What was published then has to come back, and so have deletions that the bucket tells.
"""

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise

from icecore.tier_records import TierRecord, TierState
from icecore.topic_settings import PARQUET_FORMAT, SEGMENT_FORMAT
from icecore_coordinator.decisions.remote.tier_import import raise_counters
from icecore_coordinator.state.cluster_state import ClusterState
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.expiring import EarlierLife
from tests.simulation.object_store import SimBucket
from tests.simulation.plan import Plan
from tests.simulation.tiered import TieredTopic, stored_settings
from tests.simulation.workload import small_requests

OTHER_SEED = 1_000_000_007
"""So that processes of the two worlds do not draw the same ids."""
TOPICS = 2
LIFE_S = 3.0
LOOK_S = 0.05
FIRST_ID = 10_000
COPIES_MIN = 1


@dataclass(frozen=True)
class LostTopic:
    """One topic of it."""

    name: str
    is_deleted: bool
    """The bucket says that it is deleted."""
    life: EarlierLife


@dataclass(frozen=True)
class LostCluster:
    """All that is left of one."""

    bucket: SimBucket
    topics: tuple[LostTopic, ...]


def lose_cluster(seed: int, plan: Plan) -> LostCluster:
    """Let a cluster live for a while, and take its bucket in the middle of it.

    Args:
        seed: Decides everything.
        plan: Its knobs, copies and nodes.
    """
    found: list[LostCluster] = []
    world = World(seed + OTHER_SEED, plan.knobs, nodes=plan.nodes, has_store=True)

    async def live(world: World) -> None:
        found.append(await _live(world, plan))

    with small_requests():
        world.run(live)
    [lost] = found
    return lost


async def _live(world: World, plan: Plan) -> LostCluster:
    rng, faults = world.rng, world.bucket.faults
    world.start_all()
    await _count_on(world)
    topics = [_topic(world, plan, number) for number in range(TOPICS)]
    await asyncio.gather(*(each.live() for each in topics))
    for name in rng.sample([*world.hosts], 2):
        await asyncio.sleep(LIFE_S / 2)
        faults.refused, faults.lost_answers = rng.randrange(4), rng.randrange(4)
        faults.request_s = rng.choice([0.0, 0.02])
        world.kill(name, power_cut=True)
        await asyncio.sleep(0.3)
        world.start(name)
    if rng.random() < 0.4:
        await topics[-1].delete()
    await asyncio.sleep(rng.uniform(0.0, LIFE_S))
    for each in topics:  # uploads would always be behind
        each.stop_sending()
    ids = _ids(world)
    while not all(_may_go(world, topic_id) for topic_id in ids.values()):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    bucket = SimBucket(objects=dict(world.bucket.objects))
    bucket.changes = [(0.0, key, len(data)) for key, data in bucket.objects.items()]
    lost = [_lost(world, bucket, each, ids[each.name]) for each in topics]
    return LostCluster(bucket, tuple(lost))


async def _count_on(world: World) -> None:
    """Give out other ids than the new cluster does before the restore."""
    await asyncio.sleep(1.0)  # until the coordinator is there
    await world.shells[COORDINATOR].ledger.decide(
        lambda state: raise_counters(state, FIRST_ID, FIRST_ID)
    )


def _topic(world: World, plan: Plan, number: int) -> TieredTopic:
    tier_format = world.rng.choice([PARQUET_FORMAT, SEGMENT_FORMAT])
    name, by_hand = f"tiered-{number}", world.rng.random() < 0.5
    settings = {"tier_format": tier_format}
    return TieredTopic(world, plan, name, settings, deletes_by_hand=by_hand)


def _state(world: World) -> ClusterState:
    state: ClusterState = world.shells[COORDINATOR].ledger.state
    return state


def _ids(world: World) -> dict[str, bytes]:
    """The ids of all topics, of deleted ones, too."""
    return {each.name: each.topic_id for each in _state(world).topics.values()}


def _published(world: World, topic_id: bytes) -> list[TierRecord]:
    tiers = _state(world).tiers
    found = (tiers.segments[each] for each in tiers.of_topic.get(topic_id, ()))
    counting = (each for each in found if each.state is TierState.PUBLISHED)
    return sorted(counting, key=lambda each: each.base_offset)


def _may_go(world: World, topic_id: bytes) -> bool:
    """Return whether segments are published, from the log start on, and none between them
    is not: else a restore asks somebody whether it may leave out what comes before. Nobody asks
    for a topic that is deleted, once the bucket says so or has nothing of it."""
    is_deleted, told = (
        _state(world).topics[topic_id].is_deleted,
        stored_settings(world.bucket, topic_id),
    )
    if is_deleted and told.get("is_deleted", True):
        return True
    published = _published(world, topic_id)
    if len(published) < COPIES_MIN:
        return False
    is_dense = all(one.end_offset == other.base_offset for one, other in pairwise(published))
    start = _state(world).partitions[topic_id, 0].log_start_offset
    return is_dense and published[0].base_offset <= start


def _lost(world: World, bucket: SimBucket, topic: TieredTopic, topic_id: bytes) -> LostTopic:
    now_s, told = world.loop.time(), stored_settings(bucket, topic_id)
    partition = _state(world).partitions[topic_id, 0]
    produces = (
        replace(each, began_s=each.began_s - now_s, ended_s=each.ended_s - now_s)
        for each in topic.produces
    )
    starts = told.get("log_starts", ())
    life = EarlierLife(
        tuple(produces),
        max((each.end_offset for each in _published(world, topic_id)), default=0),
        partition.log_start_offset,
        starts[0] if starts else 0,
    )
    is_deleted = _state(world).topics[topic_id].is_deleted and told.get("is_deleted", True)
    return LostTopic(topic.name, bool(is_deleted), life)
