"""Orders say whether a topic is deleted and where its logs start, whoever ended (R99)."""

from typing import Any

import pytest

from icecore.errors import ConflictError, ObjectStoreError
from icecore.tier_records import TierTopicRecord
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.remote.tier_import import show
from icecore_coordinator.decisions.retention import move_log_start
from icecore_coordinator.decisions.topic_deletion import (
    continue_delete,
    delete_topic,
    undelete_topic,
)
from icecore_coordinator.state.records import Change, PartitionRecord, TopicRecord, updated
from icecore_coordinator.work.remote.tables_and_sweeps import SWEEP_WAIT_MS_MAX, TABLE_WAIT_MS_MAX
from tests.support.cluster_states import KEY, TOPIC
from tests.support.tier_states import published, tabled
from tests.support.tier_world import TierWorld

Said = tuple[int, bool, list[int]]
"""Version, whether the topic is deleted, log starts."""


@pytest.fixture
async def world() -> TierWorld:
    found = TierWorld()
    tabled(found.state)
    await found.tiering.follow()  # compared
    found.asked.clear()
    return found


def said(world: TierWorld) -> list[Said]:
    """Return the words of all orders about the topic."""
    tables = [request.partitions[0] for _, request in world.asked_for(pb.CommitTablesRequest)]
    return [(each.settings_version, each.deleted, [*each.log_starts]) for each in tables]


def marks(world: TierWorld) -> list[tuple[bytes, int]]:
    requests = [request for _, request in world.asked_for(pb.SweepRequest)]
    return [(each.topic_id, each.settings_version) for r in requests for each in r.to_mark]


async def test_a_deletion_and_its_end_are_told(world: TierWorld) -> None:
    world.commit(delete_topic(world.state, "events", b"", 5))
    await world.tiering.follow()
    world.commit(undelete_topic(world.state, "events", b"", "older")[0])
    await world.tiering.follow()
    await world.tiering.follow()
    assert said(world) == [(2, True, [0]), (3, False, [0])]
    names = {request.partitions[0].topic for _, request in world.asked}
    assert names == {"events", "older"}


async def test_the_next_coordinator_tells_what_this_one_decided(world: TierWorld) -> None:
    """It died between the deletion and the order."""
    world.commit(delete_topic(world.state, "events", b"", 5))
    world.commit(Change())
    world.restarted()
    await world.tiering.follow()
    assert said(world)[0] == (2, True, [0])
    assert not world.state.tiers.stale_tables


@pytest.mark.parametrize("how", ["breaks", "fails"])
async def test_what_was_not_stored_is_told_again(world: TierWorld, how: str) -> None:
    """The node died, or the object store is away."""
    setattr(world, how, dict.fromkeys((1, 2, 3), ObjectStoreError("away")))
    world.commit(delete_topic(world.state, "events", b"", 5))
    for _ in range(4):
        await world.tiering.follow()
        world.clock.now += TABLE_WAIT_MS_MAX
    assert len(said(world)) == 4 and world.state.tiers.stale_tables
    setattr(world, how, {})
    await world.tiering.follow()
    await world.tiering.follow()
    assert said(world) == [(2, True, [0])] * 5 and not world.state.tiers.stale_tables


async def test_what_changes_under_an_order_is_told_by_the_next(world: TierWorld) -> None:
    answer = world.call

    async def slow(address: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        found = await answer(address, method, body, timeout_s=timeout_s)
        if len(said(world)) == 1:
            world.commit(undelete_topic(world.state, "events", b"")[0])
        return found

    world.call = slow  # type: ignore[method-assign]
    world.commit(delete_topic(world.state, "events", b"", 5))
    await world.tiering.follow()
    assert world.state.tiers.stale_tables
    await world.tiering.follow()
    assert said(world) == [(2, True, [0]), (3, False, [0])]


async def test_a_log_start_within_a_segment_is_told(world: TierWorld) -> None:
    world.commit(move_log_start(world.state, KEY, 4, 0))
    world.restarted()
    await world.tiering.follow()
    assert said(world)[0] == (2, False, [4])


async def test_a_topic_that_goes_for_good_is_marked_until_that_is_stored(world: TierWorld) -> None:
    world.commit(delete_topic(world.state, "events", b"", 5, is_now=True))
    world.fails = dict.fromkeys((1, 2, 3), ConflictError("others came first"))
    await world.tiering.follow()
    while (change := continue_delete(world.state, TOPIC, 0)) != Change():
        world.commit(change)
    world.restarted()
    world.fails, world.breaks = {}, dict.fromkeys((1, 2, 3), ObjectStoreError("reset"))
    await world.tiering.follow()
    world.breaks = {}
    for _ in range(4):
        world.clock.now += SWEEP_WAIT_MS_MAX
        await world.tiering.follow()
    assert marks(world) == [(TOPIC, 2)] * 3
    assert world.state.tiers.topics[TOPIC].gone_version == 0
    assert not said(world), "its table is not touched any more"


async def test_what_is_imported_is_not_told_before_it_is_shown(world: TierWorld) -> None:
    """A part of the log starts would be stored first, and stay. Others do not wait for it."""
    state = world.state
    known = state.topics[TOPIC]
    hidden, other = b"h" * 16, b"o" * 16
    tier = state.tiers.segments[1]
    for at, (topic_id, is_hidden) in enumerate(((hidden, True), (other, False)), 1):
        changes: dict[str, Any] = {"topic_id": topic_id, "name": topic_id[:1].decode()}
        made = updated(known, **changes, is_deleted=is_hidden, partitions=9)
        numbers = range(9) if is_hidden else range(1)
        parts = [
            PartitionRecord(
                topic_id,
                number,
                tier_revision=1,
                table_revision=1 - (is_hidden and number % 2),  # behind, or not compared yet
                version=1,
            )
            for number in numbers
        ]
        copies = [
            updated(tier, segment_id=100 * at + number, topic_id=topic_id, partition=number)
            for number in numbers
        ]
        fresh = [made, *parts, *copies]
        world.state.apply(Change(tuple(fresh)))
    assert isinstance(state.topics[hidden], TopicRecord) and state.topics[hidden].is_import
    for _ in range(3):
        await world.tiering.follow()
    told = [request.partitions[0].topic_id for _, request in world.asked]
    assert told == [other]
    world.state.apply(show(state, hidden))
    for _ in range(3):
        await world.tiering.follow()
    told = [request.partitions[0].topic_id for _, request in world.asked[1:]]
    assert set(told) == {hidden} and len(told) == 9
    assert state.tiers.topics[hidden] == TierTopicRecord(hidden, version=1)
    published(state)
