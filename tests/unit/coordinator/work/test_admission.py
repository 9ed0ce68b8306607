"""A node that begins to heartbeat turns out to have unknown copies, or to have lost some, or is not
the node that registered."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import InvalidRequestError
from icecore.model import NodeId, SegmentId, SegmentState
from icecore.process.system import SystemRng
from icecore_coordinator.decisions.node_changes import HeldReplica, Registration, check_stream
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.alerts import Alerts
from icecore_coordinator.nodes.node_sessions import Registered
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, SegmentRecord, updated_segment
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.work.admission import NodeAdmission
from tests.support.cluster_states import DIGEST, registered
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock
from tests.unit.coordinator.work.recovery.test_recovery import opened
from tests.unit.coordinator.work.test_topics import World


async def test_bytes_that_nobody_knew_of_make_their_node_a_holder() -> None:
    """A copy was begun there, and the answer never came: now it can be told to drop it."""
    database = SqliteDatabase(":memory:")
    world = World(Ledger(SqliteStore(database), SystemRng()))
    await world.ledger.open()
    await world.start()
    _, number = await opened(world)
    segment_id = SegmentId(number)
    fresh = replace(registered(4, 1), incarnation=0)
    record = world.state.segments[segment_id]
    done = sealed_record(record)
    await world.ledger.decide(lambda _: Change((fresh, done)))
    asked = Registration(b"", 4, b"\4", 0, "n4:1", "")
    held = {segment_id: HeldReplica(segment_id, 3, is_sealed=False, is_intact=False)}
    known = Registered(registration=asked, held=held, is_disk_unknown=False, incarnation=1)
    sessions = SimpleNamespace(registered=lambda _: known, connect=lambda *_: None)
    alerts = Alerts(FakeClock())
    ports = SimpleNamespace(
        ledger=world.ledger,
        live=world.live,
        heard=None,
        copies=None,
        clock=FakeClock(),
        alerts=alerts,
    )
    admission = NodeAdmission(cast(Any, ports), cast(Any, sessions))
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match="do not come from its disk"):
            await admission.connect(4, 1, b"\5")
    assert world.state.segments[segment_id].holders == (1, 2, 3) and len([*alerts]) == 1
    await admission.connect(4, 1, asked.disk_id)
    assert world.state.segments[segment_id].holders == (1, 2, 3, 4)
    assert world.state.segments[segment_id].segment.replicas == (1, 2, 3)
    database.close()


def sealed_record(record: SegmentRecord) -> SegmentRecord:
    fields = {"state": SegmentState.SEALED, "end_offset": 10, "seal_digest": DIGEST}
    return updated_segment(record, fields)


@pytest.mark.parametrize(
    ("version", "disk_id", "is_taken"),
    [(4, b"\4", True), (4, b"", False), (4, b"\5", False), (3, b"", True), (3, b"\5", False)],
)
def test_which_streams_prove_whose_they_are(version: int, disk_id: bytes, is_taken: bool) -> None:
    """Nodes of 0.1.0 speak version 3, and their heartbeats carry no disk id."""
    state = ClusterState()
    node = replace(registered(4, 1), disk_id=b"\4", protocol_version=version)
    state.apply(Change((node,)))
    asked = Registration(b"", 4, b"\4", 1, "n4:1", "", protocol_version=version)
    for known in (None, asked):
        with nullcontext() if is_taken else pytest.raises(InvalidRequestError, match="node 4"):
            check_stream(state, NodeId(4), disk_id, known)
