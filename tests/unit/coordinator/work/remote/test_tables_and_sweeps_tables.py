"""The table of a partition follows metadata, whoever ended in between (R88)."""

import pytest

from icecore.errors import ConflictError, ObjectStoreError
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.retention import delete_below_start, move_log_start
from icecore_coordinator.work.remote import tables_and_sweeps
from icecore_coordinator.work.remote.tables_and_sweeps import TABLE_WAIT_MS_MAX
from tests.support.cluster_states import KEY, TOPIC, commit
from tests.support.tier_states import published, tabled
from tests.support.tier_world import TierWorld


@pytest.fixture
async def world() -> TierWorld:
    return TierWorld()


def orders(world: TierWorld) -> list[tuple[int, list[int]]]:
    """(revision, segment ids) of every order."""
    tables = [request.partitions[0] for _, request in world.asked_for(pb.CommitTablesRequest)]
    return [(each.revision, [s.segment_id for s in each.segments]) for each in tables]


def behind(world: TierWorld) -> int:
    partition = world.state.partitions[KEY]
    return partition.tier_revision - partition.table_revision


async def test_the_next_coordinator_brings_a_table_up_to_date(world: TierWorld) -> None:
    first, second = published(world.state), published(world.state)
    world.restarted()
    await world.tiering.follow()
    await world.tiering.follow()
    assert orders(world) == [(2, [first, second])] and not behind(world)


async def test_an_answer_that_was_lost_is_asked_for_again(world: TierWorld) -> None:
    first = published(world.state)
    world.breaks = dict.fromkeys((1, 2, 3), ObjectStoreError("reset"))
    await world.tiering.follow()
    assert behind(world) == 1 and "table: reset" in world.tiering.errors.of(TOPIC)[0]
    world.breaks.clear()
    await world.tiering.follow()
    assert len(orders(world)) == 1, "it waits"
    world.clock.now += TABLE_WAIT_MS_MAX
    await world.tiering.follow()
    assert orders(world) == [(1, [first])] * 2 and not behind(world)
    assert world.tiering.errors.of(TOPIC) == ("", 0)


async def test_another_node_is_asked_after_one_that_could_not(world: TierWorld) -> None:
    published(world.state)
    world.fails = dict.fromkeys((1, 2, 3), ConflictError("others came first"))
    await world.tiering.follow()
    world.clock.now += TABLE_WAIT_MS_MAX / 60
    world.tiering.errors.forget(TOPIC)
    [(failed, _)] = world.asked
    world.fails = {failed: ObjectStoreError("access denied")}
    for _ in range(4):
        await world.tiering.follow()
        world.clock.now += TABLE_WAIT_MS_MAX / 2
    assert not behind(world)
    assert {node_id for node_id, _ in world.asked} > {failed}


async def test_each_table_is_compared_once_by_each_coordinator_and_daily(world: TierWorld) -> None:
    """Somebody may have removed it, or put an older one back: only a node can tell."""
    first = tabled(world.state)
    world.fails = dict.fromkeys((1, 2, 3), ObjectStoreError("access denied"))
    await world.tiering.follow()
    world.fails.clear()
    await world.tiering.follow()
    assert len(orders(world)) == 1, "it waits after a failure"
    world.clock.now += TABLE_WAIT_MS_MAX
    for _ in range(3):
        await world.tiering.follow()
    assert orders(world) == [(1, [first])] * 2
    world.restarted()
    for _ in range(3):
        await world.tiering.follow()
    assert len(orders(world)) == 3
    world.clock.now += world.timing.table_check_ms - 1
    await world.tiering.follow()
    assert len(orders(world)) == 3
    world.clock.now += 1
    await world.tiering.follow()
    assert len(orders(world)) == 4 and not behind(world)


async def test_what_is_retired_is_taken_out(world: TierWorld) -> None:
    first, second = published(world.state), published(world.state)
    await world.tiering.follow()
    commit(world.state, move_log_start(world.state, KEY, 10, 0))
    commit(world.state, delete_below_start(world.state, KEY, 0))
    await world.tiering.follow()
    assert orders(world) == [(2, [first, second]), (3, [second])]


async def test_what_is_published_meanwhile_is_told_with_the_next_order(world: TierWorld) -> None:
    published(world.state)
    answer = world.call

    async def slow(address: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        found = await answer(address, method, body, timeout_s=timeout_s)
        if len(orders(world)) == 1:
            published(world.state)
        return found

    world.call = slow  # type: ignore[method-assign]
    await world.tiering.follow()
    assert behind(world) == 1
    await world.tiering.follow()
    assert not behind(world) and [revision for revision, _ in orders(world)] == [1, 2]


async def test_more_copies_than_a_call_takes_are_an_error_that_says_what_to_do(
    world: TierWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_and_sweeps, "COPIES_PER_TABLE", 1)
    published(world.state)
    published(world.state)
    await world.tiering.follow()
    assert not world.asked and behind(world) == 2
    assert "partition 0 has 2 copies" in world.tiering.errors.of(TOPIC)[0]


def test_an_order_of_that_size_fits_into_a_message() -> None:
    largest = pb.PublishedCopy(
        segment_id=1 << 62,
        generation=1 << 31,
        base_offset=1 << 62,
        attempt=1 << 62,
        manifest_sha256=b"m" * 32,
    )
    with_its_head_bytes = largest.ByteSize() + 4
    assert with_its_head_bytes * tables_and_sweeps.COPIES_PER_TABLE < 60 << 20
