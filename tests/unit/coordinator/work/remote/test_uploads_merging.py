"""Segments are merged when somebody asks; whoever ends in between changes nothing."""

import asyncio
from typing import Any

import pytest

from icecore.errors import (
    ConflictError,
    InvalidRequestError,
    ObjectStoreBusyError,
    UnavailableError,
)
from icecore.model import NodeState
from icecore.tier_records import TierState
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.retention import delete_below_start, move_log_start
from icecore_coordinator.work.remote.uploads import CALLS_PER_NODE, Merged
from tests.support.cluster_states import KEY, TOPIC, commit
from tests.support.tier_states import COPY, published, remote, tier_of
from tests.support.tier_world import TierWorld
from tests.support.waiting import until


@pytest.fixture
async def world() -> TierWorld:
    return TierWorld()


def listed(world: TierWorld) -> list[tuple[int, int, int]]:
    """(id, base, end) of all sealed segments, oldest first."""
    found = [each.segment for each in world.state.segments_in(KEY)]
    return [(e.segment_id, e.base_offset, e.end_offset) for e in found if e.end_offset >= 0]


async def merge(world: TierWorld, *segment_ids: int) -> Merged:
    merged = await world.tiering.merging.merge(segment_ids)  # type: ignore[arg-type]
    await asyncio.gather(*world.tasks)
    world.tasks.clear()
    return merged


async def test_one_takes_the_place_of_several(world: TierWorld) -> None:
    one, two, three = (remote(world.state) for _ in range(3))
    merged = await merge(world, one, two)
    [(node_id, request)] = world.asked_for(pb.UploadRequest)
    [order] = request.segments
    assert [each.segment_id for each in order.sources] == [one, two]
    assert order.sources[0].manifest_sha256 == COPY.manifest_sha256
    assert (order.segment.base_offset, order.segment.end_offset) == (0, 20)
    assert merged.copy.records == 2 * COPY.records
    assert listed(world) == [(merged.segment.segment_id, 0, 20), (three, 20, 30)]
    assert tier_of(world.state, one).state is TierState.DELETING
    await world.tiering.follow()
    [(_, table)] = world.asked_for(pb.CommitTablesRequest)
    named = [each.segment_id for each in table.partitions[0].segments]
    assert sorted(named) == sorted([merged.segment.segment_id, three])
    assert node_id in world.state.tiers.nodes


async def test_the_order_of_segments_is_that_of_their_offsets(world: TierWorld) -> None:
    ids = [remote(world.state) for _ in range(6)]
    behind = await merge(world, *ids[3:5])
    before = await merge(world, *ids[:3])
    wanted = [
        (before.segment.segment_id, 0, 30),
        (behind.segment.segment_id, 30, 50),
        (ids[5], 50, 60),
    ]
    assert listed(world) == wanted
    newer = remote(world.state)
    assert listed(world) == [*wanted, (newer, 60, 70)]


async def test_who_asks_for_the_same_waits_for_it(world: TierWorld) -> None:
    ids = [remote(world.state) for _ in range(3)]
    world.holds = asyncio.Event()
    asked = [asyncio.create_task(merge(world, *ids)) for _ in range(3)]
    await until(lambda: world.asked_for(pb.UploadRequest))
    with pytest.raises(ConflictError, match="are being merged"):
        await merge(world, *ids[1:])
    world.holds.set()
    found = await asyncio.gather(*asked)
    assert len({each.segment.segment_id for each in found}) == 1
    assert len(world.asked_for(pb.UploadRequest)) == 1
    with pytest.raises(ConflictError, match="can't be merged"):
        await merge(world, *ids)


async def test_it_goes_on_when_the_caller_is_gone(world: TierWorld) -> None:
    ids = [remote(world.state) for _ in range(2)]
    world.holds = asyncio.Event()
    asked = asyncio.create_task(merge(world, *ids))
    await until(lambda: world.asked_for(pb.UploadRequest))
    asked.cancel()
    await world.tiering.begin()  # nobody takes it for one that nobody waits for
    world.holds.set()
    await until(lambda: len(listed(world)) == 1)


