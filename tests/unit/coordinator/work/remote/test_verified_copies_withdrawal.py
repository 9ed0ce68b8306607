"""Published copies that are missing are uploaded again, and nothing is believed lightly (R100)."""

import pytest

from icecore.errors import IcecoreError, ObjectStoreBusyError, ObjectStoreError, UnavailableError
from icecore.model import NodeState
from icecore.tier_records import TierState
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.remote.tiering import forget_store
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.work.remote.verified_copies import VERIFY_WAIT_MS_MAX
from tests.support.cluster_states import ALL, KEY, TOPIC, commit, segment
from tests.support.tier_states import published, remote, tabled, tier_of, tiered_topic
from tests.support.tier_world import TierWorld

STORE, OTHER = b"s" * 16, b"o" * 16
LATER_MS = VERIFY_WAIT_MS_MAX


@pytest.fixture
async def world() -> TierWorld:
    """A cluster that knows its object store."""
    world = TierWorld()
    assert world.state.cluster is not None
    commit(world.state, Change((updated(world.state.cluster, store_id=STORE),)))
    uses(world, STORE)
    return world


def uses(world: TierWorld, store_id: bytes) -> None:
    for node_id in ALL:
        world.store_ids[node_id] = store_id
        world.state.live.note(node_id, store_id=store_id)


async def look(world: TierWorld, times: int = 2) -> None:
    """The first look finds what is in doubt, the second one looks for it."""
    for _ in range(times):
        world.clock.now += LATER_MS
        await world.tiering.follow()


def lose(world: TierWorld, segment_id: int) -> int:
    """Its objects go from the store: its attempt."""
    attempt = tier_of(world.state, segment_id).attempt
    world.gone.add(attempt)
    return attempt


def is_behind(world: TierWorld) -> bool:
    return KEY in world.state.tiers.stale_tables


async def test_what_the_table_could_not_take_in_is_uploaded_again(world: TierWorld) -> None:
    fine, lost = published(world.state), published(world.state)
    first = lose(world, lost)
    await look(world)
    assert tier_of(world.state, lost).state is TierState.UPLOADING
    assert tier_of(world.state, fine).state is TierState.PUBLISHED
    [why] = [each for each in world.alerts if "upload them again" in each]
    assert "topic events were missing" in why
    orders = len(world.asked_for(pb.CommitTablesRequest))
    await look(world)
    assert len(world.asked_for(pb.CommitTablesRequest)) == orders, "the table waits"
    await world.uploads()
    assert tier_of(world.state, lost).attempt > first
    await look(world)
    assert not is_behind(world) and world.tiering.errors.of(TOPIC) == ("", 0)
    [*_, (_, last)] = world.asked_for(pb.CommitTablesRequest)
    assert {each.attempt for each in last.partitions[0].segments} == {
        tier_of(world.state, each).attempt for each in (fine, lost)
    }


async def test_what_is_missing_when_nodes_want_to_drop_theirs(world: TierWorld) -> None:
    """The table names it, and goes on doing so until it gets the next one in one commit."""
    world = TierWorld(tiered_topic(local_retention_ms=0))
    assert world.state.cluster is not None
    commit(world.state, Change((updated(world.state.cluster, store_id=STORE),)))
    uses(world, STORE)
    lost = tabled(world.state)
    first = lose(world, lost)
    world.named.add(first)
    world.clock.now += LATER_MS
    await world.local.look()
    await world.tiering.follow()
    found = tier_of(world.state, lost)
    assert found.withdrawn == first and segment(world.state, lost).replicas == (1, 2, 3)
    world.asked.clear()
    await look(world)
    assert not world.asked
    await world.uploads()
    await look(world, 1)
    [(_, order)] = world.asked_for(pb.CommitTablesRequest)
    assert [each.attempt for each in order.partitions[0].segments] == [
        tier_of(world.state, lost).attempt
    ]
    world.state.counted_ms += world.timing.tier_reader_grace_ms
    await look(world)
    [(_, sweep), *_] = world.asked_for(pb.SweepRequest)
    assert [each.attempt for each in sweep.attempts] == [first]
    world.clock.now += LATER_MS
    await world.local.look()
    assert not segment(world.state, lost).replicas, "seen in the store, and dropped"


@pytest.mark.parametrize(
    "error",
    [
        ObjectStoreError("access denied"),
        ObjectStoreBusyError("it can't be reached"),
        UnavailableError("it restarts"),
    ],
    ids=lambda each: each.reason,
)
async def test_no_other_trouble_takes_a_publication_back(
    world: TierWorld, error: IcecoreError
) -> None:
    lost = published(world.state)
    world.fails = dict.fromkeys(ALL, error)
    await look(world, 4)
    world.fails, world.breaks = {}, dict.fromkeys(ALL, error)
    await look(world, 4)
    assert tier_of(world.state, lost).state is TierState.PUBLISHED


