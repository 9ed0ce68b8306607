"""The handlers of ``NodeService``: the coordinator's orders to a node.

Here an order is parsed, checked and answered; a module for each kind carries it out: fences, opens,
write-backs, orders to leaders. Each order carries the coordinator's epoch; a lower one than any
seen is refused. Orders are idempotent: a coordinator that was interrupted repeats them. Lists are
answered in order, each item with its own error.
"""

import asyncio
from collections.abc import Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from icecore.errors import FencedError, ThrottledError, UnsupportedError
from icecore.model import CoordinatorEpoch, SegmentId
from icecore.rpc import convert, framing
from icecore.rpc.methods import NODE
from icecore.rpc.ports import CallContext, Received, UnaryHandler
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.replica import order_checks
from icecore_node.serving.orders.fencing import Fencing
from icecore_node.serving.orders.leader_orders import LeaderOrders
from icecore_node.serving.orders.opening import ReplicaOpening
from icecore_node.serving.orders.write_back import WriteBacks

if TYPE_CHECKING:  # its libraries are for nodes with an object store
    from icecore_node.serving.orders.tier_orders import TierOrders

_Order: TypeAlias = (
    coordinator_pb2.FenceRequest
    | coordinator_pb2.OpenRequest
    | coordinator_pb2.WriteBackRequest
    | coordinator_pb2.RollRequest
    | coordinator_pb2.FenceProducersRequest
    | coordinator_pb2.CheckSealRequest
    | coordinator_pb2.UploadRequest
    | coordinator_pb2.CommitTablesRequest
    | coordinator_pb2.SweepRequest
    | coordinator_pb2.VerifyCopiesRequest
)


