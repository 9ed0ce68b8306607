"""A leader that asks for a recovery is answered when that can't be forgotten any more."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from icecore.errors import FencedError, NotCoordinatorError
from icecore.model import NodeState, SegmentState
from icecore.process.system import SystemRng
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.segment_changes import Opening, open_tail, prepare
from icecore_coordinator.decisions.topic_changes import create_topic, missing_partitions
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.services.coordinator_service import CoordinatorService
from icecore_coordinator.state.cluster_state import ClusterState, Placement
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.work.worker_ports import WorkerPorts
from tests.support.cluster_states import ALL, KEY, SETTINGS, TOPIC, registered, segment

LIVE = Liveness()
for _node_id in ALL:
    LIVE.note(_node_id, state=NodeState.UP, is_connected=True)


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(":memory:")
    yield database
    database.close()


async def coordinator(database: SqliteDatabase) -> tuple[Ledger, CoordinatorService]:
    """The newest one, and what nodes call."""
    ledger, other = Ledger(SqliteStore(database), SystemRng()), cast(Any, None)
    await ledger.open()
    ports = WorkerPorts(
        ledger=ledger,
        calls=other,
        live=LIVE,
        heard=other,
        copies=other,
        alerts=other,
        clock=other,
        timing=other,
    )
    return ledger, CoordinatorService(
        ports,
        admission=other,
        sessions=other,
        broken=other,
        pushes=other,
        sealing=other,
        naming=other,
        describe_tiered=other,
    )


async def open_segment(ledger: Ledger) -> None:
    """Segment 1, led by node 1."""

    def up(_: ClusterState) -> Change:
        return Change(tuple(registered(*node) for node in ALL.items()))

    await ledger.decide(up)
    await ledger.decide(lambda state: create_topic(state, LIVE, "events", TOPIC, 1, SETTINGS))
    for change in missing_partitions(ledger.state):
        await ledger.decide(lambda _, each=change: each)
    await ledger.decide(lambda state: prepare(state, [(KEY, Placement((1, 2, 3), 1))]))
    await ledger.decide(lambda state: open_tail(state, LIVE, Opening(1, ALL)))


def request(ledger: Ledger, **changes: object) -> bytes:
    leader = segment(ledger.state)
    asked = pb.RequestRecoveryRequest(
        cluster_id=ledger.state.cluster_id,
        node_id=leader.leader,
        incarnation=leader.leader_incarnation,
        segments=[pb.SegmentRef(segment_id=1, epoch=leader.epoch)],
        why="nobody knows whether the seal happened",
    )
    asked.MergeFrom(pb.RequestRecoveryRequest(**changes))  # type: ignore[arg-type]
    return asked.SerializeToString()


async def test_the_next_coordinator_knows_of_it(database: SqliteDatabase) -> None:
    ledger, handlers = await coordinator(database)
    await open_segment(ledger)
    await handlers.request_recovery(request(ledger), cast(Any, None))
    newer, _ = await coordinator(database)
    assert segment(newer.state).state is SegmentState.RECOVERING


async def test_a_replaced_coordinator_sends_the_leader_to_the_newest(
    database: SqliteDatabase,
) -> None:
    older, handlers = await coordinator(database)
    await open_segment(older)
    await coordinator(database)
    with pytest.raises(NotCoordinatorError) as refused:
        await handlers.request_recovery(request(older), cast(Any, None))
    assert refused.value.retriable


async def test_only_the_leader_of_now_is_heard(database: SqliteDatabase) -> None:
    ledger, handlers = await coordinator(database)
    await open_segment(ledger)
    other = next(each for each in ALL if each != segment(ledger.state).leader)
    with pytest.raises(FencedError):
        await handlers.request_recovery(request(ledger, node_id=other), cast(Any, None))
    await handlers.request_recovery(
        request(ledger, node_id=other, incarnation=ALL[other]), cast(Any, None)
    )
    assert segment(ledger.state).state is SegmentState.ACTIVE
    asked = request(ledger)
    for _ in range(2):  # it asks again when it has not heard the answer
        await handlers.request_recovery(asked, cast(Any, None))
        assert segment(ledger.state).state is SegmentState.RECOVERING
