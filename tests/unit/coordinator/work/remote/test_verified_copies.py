"""Copies on nodes go only once another node than the uploader has seen the published one (R87)."""

import pytest

from icecore.errors import ObjectStoreError, UnavailableError
from icecore.model import NodeState
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.work.remote.tier_nodes import readers_of
from icecore_coordinator.work.remote.verified_copies import VERIFY_WAIT_MS_MAX
from tests.support.cluster_states import KEY, TOPIC, commit
from tests.support.tier_states import sealed, tabled, tier_of, tiered_topic
from tests.support.tier_world import TierWorld

OURS, THEIRS = b"o" * 16, b"t" * 16


@pytest.fixture
async def world() -> TierWorld:
    """One published segment that nodes need not keep; node 1 has uploaded it."""
    state = tiered_topic(local_retention_ms=0)
    tabled(state)
    return TierWorld(state)


async def look(world: TierWorld) -> None:
    world.clock.now += VERIFY_WAIT_MS_MAX
    await world.local.look()


def is_kept(world: TierWorld) -> bool:
    return bool(world.state.segments_in(KEY)[0].segment.replicas)


def asked(world: TierWorld) -> list[tuple[int, pb.VerifyCopiesRequest]]:
    return world.asked_for(pb.VerifyCopiesRequest)


async def test_a_node_that_has_not_uploaded_it_is_asked(world: TierWorld) -> None:
    await look(world)
    [(node_id, request)] = asked(world)
    assert node_id in (2, 3) and not is_kept(world)
    [item] = request.copies
    [segment_id] = world.state.tiers.published[KEY]
    tier = tier_of(world.state, segment_id)
    assert (item.topic_id, item.partition) == KEY
    assert (item.copy.segment_id, item.copy.attempt) == (segment_id, tier.attempt)
    assert item.copy.manifest_sha256 == tier.copy.manifest_sha256


async def test_what_is_not_seen_stays_and_is_asked_for_again(world: TierWorld) -> None:
    world.fails = dict.fromkeys((1, 2, 3), ObjectStoreError("t/0/x.json is not there"))
    for _ in range(3):
        await look(world)
    await world.local.look()
    assert len(asked(world)) == 3, "it waits in between"
    assert is_kept(world) and {node_id for node_id, _ in asked(world)} == {2, 3}
    assert "verify: t/0/x.json is not there" in world.tiering.errors.of(TOPIC)[0]
    assert len(set(world.alerts)) == 2, "one for each node"
    assert "does not find published copies of topic events" in world.alerts[0]
    world.fails.clear()
    await look(world)
    assert not is_kept(world) and world.tiering.errors.of(TOPIC) == ("", 0)


async def test_a_call_that_fails_is_no_alert(world: TierWorld) -> None:
    world.breaks = dict.fromkeys((1, 2, 3), UnavailableError("it restarts"))
    await look(world)
    assert is_kept(world) and not world.alerts
    assert "verify: it restarts" in world.tiering.errors.of(TOPIC)[0]
    world.breaks.clear()
    await look(world)
    assert not is_kept(world)


async def test_the_uploader_is_not_asked_while_others_are_down(world: TierWorld) -> None:
    for node_id in (2, 3):
        world.state.live.note(node_id, state=NodeState.DOWN, is_connected=False)
    await look(world)
    assert is_kept(world) and not asked(world)
    assert "no node that could look" in world.tiering.errors.of(TOPIC)[0]


async def test_nodes_that_are_gone_for_long_keep_nobody_waiting(world: TierWorld) -> None:
    down = {"state": NodeState.DOWN, "is_connected": False}
    for node_id in (2, 3):
        world.state.live.note(node_id, **down, down_since_ms=world.clock.now)
    await look(world)
    assert is_kept(world) and not asked(world)
    world.clock.now += world.timing.lost_replica_grace_ms
    await look(world)
    assert [node_id for node_id, _ in asked(world)] == [1] and not is_kept(world)


async def test_the_only_node_with_an_object_store_looks_itself(world: TierWorld) -> None:
    for node_id in (2, 3):
        commit(world.state, Change((updated(world.state.nodes[node_id], tier_url=""),)))
    await look(world)
    assert [node_id for node_id, _ in asked(world)] == [1] and not is_kept(world)


async def test_sight_of_another_store_does_not_count(world: TierWorld) -> None:
    uses(world, OURS)
    for node_id in (1, 2, 3):
        world.state.live.note(node_id, store_id=OURS)
    for wrong in (THEIRS, b""):
        world.store_ids = dict.fromkeys((2, 3), wrong)
        await look(world)
        assert is_kept(world)
        assert "same tier_url and tier_endpoint" in world.tiering.errors.of(TOPIC)[0]
    assert "does not find" in world.alerts[0]
    world.store_ids = dict.fromkeys((2, 3), OURS)
    await look(world)
    assert not is_kept(world)


def uses(world: TierWorld, store_id: bytes) -> None:
    """The cluster has published something there."""
    assert world.state.cluster is not None
    commit(world.state, Change((updated(world.state.cluster, store_id=store_id),)))


async def test_only_nodes_with_the_cluster_s_store_are_asked_for_anything(world: TierWorld) -> None:
    uses(world, OURS)
    sealed(world.state)
    for node_id, store_id in ((1, OURS), (2, THEIRS), (3, b"")):
        world.state.live.note(node_id, store_id=store_id)
        world.store_ids[node_id] = OURS
    await look(world)
    await world.tiering.follow()
    await world.uploads()
    assert is_kept(world) and not asked(world)
    assert {node_id for node_id, _ in world.asked} == {1}
    assert readers_of(world.state, world.state.live, 1) == [1]
    world.state.live.note(3, store_id=OURS)
    await look(world)
    assert not is_kept(world) and [node_id for node_id, _ in asked(world)] == [3]


async def test_a_person_hears_why_no_node_may_use_the_store(world: TierWorld) -> None:
    uses(world, OURS)
    sealed(world.state)
    for node_id in (1, 2, 3):
        world.state.live.note(node_id, store_problem="it was emptied")
    for _ in range(2):
        await world.uploads()
    assert not world.asked
    assert world.tiering.errors.of(TOPIC)[0] == "node 1: it was emptied"
    assert sorted(world.alerts) == [f"node {each}: it was emptied" for each in (1, 2, 3)], "once"
    world.state.live.note(2, state=NodeState.DOWN, is_connected=False)
    await world.uploads()
    world.state.live.note(2, state=NodeState.UP, is_connected=True)
    await world.uploads()
    assert len(world.alerts) == 4, "again when it is back and still refused"


async def test_a_full_disk_gets_no_room_from_what_is_not_seen(world: TierWorld) -> None:
    world.fails = dict.fromkeys((1, 2, 3), ObjectStoreError("it is not there"))
    world.clock.now += VERIFY_WAIT_MS_MAX
    assert await world.local.free(1, 1) == 0 and is_kept(world)
    world.fails.clear()
    assert await world.local.free(1, 1) == 0 and is_kept(world), "it waits"
    world.clock.now += VERIFY_WAIT_MS_MAX
    assert await world.local.free(1, 1) == 100 and not is_kept(world)


async def test_more_than_one_call_takes_are_asked_for_in_parts() -> None:
    state = tiered_topic(local_retention_ms=0)
    for _ in range(130):
        tabled(state)
    world = TierWorld(state)
    await look(world)
    assert [len(request.copies) for _, request in asked(world)] == [64, 64, 2]
