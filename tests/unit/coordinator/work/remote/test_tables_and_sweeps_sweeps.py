"""Closed attempts are swept at once and again in the end; so are topics that are gone (R89)."""

import pytest

from icecore.errors import ObjectStoreError
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.remote.tiering import close
from icecore_coordinator.decisions.retention import delete_below_start, move_log_start
from icecore_coordinator.decisions.topic_deletion import continue_delete, delete_topic
from icecore_coordinator.state.records import Change
from icecore_coordinator.work.remote.tables_and_sweeps import SWEEP_WAIT_MS_MAX
from tests.support.cluster_states import KEY, TOPIC, commit
from tests.support.tier_states import begun, published, sealed, tier_of
from tests.support.tier_world import TierWorld


@pytest.fixture
async def world() -> TierWorld:
    return TierWorld()


def swept(world: TierWorld) -> list[list[int]]:
    """The attempts of every order."""
    calls = world.asked_for(pb.SweepRequest)
    return [[each.attempt for each in request.attempts] for _, request in calls]


def emptied(world: TierWorld) -> list[bytes]:
    calls = world.asked_for(pb.SweepRequest)
    return [each for _, request in calls for each in request.gone_topic_ids]


def closed(world: TierWorld) -> int:
    segment_id = sealed(world.state)
    begun(world.state, segment_id)
    commit(world.state, close(world.state, segment_id, 1))
    return segment_id


async def test_a_closed_attempt_is_swept_at_once_and_when_its_grace_is_over(
    world: TierWorld,
) -> None:
    segment_id = closed(world)
    await world.tiering.follow()
    world.state.counted_ms += world.timing.tier_closed_keep_ms - 1
    await world.tiering.follow()
    assert swept(world) == [[1]]
    assert [each.is_swept for each in tier_of(world.state, segment_id).closed_attempts] == [True]
    world.state.counted_ms += 1
    await world.tiering.follow()
    await world.tiering.follow()
    assert swept(world) == [[1], [1]]
    assert not world.state.tiers.segments and not world.state.tiers.closed


async def test_a_sweep_that_fails_is_tried_again_by_another_node(world: TierWorld) -> None:
    closed(world)
    world.fails = dict.fromkeys((1, 2, 3), ObjectStoreError("access denied"))
    await world.tiering.follow()
    assert "sweep: access denied" in world.tiering.errors.of(TOPIC)[0]
    [(failed, _)] = world.asked
    world.fails = {failed: ObjectStoreError("access denied")}
    for _ in range(4):
        world.clock.now += SWEEP_WAIT_MS_MAX / 2
        await world.tiering.follow()
    assert not any(each.is_swept is False for each in tier_of(world.state, 1).closed_attempts)
    assert world.tiering.errors.of(TOPIC) == ("", 0)


async def test_what_is_published_or_under_way_is_never_swept(world: TierWorld) -> None:
    published(world.state)
    begun(world.state, sealed(world.state))
    world.state.counted_ms += 10 * world.timing.tier_closed_keep_ms
    await world.tiering.follow()
    assert not swept(world)


async def test_a_retired_copy_waits_for_the_table_and_for_readers(world: TierWorld) -> None:
    published(world.state)
    await world.tiering.follow()
    commit(world.state, move_log_start(world.state, KEY, 10, 0))
    commit(world.state, delete_below_start(world.state, KEY, 0))
    world.breaks = dict.fromkeys((1, 2, 3), ObjectStoreError("reset"))
    world.state.counted_ms += world.timing.tier_reader_grace_ms
    await world.tiering.follow()
    world.breaks.clear()
    assert not swept(world), "the table names it"
    world.clock.now += SWEEP_WAIT_MS_MAX
    await world.tiering.follow()  # the table
    await world.tiering.follow()
    world.state.counted_ms += world.timing.tier_reader_grace_ms - 1
    await world.tiering.follow()
    assert not swept(world), "somebody has opened the table just before"
    world.state.counted_ms += 1
    await world.tiering.follow()
    assert swept(world) == [[1]]


async def test_a_topic_that_is_gone_is_emptied_twice_and_forgotten(world: TierWorld) -> None:
    published(world.state)
    commit(world.state, delete_topic(world.state, "events", b"", 0, is_now=True))
    while (change := continue_delete(world.state, TOPIC, 0)) != Change():
        commit(world.state, change)
    await world.tiering.follow()
    assert not emptied(world), "readers may be at it"
    world.state.counted_ms += world.timing.tier_reader_grace_ms
    for _ in range(3):
        await world.tiering.follow()
    assert emptied(world) == [TOPIC]
    world.state.counted_ms += world.timing.tier_closed_keep_ms
    for _ in range(3):
        await world.tiering.follow()
    assert emptied(world) == [TOPIC, TOPIC]
    assert not world.state.tiers.topics and not world.state.tiers.segments