async def test_the_next_coordinator_closes_what_was_begun(world: TierWorld) -> None:
    ids = [remote(world.state) for _ in range(2)]
    world.holds = asyncio.Event()
    asked = asyncio.create_task(merge(world, *ids))
    await until(lambda: world.asked_for(pb.UploadRequest))
    [begun] = world.state.tiers.under_way
    world.restarted()
    await world.tiering.begin()
    assert not world.state.tiers.under_way and [*world.state.tiers.closed] == [begun]
    world.holds.set()
    with pytest.raises(ConflictError, match="is closed"):
        await asked
    assert [each[0] for each in listed(world)] == ids
    world.holds = None
    await merge(world, *ids)
    await world.tiering.follow()
    assert listed(world)[0][1:] == (0, 20)


@pytest.mark.parametrize("how", ["fails", "breaks"])
async def test_a_node_that_could_not_leaves_everything_as_it_was(
    world: TierWorld, how: str
) -> None:
    ids = [remote(world.state) for _ in range(2)]
    getattr(world, how).update(dict.fromkeys((1, 2, 3), ObjectStoreBusyError("503")))
    with pytest.raises(ObjectStoreBusyError):
        await merge(world, *ids)
    await asyncio.gather(*world.tasks)
    assert [each[0] for each in listed(world)] == ids
    assert "merge: 503" in world.tiering.errors.of(TOPIC)[0]
    getattr(world, how).clear()
    await merge(world, *ids)
    assert world.tiering.errors.of(TOPIC) == ("", 0)


@pytest.mark.parametrize("wrong", [{"source_digests": [b"x" * 33] * 2}, {"source_digests": []}])
async def test_records_that_are_not_those_of_the_sources(
    world: TierWorld, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [remote(world.state) for _ in range(2)]
    answer = world._answer

    def altered(request: Any, error: Any) -> Any:
        found = answer(request, error)
        del found.results[0].source_digests[:]
        found.results[0].source_digests.extend(wrong["source_digests"])
        return found

    monkeypatch.setattr(world, "_answer", altered)
    with pytest.raises(InvalidRequestError, match="other records"):
        await merge(world, *ids)
    assert [each[0] for each in listed(world)] == ids and not world.state.tiers.under_way


async def test_a_source_that_goes_meanwhile_counts_more(world: TierWorld) -> None:
    ids = [remote(world.state) for _ in range(3)]
    world.holds = asyncio.Event()
    asked = asyncio.create_task(merge(world, *ids))
    await until(lambda: world.asked_for(pb.UploadRequest))
    commit(world.state, move_log_start(world.state, KEY, 10, 0))
    commit(world.state, delete_below_start(world.state, KEY, 0))
    world.holds.set()
    with pytest.raises(ConflictError):
        await asked
    assert [each[0] for each in listed(world)] == ids[1:]


async def test_nobody_is_asked_for_more_than_he_can_do(world: TierWorld) -> None:
    ids = [remote(world.state) for _ in range(3 * CALLS_PER_NODE * 2 + 2)]
    world.holds = asyncio.Event()
    pairs = [ids[at : at + 2] for at in range(0, len(ids), 2)]
    asked = [asyncio.create_task(merge(world, *each)) for each in pairs[:-1]]
    await until(lambda: len(world.asked_for(pb.UploadRequest)) == 3 * CALLS_PER_NODE)
    with pytest.raises(UnavailableError, match="busy"):
        await merge(world, *pairs[-1])
    world.holds.set()
    await asyncio.gather(*asked)
    for node_id in (1, 2, 3):
        world.state.live.note(node_id, state=NodeState.DOWN)
    with pytest.raises(UnavailableError, match="no node"):
        await merge(world, *pairs[-1])


async def test_what_nodes_have_is_left_alone(world: TierWorld) -> None:
    ids = [published(world.state), remote(world.state)]
    with pytest.raises(ConflictError, match="on nodes as well"):
        await merge(world, *ids)
    assert not world.asked
