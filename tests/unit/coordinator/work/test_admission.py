"""A node that begins to heartbeat turns out to have unknown copies, or to have lost some, or is not
the node that registered."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import InvalidRequestError
from icecore.model import SegmentId, SegmentState
from icecore.process.system import SystemRng
from icecore_coordinator.decisions.node_changes import HeldReplica, Registration
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.alerts import Alerts
from icecore_coordinator.nodes.node_sessions import Registered
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
