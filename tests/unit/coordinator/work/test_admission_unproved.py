"""Register alone makes no node: the record comes with the heartbeat that proves it (R107)."""

from collections.abc import Iterator

import pytest

from icecore.errors import InvalidRequestError, SupersededError
from icecore_coordinator.state.limits import NODES_MAX
from icecore_coordinator.stores.sqlite_store import SqliteDatabase
from tests.support.control_plane import ControlPlane
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(":memory:")
    yield database
    database.close()


async def started(database: SqliteDatabase) -> ControlPlane:
    plane = ControlPlane(database, FakeClock())
    await plane.start()
    return plane


async def test_whoever_only_registers_leaves_no_record(database: SqliteDatabase) -> None:
    plane = await started(database)
    for node_id in range(1_000, 1_000 + NODES_MAX + 10):
        await plane.register(node_id)
    assert not plane.state.nodes
    known, session = await plane.join(4)
    assert list(plane.state.nodes) == [4] and not session.is_closed
    assert plane.state.nodes[4].incarnation == known.incarnation
    assert list((await started(database)).state.nodes) == [4]


async def test_an_incarnation_is_given_out_once_whatever_dies_in_between(
    database: SqliteDatabase,
) -> None:
    """Two processes on copies of one new folder, and a coordinator that starts between them."""
    plane = await started(database)
    first = await plane.register(4)
    plane = await started(database)
    with pytest.raises(SupersededError, match="register again"):
        await plane.beat(first)
    second = await plane.register(4)
    assert second.incarnation > first.incarnation
    with pytest.raises(SupersededError, match="register again"):
        await plane.beat(first)
    again = await plane.register(4, incarnation=first.incarnation)
    assert again.incarnation > second.incarnation and not again.is_disk_unknown
    with pytest.raises(SupersededError):
        await plane.beat(second)
    await plane.beat(again)
    assert plane.state.incarnation(4) == again.incarnation


async def test_a_folder_with_segments_that_nobody_knows_counts_for_nothing(
    database: SqliteDatabase,
) -> None:
    plane = await started(database)
    known, _ = await plane.join(4, incarnation=3, held=2)
    assert known.is_disk_unknown
    assert plane.state.nodes[4].disk_since_segment_id == 1


async def test_a_node_that_strangers_pushed_out_registers_again(database: SqliteDatabase) -> None:
    plane = await started(database)
    known = await plane.register(4)
    for node_id in range(1_000, 1_000 + 1_000):
        await plane.register(node_id)
    with pytest.raises(SupersededError, match="register again"):
        await plane.beat(known)
    await plane.join(4, incarnation=known.incarnation)
    assert 4 in plane.state.nodes


async def filled(plane: ControlPlane) -> None:
    """As many nodes as there may be; the even ones have left in the order of their ids."""
    for node_id in range(1, NODES_MAX + 1):
        _, session = await plane.join(node_id)
        if node_id % 2 == 0:
            plane.clock.now += 1  # type: ignore[attr-defined]
            plane.leave(session)


async def test_a_full_table_makes_room_and_says_so(database: SqliteDatabase) -> None:
    plane = await started(database)
    await filled(plane)
    await plane.join(2_000)
    assert 2 not in plane.state.nodes and 2_000 in plane.state.nodes
    await plane.join(2_001)
    [why] = plane.alerts
    assert "there are 1000 nodes: to make room" in why
    assert 4 not in plane.state.nodes and len(plane.state.nodes) == NODES_MAX
    back, _ = await plane.join(2, incarnation=2, held=1)
    assert back.is_disk_unknown and back.incarnation > NODES_MAX
    assert 6 not in plane.state.nodes


async def test_a_table_of_nodes_that_are_up_refuses_at_once(database: SqliteDatabase) -> None:
    plane = await started(database)
    for node_id in range(1, NODES_MAX + 1):
        await plane.join(node_id)
    with pytest.raises(InvalidRequestError, match="at most 1000 nodes"):
        await plane.register(2_000)


async def test_room_that_was_taken_meanwhile_is_looked_for_again(
    database: SqliteDatabase,
) -> None:
    plane = await started(database)
    for node_id in range(1, NODES_MAX):
        await plane.join(node_id)
    late, early = await plane.register(2_000), await plane.register(2_001)
    await plane.beat(early)
    with pytest.raises(SupersededError, match="at most 1000 nodes"):
        await plane.beat(late)


async def test_streams_that_prove_nothing_are_counted(database: SqliteDatabase) -> None:
    plane = await started(database)
    known, _ = await plane.join(4)
    for _ in range(3):
        with pytest.raises(InvalidRequestError):
            await plane.admission.connect(known.registration.node_id, known.incarnation, b"other")
    assert plane.coordinator.describe().refused_streams == 3
