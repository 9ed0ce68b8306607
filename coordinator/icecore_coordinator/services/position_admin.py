"""Calls of readers and operators about saved positions.

Messages to values, outcomes to messages, nothing else.
"""

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.rpc.convert import error_to_proto
from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Received, UnaryHandler
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.decisions.position_changes import Outcome, Save, check_name
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.work.position_saving import PositionSaving

RECORDS_PER_PAGE = 100
"""Most records in a page, each with up to 64 positions: a page stays far below the limit of a
message."""
TOPIC_ID_LENGTH = 16


class PositionAdmin:
    """Three methods of AdminService, each as bytes to bytes.

    Args:
        state: The cluster.
        saving: Who saves.
    """

    def __init__(self, state: ClusterState, saving: PositionSaving) -> None:
        self._state = state
        self._saving = saving

    def handlers(self) -> dict[str, UnaryHandler]:
        """By the short names of their methods."""
        return {
            "SavePositions": self.save,
            "ListPositions": self.list,
            "DeletePositions": self.delete,
        }

    async def save(self, body: Received, _: CallContext) -> bytes:
        """SavePositions."""
        request = parse(pb.SavePositionsRequest, body)
        if any(len(each.topic_id) != TOPIC_ID_LENGTH for each in request.positions):
            raise InvalidRequestError("a topic id has 16 bytes")
        asked = [
            (each.topic_id, Save(each.partition, each.offset, each.version))
            for each in request.positions
        ]
        outcomes = await self._saving.save(request.name, request.instance, asked)
        return pb.SavePositionsResponse(outcomes=map(_outcome, outcomes)).SerializeToString()

    async def list(self, body: Received, _: CallContext) -> bytes:
        """ListPositions: of topics that are not deleted."""
        request = parse(pb.ListPositionsRequest, body)
        if request.name:
            check_name(request.name)
        state = self._state
        wanted = {state.topic(name).topic_id for name in request.topics}
        records = state.positions.page(request.name, request.after, RECORDS_PER_PAGE)
        response = pb.ListPositionsResponse()
        for record in records:
            if (wanted and record.topic_id not in wanted) or not state.is_live_topic(
                record.topic_id
            ):
                continue
            for each in record.positions:
                response.positions.add(
                    name=record.name,
                    topic=state.name_of(record.topic_id),
                    topic_id=record.topic_id,
                    partition=each.partition,
                    offset=each.offset,
                    version=each.version,
                    instance=each.instance,
                    saved_at_ms=each.saved_at_ms,
                )
        if len(records) == RECORDS_PER_PAGE:
            response.next = records[-1].key
        return response.SerializeToString()

    async def delete(self, body: Received, _: CallContext) -> bytes:
        """DeletePositions."""
        request = parse(pb.DeletePositionsRequest, body)
        deleted = await self._saving.delete(request.name, request.topic)
        return pb.DeletePositionsResponse(deleted=deleted).SerializeToString()


def _outcome(outcome: Outcome) -> pb.PositionOutcome:
    if isinstance(outcome, IcecoreError):
        return pb.PositionOutcome(error=error_to_proto(outcome))
    return pb.PositionOutcome(version=outcome)