class NodeService:
    """Handlers of the coordinator's orders."""

    def __init__(
        self,
        context: NodeContext,
        *,
        fencing: Fencing,
        opening: ReplicaOpening,
        write_backs: WriteBacks,
        leader_orders: LeaderOrders,
        tier_orders: "TierOrders | None",
    ) -> None:
        self._context = context
        self._fencing = fencing
        self._opening = opening
        self._write_backs = write_backs
        self._leader_orders = leader_orders
        self._tier_orders = tier_orders

    def handlers(self) -> dict[str, UnaryHandler]:
        """Method name to handler."""
        return {
            NODE["Fence"]: self.fence,
            NODE["Open"]: self.open,
            NODE["WriteBack"]: self.write_back,
            NODE["Roll"]: self.roll,
            NODE["FenceProducers"]: self.fence_producers,
            NODE["CheckSeal"]: self.check_seal,
            NODE["Upload"]: self.upload,
            NODE["CommitTables"]: self.commit_tables,
            NODE["Sweep"]: self.sweep,
            NODE["VerifyCopies"]: self.verify_copies,
        }

    def _check(self, request: _Order) -> None:
        """Check an order. Raises FencedError when a newer coordinator has taken over, or the order
        is for an earlier process: that one's replicas and promises may be gone; UnavailableError
        when it comes from a coordinator of which this node has not heard (R110)."""
        identity = self._context.identity
        identity.check_cluster(request.cluster_id, is_needed=True)
        for items in _lists(request):
            order_checks.check_length(items)
        if request.incarnation != identity.incarnation:
            meant = request.incarnation
            raise FencedError(
                f"this is incarnation {identity.incarnation}, the order is for {meant}"
            )
        coordinator_epoch = CoordinatorEpoch(request.coordinator_epoch)
        # An order teaches neither revision nor epoch: anybody can call here.
        identity.check_revision(coordinator_epoch, request.metadata_revision)
        order_checks.check_coordinator_epoch(identity, coordinator_epoch)

    async def fence(self, body: Received, _: CallContext) -> bytes:
        """Stop appends below the new epochs; answer with the durable ends after that."""
        request = framing.parse(coordinator_pb2.FenceRequest, body)
        self._check(request)
        replicas = await self._fencing.fence(request, partial(self._check, request))
        return coordinator_pb2.FenceResponse(
            incarnation=self._context.identity.incarnation, replicas=replicas
        ).SerializeToString()

    async def open(self, body: Received, call: CallContext) -> bytes:
        """Create, and where told confirm, replicas of segments about to open."""
        request = framing.parse(coordinator_pb2.OpenRequest, body)
        self._check(request)
        check = partial(self._check, request)
        errors = await self._opening.open(request.segments, check, call.timeout_s)
        return coordinator_pb2.OpenResponse(
            incarnation=self._context.identity.incarnation,
            errors=[convert.error_to_proto(error) for error in errors],
        ).SerializeToString()

    async def write_back(self, body: Received, _: CallContext) -> bytes:
        """Bring replicas to exactly [base, end) and report their digests and producer states."""
        request = framing.parse(coordinator_pb2.WriteBackRequest, body)
        self._check(request)
        coordinator_epoch = CoordinatorEpoch(request.coordinator_epoch)
        results = await asyncio.gather(
            *(self._write_backs.write_back(item, coordinator_epoch) for item in request.segments)
        )
        return coordinator_pb2.WriteBackResponse(
            incarnation=self._context.identity.incarnation, results=_that_fit(results)
        ).SerializeToString()

    async def roll(self, body: Received, _: CallContext) -> bytes:
        """Seal these segments now, if we lead them and they hold anything to seal."""
        request = framing.parse(coordinator_pb2.RollRequest, body)
        self._check(request)
        errors, empty = self._leader_orders.roll(request)
        return coordinator_pb2.RollResponse(
            incarnation=self._context.identity.incarnation,
            errors=[convert.error_to_proto(error) for error in errors],
            empty_segment_ids=empty,
        ).SerializeToString()

    async def check_seal(self, body: Received, _: CallContext) -> bytes:
        """Answer the durable ends and digests of our replicas of segments that are to be sealed."""
        request = framing.parse(coordinator_pb2.CheckSealRequest, body)
        self._check(request)
        return coordinator_pb2.CheckSealResponse(
            incarnation=self._context.identity.incarnation,
            replicas=[
                self._leader_orders.held_end(SegmentId(ref.segment_id)) for ref in request.segments
            ],
        ).SerializeToString()

    async def fence_producers(self, body: Received, _: CallContext) -> bytes:
        """Refuse older epochs of named producers; answer each one's position in the segments led
        here."""
        request = framing.parse(coordinator_pb2.FenceProducersRequest, body)
        self._check(request)
        return self._leader_orders.fence_producers(request).SerializeToString()

    # --- object storage -------------------------------------------------------------------------

    async def upload(self, body: Received, _: CallContext) -> bytes:
        """Copy sealed segments into the object store; answer what is stored and proved."""
        request = framing.parse(coordinator_pb2.UploadRequest, body)
        self._check(request)
        tier = self._tier()
        results = await tier.upload(request)
        return coordinator_pb2.UploadResponse(
            incarnation=self._context.identity.incarnation, results=results, store_id=tier.store_id
        ).SerializeToString()

    async def commit_tables(self, body: Received, _: CallContext) -> bytes:
        """Bring the tables of topics to what is published."""
        request = framing.parse(coordinator_pb2.CommitTablesRequest, body)
        self._check(request)
        tier = self._tier()
        errors, missing = await tier.commit_tables(request, partial(self._check, request))
        return coordinator_pb2.CommitTablesResponse(
            incarnation=self._context.identity.incarnation,
            errors=errors,
            missing=missing,
            store_id=tier.store_id,
        ).SerializeToString()

    async def sweep(self, body: Received, _: CallContext) -> bytes:
        """Remove objects that metadata have closed."""
        request = framing.parse(coordinator_pb2.SweepRequest, body)
        self._check(request)
        tier = self._tier()
        errors, gone, marks = await tier.sweep(request, partial(self._check, request))
        return coordinator_pb2.SweepResponse(
            incarnation=self._context.identity.incarnation,
            errors=errors,
            topic_errors=gone,
            mark_errors=marks,
            store_id=tier.store_id,
        ).SerializeToString()

    async def verify_copies(self, body: Received, _: CallContext) -> bytes:
        """See published copies in the object store."""
        request = framing.parse(coordinator_pb2.VerifyCopiesRequest, body)
        self._check(request)
        tier = self._tier()
        errors, missing = await tier.verify_copies(request, partial(self._check, request))
        return coordinator_pb2.VerifyCopiesResponse(
            incarnation=self._context.identity.incarnation,
            errors=errors,
            missing=missing,
            store_id=tier.store_id,
        ).SerializeToString()

    def _tier(self) -> "TierOrders":
        if self._tier_orders is None:
            raise UnsupportedError("this node has no object store: its setting tier_url is empty")
        return self._tier_orders


def _lists(request: _Order) -> tuple[Sized, ...]:
    """Return the lists of a request whose lengths are limited."""
    match request:
        case coordinator_pb2.FenceProducersRequest():
            return (request.fences,)
        case coordinator_pb2.CommitTablesRequest():
            return (request.partitions,)
        case coordinator_pb2.SweepRequest():
            return (request.attempts, request.gone_topic_ids)
        case coordinator_pb2.VerifyCopiesRequest():
            return (request.copies,)
        case _:
            return (request.segments,)


def _that_fit(
    results: Sequence[coordinator_pb2.WrittenBack],
) -> list[coordinator_pb2.WrittenBack]:
    """Return the results that fit into one message, at least one without error. The others become
    errors that ask the coordinator to try again."""
    full = ThrottledError("the answer is full, ask again for this segment")
    found: list[coordinator_pb2.WrittenBack] = []
    used = 0
    for each in results:
        size = len(each.producer_snapshot)
        if used and size and used + size > framing.PART_BYTES_MAX:
            found.append(coordinator_pb2.WrittenBack(error=convert.error_to_proto(full)))
            continue
        used += size
        found.append(each)
    return found
