"""The node that is asked to upload, the effect of a failed call, and the answer that counts (R84,
R85)."""

import asyncio

import pytest

from icecore.errors import (
    FencedError,
    IcecoreError,
    ObjectStoreBusyError,
    ObjectStoreError,
    RequestTimeoutError,
    UnavailableError,
    WrongClusterError,
)
from icecore.tier_records import TierState
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.remote.tiering import close
from icecore_coordinator.work.jobs import Job
from tests.support.cluster_states import KEY, TOPIC, another_topic, commit
from tests.support.tier_states import begun, sealed, tier, tier_of
from tests.support.tier_world import TierWorld


@pytest.fixture
async def world() -> TierWorld:
    return TierWorld()


def attempts(world: TierWorld) -> list[tuple[int, int]]:
    """(node, attempt) of every call."""
    calls = world.asked_for(pb.UploadRequest)
    return [(node_id, request.segments[0].attempt) for node_id, request in calls]


async def test_what_is_due_is_copied_once_and_published(world: TierWorld) -> None:
    segment_id = sealed(world.state)
    await world.uploads()
    await world.uploads()
    assert attempts(world) == [(1, 1)]
    assert tier_of(world.state, segment_id).state is TierState.PUBLISHED
    assert world.state.segments[segment_id].segment.is_tiered


async def test_the_next_upload_need_not_wait_for_an_audit(world: TierWorld) -> None:
    sealed(world.state)
    await world.uploads()
    async with asyncio.timeout(5):
        await Job("upload", every_ms=600_000, wake=world.tiering.room).wait()
    begun_ms = asyncio.get_running_loop().time() * 1000
    await Job("upload", every_ms=50, wake=world.tiering.room).wait()
    assert asyncio.get_running_loop().time() * 1000 - begun_ms >= 45, "it was said once"


async def test_an_upload_that_fails_makes_no_room(world: TierWorld) -> None:
    sealed(world.state)
    world.fails[1] = ObjectStoreError("access denied")
    await world.uploads()
    begun_ms = asyncio.get_running_loop().time() * 1000
    await Job("upload", every_ms=50, wake=world.tiering.room).wait()
    assert asyncio.get_running_loop().time() * 1000 - begun_ms >= 45


@pytest.mark.parametrize(
    "error",
    [
        FencedError("another incarnation"),
        WrongClusterError("the prefix is another cluster's"),
        ObjectStoreError("access denied"),
        ObjectStoreBusyError("slow down"),
        RequestTimeoutError("900 s are over"),
    ],
)
@pytest.mark.parametrize("is_call", [True, False])
async def test_who_fails_is_followed_by_another_node_under_another_number(
    world: TierWorld, error: IcecoreError, is_call: bool
) -> None:
    segment_id = sealed(world.state)
    (world.breaks if is_call else world.fails)[1] = error
    await world.uploads()
    assert tier_of(world.state, segment_id).state is TierState.UPLOADING
    assert [each.attempt for each in tier_of(world.state, segment_id).closed_attempts] == [1]
    assert error.message in world.tiering.errors.of(TOPIC)[0]
    world.clock.now += world.timing.upload_retry_ms  # far longer than the wait of node 1
    await world.uploads()
    assert attempts(world) == [(1, 1), (2, 2)]
    assert tier_of(world.state, segment_id).attempt == 2
    assert world.tiering.errors.of(TOPIC) == ("", 0)


async def test_a_segment_that_fails_waits_longer_each_time(world: TierWorld) -> None:
    sealed(world.state)
    world.fails = dict.fromkeys((1, 2, 3), UnavailableError("no"))
    tried = []
    for _ in range(40):
        before = len(world.asked)
        await world.uploads()
        tried.append(len(world.asked) - before)
        world.clock.now += world.timing.upload_retry_ms
    assert [at for at, each in enumerate(tried) if each] == [0, 1, 3, 7, 15, 31]
    assert len({attempt for _, attempt in attempts(world)}) == 6


async def test_an_answer_of_an_overtaken_attempt_changes_nothing(world: TierWorld) -> None:
    segment_id = sealed(world.state)
    world.holds = asyncio.Event()
    await world.tiering.begin()
    await asyncio.sleep(0)
    late, world.tasks = world.tasks, []
    commit(world.state, close(world.state, segment_id, 1))  # by the next coordinator,
    second = begun(world.state, segment_id, 2)  # which asks somebody else
    before = tier_of(world.state, segment_id)
    world.holds.set()
    await asyncio.gather(*late)
    assert tier_of(world.state, segment_id) == before
    assert before.attempt == second.attempt == 2
    assert not world.state.segments[segment_id].segment.is_tiered


async def test_what_another_coordinator_asked_for_is_closed(world: TierWorld) -> None:
    segment_id = sealed(world.state)
    begun(world.state, segment_id, 2)
    await world.uploads()
    found = tier_of(world.state, segment_id)
    assert found.attempt == 2 and found.state is TierState.PUBLISHED
    assert [each.attempt for each in found.closed_attempts] == [1]


async def test_a_node_has_two_uploads_at_a_time(world: TierWorld) -> None:
    for _ in range(8):
        sealed(world.state)
    world.holds = asyncio.Event()
    await world.tiering.begin()
    await asyncio.sleep(0)
    assert sorted(node_id for node_id, _ in attempts(world)) == [1, 1, 2, 2, 3, 3]
    world.holds.set()
    await world.uploads()
    await world.uploads()
    assert len(world.state.tiers.published[KEY]) == 8


async def test_a_topic_whose_backlog_never_ends_holds_up_no_other(world: TierWorld) -> None:
    state = world.state
    others = [another_topic(state, number) for number in (1, 2)]
    for number in (1, 2):
        tier(state, name=f"other-{number}")
    for _ in range(60):
        sealed(state)
    for _ in range(3):
        waiting = [sealed(state, key) for key in others]
        for _ in range(6):
            sealed(state)
        await world.uploads()
        assert all(state.segments[each].segment.is_tiered for each in waiting)
    assert len(state.tiers.published[KEY]) == 3 * 4, "and it gets all that others leave"


async def test_topics_take_turns_where_there_is_room_for_one(world: TierWorld) -> None:
    state = world.state
    keys = [KEY, *(another_topic(state, number) for number in range(1, 5))]
    for number in range(1, 5):
        tier(state, name=f"other-{number}")
    for _ in range(20):
        for key in keys:
            sealed(state, key)
    for _ in range(10):
        await world.uploads()
        counts = [len(state.tiers.published.get(key, ())) for key in keys]
        assert max(counts) - min(counts) <= 1, counts
    assert sum(counts) == 60