@pytest.mark.parametrize("store_id", [b"", OTHER])
async def test_what_lacks_in_another_store_proves_nothing(
    world: TierWorld, store_id: bytes
) -> None:
    lost = published(world.state)
    lose(world, lost)
    for node_id in ALL:
        world.store_ids[node_id] = store_id  # heartbeats and answers may differ for a moment
    await look(world, 4)
    assert tier_of(world.state, lost).state is TierState.PUBLISHED


async def test_a_store_without_an_id_proves_nothing_either() -> None:
    world = TierWorld()
    lost = published(world.state)
    lose(world, lost)
    await look(world, 4)
    assert tier_of(world.state, lost).state is TierState.PUBLISHED


async def test_what_no_node_has_stays_with_its_alert(world: TierWorld) -> None:
    gone = remote(world.state)
    world.named.clear()
    lose(world, gone)
    held = published(world.state)
    lose(world, held)
    for node_id in ALL:  # all up, and each calls its copy damaged
        world.tiering._withdrawals._copies.note_unknown(node_id, [held])
    await look(world, 4)
    assert {tier_of(world.state, each).state for each in (gone, held)} == {TierState.PUBLISHED}
    assert any("does not find published copies" in each for each in world.alerts)
    assert is_behind(world)


async def test_a_copy_on_a_node_that_is_down_is_none(world: TierWorld) -> None:
    lost = published(world.state)
    lose(world, lost)
    for node_id in (1, 2):
        world.tiering._withdrawals._copies.note_unknown(node_id, [lost])
    world.state.live.note(3, state=NodeState.DOWN, is_connected=False)
    await look(world, 3)
    assert tier_of(world.state, lost).state is TierState.PUBLISHED
    world.state.live.note(3, state=NodeState.UP, is_connected=True)
    await look(world, 3)
    assert tier_of(world.state, lost).state is TierState.UPLOADING


async def test_objects_that_come_back_do_no_harm(world: TierWorld) -> None:
    lost = published(world.state)
    first = lose(world, lost)
    await look(world)
    world.gone.clear()
    await world.uploads()
    await look(world)
    found = tier_of(world.state, lost)
    assert (found.state, found.withdrawn) == (TierState.PUBLISHED, first)
    assert found.attempt > first and not is_behind(world)


async def test_copies_of_a_store_that_was_given_up_go_into_the_next_one(world: TierWorld) -> None:
    held = [tabled(world.state), tabled(world.state)]
    gone = remote(world.state)
    world.commit(forget_store(world.state, STORE))
    uses(world, OTHER)
    await world.tiering.follow()
    assert {tier_of(world.state, each).state for each in held} == {TierState.UPLOADING}
    assert tier_of(world.state, gone).state is TierState.PUBLISHED, "there is nothing to upload"
    assert any("was given up" in each for each in world.alerts)
    await world.uploads()
    assert world.state.tiers.store_id == OTHER
    assert {tier_of(world.state, each).state for each in held} == {TierState.PUBLISHED}
    alerts = len(world.alerts)
    await world.tiering.follow()
    assert {tier_of(world.state, each).state for each in held} == {TierState.PUBLISHED}, "once"
    assert len(world.alerts) == alerts


async def test_a_restarted_coordinator_goes_on(world: TierWorld) -> None:
    lost = published(world.state)
    lose(world, lost)
    await look(world, 1)
    world.restarted()
    await look(world)
    assert tier_of(world.state, lost).withdrawn
    world.restarted()
    await world.uploads()
    await look(world, 1)
    assert not is_behind(world) and world.tiering.errors.of(TOPIC)[0] == ""


async def test_a_copy_that_no_node_has_is_told_until_it_is_back(world: TierWorld) -> None:
    tabled(world.state)
    gone, fine = remote(world.state), remote(world.state)
    lose(world, gone)
    for segment_id in (gone, fine):
        world.tiering.doubt(segment_id)
    await look(world)
    [why] = world.alerts_that_hold()
    tier = tier_of(world.state, gone)
    assert f"events/0 can't be read from {tier.base_offset} to {tier.end_offset}" in why
    assert "put the objects back" in why
    assert "is not there" in world.tiering.errors.of(TOPIC)[0]
    await look(world)
    assert world.alerts_that_hold() == [why], "it is looked for again and again"
    world.gone.clear()
    await look(world)
    assert world.alerts_that_hold() == [] and world.tiering.errors.of(TOPIC)[0] == ""


async def test_what_was_uploaded_again_is_told_no_more(world: TierWorld) -> None:
    lost = published(world.state)
    lose(world, lost)
    await look(world)
    [why] = world.alerts_that_hold()
    assert "upload them again" in why
    await world.uploads()
    assert tier_of(world.state, lost).state is TierState.PUBLISHED
    assert world.alerts_that_hold() == []
