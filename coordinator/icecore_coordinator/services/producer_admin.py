"""Calls of operators about the names of producers.

Messages to values, outcomes to messages, nothing else.
"""

from heapq import nsmallest

from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Received, UnaryHandler
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.work.producer_naming import ProducerNaming

NAMES_PER_PAGE = 5_000
"""Most names in a page: with 249 characters each it stays below half of a message's limit."""


class ProducerAdmin:
    """Two methods of AdminService, each as bytes to bytes.

    Args:
        state: The cluster.
        naming: Who gives names, and takes them away.
    """

    def __init__(self, state: ClusterState, naming: ProducerNaming) -> None:
        self._state = state
        self._naming = naming

    def handlers(self) -> dict[str, UnaryHandler]:
        """By the short names of their methods."""
        return {"ListProducerNames": self.list, "DeleteProducerName": self.delete}

    async def list(self, body: Received, _: CallContext) -> bytes:
        """ListProducerNames, in the order of names."""
        request = parse(pb.ListProducerNamesRequest, body)
        later = [each for each in self._state.producers if each > request.after]
        names = nsmallest(NAMES_PER_PAGE, later)
        response = pb.ListProducerNamesResponse(next=names[-1] if len(names) < len(later) else "")
        for name in names:
            record = self._state.producers[name]
            response.names.add(
                name=name,
                producer_id=record.producer_id,
                producer_epoch=record.producer_epoch,
                taken_at_ms=record.taken_at_ms,
            )
        return response.SerializeToString()

    async def delete(self, body: Received, _: CallContext) -> bytes:
        """DeleteProducerName."""
        request = parse(pb.DeleteProducerNameRequest, body)
        await self._naming.delete(request.name)
        return pb.DeleteProducerNameResponse().SerializeToString()
