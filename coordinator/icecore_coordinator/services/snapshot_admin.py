"""Calls of readers that need a topic to stay as it is: take a hold, and release it.

Messages to values, outcomes to messages, nothing else.
"""

from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Received, UnaryHandler
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.decisions.retention import hold, let_go
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.services.admin_messages import holds_of
from icecore_coordinator.state.records import StoredHold


class SnapshotAdmin:
    """Two methods of AdminService, each as bytes to bytes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def handlers(self) -> dict[str, UnaryHandler]:
        """By the short names of their methods."""
        return {"HoldSnapshot": self.hold, "ReleaseSnapshot": self.release}

    async def hold(self, body: Received, _: CallContext) -> bytes:
        """HoldSnapshot."""
        request = parse(pb.HoldSnapshotRequest, body)
        asked = StoredHold(request.lease_id, request.hold_ms, request.owner)
        await self._ledger.decide(
            lambda state: hold(state, request.topic, asked, is_renewal=request.renew)
        )
        state = self._ledger.state
        topic = state.topic(request.topic)
        (held,) = (
            each for each in holds_of(topic, state.counted_ms) if each.lease_id == asked.lease_id
        )
        return pb.HoldSnapshotResponse(topic_id=topic.topic_id, hold=held).SerializeToString()

    async def release(self, body: Received, _: CallContext) -> bytes:
        """ReleaseSnapshot."""
        request = parse(pb.ReleaseSnapshotRequest, body)
        await self._ledger.decide(lambda state: let_go(state, request.topic, request.lease_id))
        return pb.ReleaseSnapshotResponse().SerializeToString()
