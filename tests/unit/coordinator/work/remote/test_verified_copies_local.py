"""Local retention looks only where something may be due, and misses nothing (R87)."""

import pytest

from icecore.model import SegmentId
from icecore.topic_settings import Tiering
from icecore_coordinator.decisions.remote import verified_copies as decisions
from icecore_coordinator.decisions.topic_changes import alter_topic
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PartitionKey
from icecore_coordinator.work.remote import verified_copies
from tests.support.cluster_states import KEY, SETTINGS
from tests.support.tier_states import tabled, tiered_topic
from tests.support.tier_world import TierWorld


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[PartitionKey]:
    """The partitions that are gone through from now on."""
    found: list[PartitionKey] = []

    def noted(state: ClusterState, key: PartitionKey) -> list[SegmentId]:
        found.append(key)
        return decisions.expired_copies(state, key)

    monkeypatch.setattr(verified_copies, "expired_copies", noted)
    return found


async def look(world: TierWorld) -> None:
    world.clock.now += world.timing.local_look_ms
    await world.local.look()


def kept(world: TierWorld) -> list[int]:
    return [e.segment.segment_id for e in world.state.segments_in(KEY) if e.segment.replicas]


async def test_a_partition_is_looked_at_when_it_changed_and_when_a_copy_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = tiered_topic(local_retention_ms=1_000)
    state.counted_ms = 0
    first = tabled(state)
    state.counted_ms = 400
    second = tabled(state)
    world, found = TierWorld(state), looked_at(monkeypatch)
    for counted_ms in (500, 900, 999):
        state.counted_ms = counted_ms
        await look(world)
    assert found == [KEY] and first in kept(world)
    state.counted_ms = 1_000
    await look(world)
    assert first not in kept(world) and second in kept(world)
    for _ in range(3):
        await look(world)
    assert len(found) == 3, "once due, and once because that changed it"
    state.counted_ms = 1_400
    await look(world)
    assert second not in kept(world)


async def test_what_is_published_later_expires_at_once() -> None:
    world = TierWorld(tiered_topic(local_retention_ms=0))
    await look(world)
    tail = world.state.partitions[KEY].tail_segment_id
    segment_id = published_by(world)
    await look(world)
    assert segment_id == tail and segment_id not in kept(world)


def published_by(world: TierWorld) -> int:
    """As ``published``, and the workers hear of it."""
    segment_id = tabled(world.state)
    record = world.state.segments[segment_id]
    for listener in world.listeners:
        listener(Change((record,)))
    return segment_id


async def test_a_topic_that_is_altered_is_looked_at() -> None:
    world = TierWorld(tiered_topic())
    segment_id = published_by(world)
    await look(world)
    assert segment_id in kept(world)
    wanted = Tiering(is_on=True, local_retention_bytes=0)
    live = world.state.live
    world.commit(alter_topic(world.state, live, "events", SETTINGS, None, None, wanted))
    await look(world)
    assert segment_id not in kept(world)


async def test_more_than_one_change_takes_go_in_the_next_looks() -> None:
    world = TierWorld(tiered_topic(local_retention_ms=0))
    ids = [published_by(world) for _ in range(120)]
    for _ in range(4):
        await look(world)
    assert not set(ids) & set(kept(world))


async def test_the_next_coordinator_looks_everywhere_once() -> None:
    world = TierWorld(tiered_topic(local_retention_ms=0))
    await look(world)
    segment_id = tabled(world.state)  # nobody heard of it
    await look(world)
    assert segment_id in kept(world)
    world.restarted()
    await look(world)
    assert segment_id not in kept(world)


def test_the_next_expiry_is_that_of_the_oldest_copy_to_come() -> None:
    state = tiered_topic(local_retention_ms=1_000)
    assert decisions.next_expiry_ms(state, KEY) is None
    state.counted_ms = 5
    tabled(state)
    state.counted_ms = 7
    tabled(state)
    assert decisions.next_expiry_ms(state, KEY) == 1_005
    state.counted_ms = 1_005
    assert decisions.next_expiry_ms(state, KEY) == 1_007
    assert decisions.next_expiry_ms(state, (b"x" * 16, 0)) is None
