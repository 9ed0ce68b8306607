"""Orders and questions of the coordinator to leaders: rolls, fences of producers, ends of seals."""

from icecore.errors import IcecoreError, NotLeaderError, NotReplicaError
from icecore.model import ProducerEpoch, ProducerId, SegmentId
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica import order_checks
from icecore_node.replication.leader import Leader
from icecore_replication import inputs

WHY_MAX = 200


class LeaderOrders:
    """Hands these orders to the leaders of this node."""

    def __init__(self, context: NodeContext, table: ReplicaTable, leaders: Leaders) -> None:
        self._context = context
        self._table = table
        self._leaders = leaders

    def roll(
        self, request: coordinator_pb2.RollRequest
    ) -> tuple[list[IcecoreError | None], list[SegmentId]]:
        """Seal these segments now; per item the error, and which are led but empty."""
        errors: list[IcecoreError | None] = []
        empty: list[SegmentId] = []
        why = repr(request.why[:WHY_MAX]) if request.why else "asked by the coordinator"
        for ref in request.segments:
            segment_id = SegmentId(ref.segment_id)
            replica = self._table.get(segment_id)
            leader = replica.role if replica is not None else None
            if not isinstance(leader, Leader):
                errors.append(NotLeaderError(f"segment {segment_id} is not led here"))
                continue
            if leader.replica.log.tail.end_offset == leader.replica.base_offset:
                empty.append(segment_id)
            leader.feed(inputs.RollRequested(why))
            errors.append(None)
        return errors, empty

    def held_end(self, segment_id: SegmentId) -> coordinator_pb2.HeldEnd:
        """Return the durable end and digests of our replica of a segment that is to be sealed
        (R64). They come from this node's own log, not from the order."""
        replica = self._table.get(segment_id)
        if replica is None or not replica.life.counts or replica.sealed:
            error = NotReplicaError(f"no intact open replica of segment {segment_id} here")
            return coordinator_pb2.HeldEnd(error=convert.error_to_proto(error))
        if replica.promised_epoch > replica.identity.epoch:
            refusal = order_checks.promised(replica)
            return coordinator_pb2.HeldEnd(error=convert.error_to_proto(refusal))
        leader, tail = self._leaders.of(replica), replica.log.durable_tail
        seen = max(replica.log.tail.max_known_high_watermark, replica.high_watermark)
        return coordinator_pb2.HeldEnd(
            durable_end_offset=tail.end_offset,
            seal_digest=tail.digest,
            producer_digest=replica.log.producers.digest(),
            high_watermark=seen,
            sealing=leader is not None and leader.core.sealing_end_offset == tail.end_offset,
            length_bytes=tail.length_bytes,
        )

    def fence_producers(
        self, request: coordinator_pb2.FenceProducersRequest
    ) -> coordinator_pb2.FenceProducersResponse:
        """Refuse older epochs of named producers from now on. Answer each producer's last epoch and
        next sequence in the segments led here (R48).

        Needs no disk: a process that is started again leads nothing that it led before, and hears
        all fences before it leads anything new.
        """
        context = self._context
        answer = coordinator_pb2.FenceProducersResponse(incarnation=context.identity.incarnation)
        fences = [
            (ProducerId(fence.producer_id), ProducerEpoch(fence.min_epoch))
            for fence in request.fences
        ]
        for producer_id, min_epoch in fences:
            order_checks.check_producer_fence(context.producer_fences, producer_id, min_epoch)
        for producer_id, min_epoch in fences:
            context.producer_fences.fence(producer_id, min_epoch)
            for leader in self._leaders.all():
                last = leader.core.producers.last_sequence(producer_id)
                if last is not None:
                    answer.positions.add(
                        topic_id=leader.segment.topic_id,
                        partition=leader.segment.partition,
                        producer_epoch=last[0],
                        next_sequence=last[1],
                    )
        return answer
