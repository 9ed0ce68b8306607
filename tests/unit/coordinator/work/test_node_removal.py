"""An operator forgets a node: nothing of it is left, and a process of it must register again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import InvalidRequestError, SupersededError
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes.node_sessions import Session
from icecore_coordinator.state.records import Change, SegmentRecord, updated_segment
from icecore_coordinator.stores.sqlite_store import SqliteDatabase
from icecore_coordinator.work.node_removal import NodeRemoval
from tests.support.cluster_states import ALL, commit, records, roll
from tests.support.cluster_states import started as a_topic
from tests.support.control_plane import ControlPlane
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(":memory:")
    yield database
    database.close()


@pytest.fixture
async def plane(database: SqliteDatabase) -> ControlPlane:
    return await started(database)


async def started(database: SqliteDatabase) -> ControlPlane:
    plane = ControlPlane(database, FakeClock())
    await plane.start()
    return plane


def removal(plane: ControlPlane) -> NodeRemoval:
    return plane.coordinator._removal


async def forget(plane: ControlPlane, node_id: int, *, is_disk_gone: bool = False) -> int:
    return await removal(plane).forget(node_id, is_disk_gone=is_disk_gone)  # type: ignore[arg-type]


def heartbeat(counter: int) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        sequence=1, disk_counter=counter, unknown_segment_ids=[9], crowded_segment_ids=[9]
    )


async def test_nothing_of_a_forgotten_node_is_left(
    plane: ControlPlane, database: SqliteDatabase
) -> None:
    known, session = await plane.join(4)
    plane.sessions.heartbeat(session, heartbeat(50))
    plane.leave(session)
    assert await forget(plane, 4) == 0
    coordinator = plane.coordinator
    assert 4 not in plane.state.nodes and 4 not in [*coordinator.live]
    assert coordinator.heard.disk_counter(4) == 0
    assert plane.sessions.registered(4) is None
    with pytest.raises(SupersededError, match="register again"):
        await plane.beat(known)
    again = await started(database)
    assert 4 not in again.state.nodes
    back, _ = await again.join(4, incarnation=known.incarnation, held=1)
    assert back.is_disk_unknown and back.incarnation > known.incarnation


async def test_a_counter_that_was_stored_late_is_not_read_again(
    plane: ControlPlane, database: SqliteDatabase
) -> None:
    """The node's record goes, and the coordinator dies before it stores what it heard."""
    _, session = await plane.join(4)
    plane.sessions.heartbeat(session, heartbeat(50))
    await plane.coordinator.ledger.decide_all(plane.coordinator.heard.to_store())
    plane.leave(session)
    await forget(plane, 4)
    again = await started(database)
    assert dict(again.state.heard[256].disk_counters) == {4: 50}
    assert again.coordinator.heard.disk_counter(4) == 0


async def test_a_node_that_is_up_is_not_forgotten(plane: ControlPlane) -> None:
    _, session = await plane.join(4)
    with pytest.raises(InvalidRequestError, match="stop it"):
        await forget(plane, 4)
    plane.sessions.disconnected(session)  # it may be back at any moment
    with pytest.raises(InvalidRequestError, match="stop it"):
        await forget(plane, 4)


async def test_a_node_that_comes_back_at_that_moment_must_register_again(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, session = await plane.join(4)
    plane.leave(session)
    store: Any = plane.coordinator._store
    commit, streams = store.txn, []

    async def txn(*change: Any) -> bool:
        streams.append(await plane.beat(known))  # decided, and not stored yet
        monkeypatch.undo()
        return bool(await commit(*change))

    monkeypatch.setattr(store, "txn", txn)
    await forget(plane, 4)
    [stream] = streams
    assert stream.is_closed and 4 not in plane.state.nodes
    plane.sessions.heartbeat(stream, heartbeat(7))  # was on its way
    plane.sessions.disconnected(stream)
    assert 4 not in [*plane.coordinator.live] and plane.coordinator.heard.disk_counter(4) == 0
    with pytest.raises(SupersededError, match="register again"):
        await plane.beat(known)


async def test_a_node_that_is_forgotten_while_its_disk_is_judged_does_not_come_in(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is there, and its stream is not yet."""
    known = await plane.register(4)
    judge = plane.admission._judge_inventory

    async def slowly(*arguments: Any) -> None:
        await judge(*arguments)
        await forget(plane, 4)

    monkeypatch.setattr(plane.admission, "_judge_inventory", slowly)
    with pytest.raises(SupersededError, match="was forgotten"):
        await plane.beat(known)
    assert 4 not in plane.state.nodes and 4 not in [*plane.coordinator.live]


# --- with --disk-gone -----------------------------------------------------------------------------


async def with_copies(plane: ControlPlane) -> dict[int, Session]:
    """Three nodes that are up, two sealed segments on all of them, and a tail on nodes 1 and 2."""
    made = a_topic()
    roll(made)
    roll(made)
    tail = made.segments[3]
    fields = {"replicas": (1, 2), "isr": (1, 2)}
    commit(made, Change((updated_segment(tail, fields, holders=(1, 2)),)))
    for each in records(made):
        if isinstance(each, SegmentRecord):
            first: Any = replace(each, segment=each.segment.changed(version=1))
        else:
            first = replace(each, version=1)
        if first.key != "cluster":
            await plane.coordinator.ledger.decide(lambda _, first=first: Change((first,)))  # type: ignore[misc]
    return {
        node_id: (await plane.join(node_id, disk_id=bytes([node_id]), incarnation=each))[1]
        for node_id, each in ALL.items()
    }


async def test_copies_on_a_disk_that_is_gone_are_given_up(plane: ControlPlane) -> None:
    streams = await with_copies(plane)
    # Without an inventory the nodes lack what they should have.
    assert {len(plane.state.segments[each].segment.replicas) for each in (1, 2)} == {1}
    kept = {each: plane.state.segments[each].segment.replicas[0] for each in (1, 2)}
    assert kept == {1: 3, 2: 3}, "the last copy stays listed"
    plane.leave(streams[3])
    with pytest.raises(InvalidRequestError, match=r"copies of 2 segments, such as \[1, 2\]"):
        await forget(plane, 3, is_disk_gone=True)
    for segment_id in (1, 2):
        record = plane.state.segments[segment_id]  # repaired
        whole = updated_segment(record, {"replicas": (1, 2, 3)})
        await plane.coordinator.ledger.decide(lambda _, whole=whole: Change((whole,)))  # type: ignore[misc]
    with pytest.raises(InvalidRequestError, match="2 sealed segments"):
        await forget(plane, 3)
    assert await forget(plane, 3, is_disk_gone=True) == 2
    assert 3 not in plane.state.nodes and not plane.state.held[3]
    for segment_id in (1, 2):
        record = plane.state.segments[segment_id]
        assert (record.segment.replicas, record.holders) == ((1, 2), (1, 2))
    assert list(plane.state.thin) == [1, 2]


async def test_a_replica_of_a_tail_is_not_given_up(plane: ControlPlane) -> None:
    streams = await with_copies(plane)
    plane.leave(streams[2])
    with pytest.raises(InvalidRequestError, match="not sealed"):
        await forget(plane, 2, is_disk_gone=True)
    assert 2 in plane.state.segments[3].segment.replicas
