"""Registration of this process with the coordinator, and the gate that refuses all calls before it.

A data folder alone can't tell whether it is the newest one of its node: it may be an old copy of
the disk, and only the coordinator, which remembers how far the node had come, can say so. So
nothing is served between listening and the coordinator's answer (R56), and what the answer calls
UNKNOWN is that durably before the incarnation is stored, which would make the folder look new.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icecore.errors import (
    FencedError,
    IcecoreError,
    NotLeaderError,
    NotReplicaError,
    SupersededError,
    UnavailableError,
    UnsupportedError,
)
from icecore.model import PROTOCOL_VERSION, CoordinatorEpoch, Incarnation, SegmentId
from icecore.process.log import event
from icecore.rpc import (
    convert,
    framing,
)
from icecore.rpc.ports import (
    Admitted,
    Answer,
    Body,
    CallContext,
    DirectHandler,
    Outcome,
    Received,
    ServerStream,
    StreamHandler,
    UnaryHandler,
)
from icecore.v1 import coordinator_pb2
from icecore.v1.coordinator_pb2 import SegmentInventory
from icecore_node.context import NodeContext
from icecore_node.identity.identity import Identity
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.membership.heartbeats import Heartbeats
from icecore_node.membership.inventory_telling import InventoryTelling, register_request
from icecore_node.ports import Folder
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.life import Condemned
from icecore_node.storage.port import FoundReplica

_log = logging.getLogger(__name__)


class NodeRegistration:
    """Registers this process: at the start, and again when an incarnation was lost unused."""

    def __init__(
        self,
        context: NodeContext,
        folder: Folder,
        coordinator: CoordinatorLink,
        heartbeats: Heartbeats,
        table: ReplicaTable,
        delete_later: Callable[[SegmentId], None],
        telling: InventoryTelling,
    ) -> None:
        self._context = context
        self._folder = folder
        self._telling = telling
        self._coordinator = coordinator
        self._heartbeats = heartbeats
        self._table = table
        self._delete_later = delete_later

    async def register(self, inventory: Sequence[SegmentInventory]) -> None:
        """Get an incarnation; from then on this node serves.

        Args:
            inventory: Replicas in the data folder.

        Raises WrongClusterError and other definite refusals, StorageError.
        """
        context, folder = self._context, self._folder
        context.identity.lose()
        answer = await self._coordinator.register(
            register_request(context, folder, inventory), self._telling.heard
        )
        check_version(answer.protocol_version)
        self._heartbeats.set_times(interval_ms=answer.heartbeat_ms, lease_ms=answer.lease_ms)
        if answer.disk_unknown:
            held = [replica.segment_id for replica in self._table]
            why = "the data folder is older than one that this node had before"
            event(_log, logging.CRITICAL, "disk_condemned", segments=len(held), why=why)
            await self._condemn(held, why, inventory)
        elif shrunk := convert.segment_ids(answer.unknown_segment_ids):
            event(_log, logging.CRITICAL, "logs_condemned", segment_ids=shrunk)
            await self._condemn(shrunk, "the log was longer once", inventory)
        await context.executor.run(self._keep, answer)
        context.identity.register(
            answer.cluster_id,
            Incarnation(answer.incarnation),
            CoordinatorEpoch(answer.coordinator_epoch),
            answer.metadata_revision,
        )
        context.identity.hear_store(answer.store_id, answer.forgotten_store_id)
        for segment_id in convert.segment_ids(answer.delete_segment_ids):
            self._delete_later(segment_id)
        event(
            _log,
            logging.INFO,
            "registered",
            node_id=context.identity.node_id,
            incarnation=context.identity.incarnation,
            cluster_id=context.identity.cluster_id,
        )

    async def stay(self, inventory: Sequence[SegmentInventory]) -> None:
        """Send heartbeats. An incarnation that was lost before its first heartbeat, because the
        coordinator
        restarted in between, never counted: get another one."""
        while True:
            try:
                await self._heartbeats.run()
            except SupersededError:
                if self._heartbeats.was_heard:
                    raise
                forgotten = self._context.identity.incarnation
                event(_log, logging.WARNING, "incarnation_forgotten", incarnation=forgotten)
                await self.register(inventory)

    async def _condemn(
        self, segment_ids: Sequence[SegmentId], why: str, inventory: Sequence[SegmentInventory]
    ) -> None:
        """Mark the replicas of these segments UNKNOWN, durably.

        Durable before the incarnation is: with that the folder looks as good as new.
        """
        for segment_id in segment_ids:
            replica = self._table.get(segment_id)
            if replica is not None and replica.life.is_intact:
                replica.move(Condemned(why))
        for each in inventory:  # should this process have to register once more
            each.intact = each.intact and each.segment_id not in segment_ids
        await self._context.executor.run(self._context.store.salvage.condemn, segment_ids, why)

    def _keep(self, answer: coordinator_pb2.RegisterResponse) -> None:
        """Durable before the first heartbeat: this folder's cluster and the process's
        incarnation."""
        folder = self._folder
        counter = max(folder.disk_counter, answer.disk_counter) + 1
        folder.join_cluster(answer.cluster_id)
        folder.keep_incarnation(Incarnation(answer.incarnation), counter)


def check_version(protocol_version: int) -> None:
    """Raises UnsupportedError for a coordinator that is older than this node."""
    if protocol_version < PROTOCOL_VERSION:
        raise UnsupportedError(
            f"the coordinator speaks protocol version {protocol_version}, this node "
            f"{PROTOCOL_VERSION}: update coordinators before nodes"
        )


def inventory_of(found: FoundReplica) -> SegmentInventory:
    """One replica as the coordinator hears of it when its node registers."""
    return SegmentInventory(
        segment_id=found.identity.segment_id,
        durable_end_offset=found.tail.end_offset,
        sealed=found.sealed_end_offset is not None,
        intact=found.intact,
    )


# --- the gate -------------------------------------------------------------------------------------


class Gate:
    """Stands before the handlers of a node, and is closed while the node has no incarnation.

    An answer is also held back when the incarnation changed while it was made. What a handler
    found on the disk may have become UNKNOWN by then.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def for_clients(self, handlers: Mapping[str, UnaryHandler]) -> dict[str, UnaryHandler]:
        """DataService: refused as by a node that holds nothing."""
        refusals = {"InitProducer": UnavailableError}
        return {
            method: self._guarded(handler, refusals.get(_name(method), NotReplicaError))
            for method, handler in handlers.items()
        }

    def for_producers(self, handlers: Mapping[str, DirectHandler]) -> dict[str, DirectHandler]:
        """Produce: refused as by a node that leads nothing."""
        return {name: self._guarded_direct(each) for name, each in handlers.items()}

    def for_peers(self, handlers: Mapping[str, UnaryHandler]) -> dict[str, UnaryHandler]:
        """ReplicationService, but for its stream, and AdminService."""
        return {name: self._guarded(each, UnavailableError) for name, each in handlers.items()}

    def for_followers(self, handler: StreamHandler) -> StreamHandler:
        """The stream of ReplicationService. An open stream ends by itself: it belongs to leaders,
        and a node that registers again leads nothing."""

        async def guarded(stream: ServerStream, call: CallContext) -> None:
            self._pass(UnavailableError)
            await handler(stream, call)

        return guarded

    def for_coordinator(self, handlers: Mapping[str, UnaryHandler]) -> dict[str, UnaryHandler]:
        """NodeService: only calls that are meant for this very incarnation."""
        return {
            method: self._guarded(handler, UnavailableError, _REQUESTS[_name(method)])
            for method, handler in handlers.items()
        }

    def _guarded(
        self, handler: UnaryHandler, refusal: type[IcecoreError], request: Any = None
    ) -> UnaryHandler:
        async def guarded(body: Received, call: CallContext) -> Body:
            incarnation = self._pass(refusal)
            if request is not None:
                meant = framing.parse(request, body)
                self._check_meant(meant.node_id, meant.incarnation)
            answer = await handler(body, call)
            if self._identity.incarnation != incarnation:
                raise UnavailableError("this node registered again meanwhile")
            return answer

        return guarded

    def _guarded_direct(self, handler: DirectHandler) -> DirectHandler:
        def admit(header: bytes, body_bytes: int, call: CallContext) -> Admitted | Body:
            incarnation = self._pass(NotLeaderError)
            admitted = handler.admit(header, body_bytes, call)
            if not isinstance(admitted, Admitted):
                return admitted

            def run(body: Received, answer: Answer) -> None:
                if self._identity.incarnation != incarnation:
                    admitted.abandon()
                    raise NotLeaderError("this node registered again meanwhile")

                def passed(outcome: Outcome) -> None:
                    if self._identity.incarnation != incarnation:
                        outcome = UnavailableError("this node registered again meanwhile")
                    answer(outcome)

                admitted.run(body, passed)

            return Admitted(run, admitted.abandon)

        return replace(handler, admit=admit)

    def _pass(self, refusal: type[IcecoreError]) -> int:
        """The current incarnation. Raises ``refusal`` while there is none."""
        if not self._identity.incarnation:
            raise refusal("this node is not registered with its coordinator yet: try again")
        return self._identity.incarnation

    def _check_meant(self, node_id: int, incarnation: int) -> None:
        """Addresses are given out again, and incarnations of two nodes may be equal."""
        own = (self._identity.node_id, self._identity.incarnation)
        if (node_id, incarnation) != own:
            raise FencedError(
                f"this is incarnation {own[1]} of node {own[0]}, "
                f"the call is for incarnation {incarnation} of node {node_id}"
            )


_REQUESTS: Mapping[str, Any] = {
    "Fence": coordinator_pb2.FenceRequest,
    "Open": coordinator_pb2.OpenRequest,
    "WriteBack": coordinator_pb2.WriteBackRequest,
    "Roll": coordinator_pb2.RollRequest,
    "FenceProducers": coordinator_pb2.FenceProducersRequest,
    "CheckSeal": coordinator_pb2.CheckSealRequest,
    "Upload": coordinator_pb2.UploadRequest,
    "CommitTables": coordinator_pb2.CommitTablesRequest,
    "Sweep": coordinator_pb2.SweepRequest,
    "VerifyCopies": coordinator_pb2.VerifyCopiesRequest,
}


def _name(method: str) -> str:
    return method.rpartition("/")[2]
