"""The handlers of ``ReplicationService``: calls of other nodes to the replicas here.

Followers open a stream for all segments they follow from us
(``serving/replication/follower_stream.py``), a leader asks for digests before it seals, and a node
that copies a segment reads it here. The receiving side of a copy is ``maintenance/copying.py``.
"""

from icecore.errors import FencedError, InvalidRequestError, NotReplicaError
from icecore.model import Incarnation, NodeId, SegmentId
from icecore.rpc import framing
from icecore.rpc.methods import REPLICATION
from icecore.rpc.ports import Body, CallContext, Received, ServerStream, UnaryHandler
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext
from icecore_node.identity.identity import Identity
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.life import Life
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.replication.leader import Leader
from icecore_node.serving.replication.follower_stream import FollowerStream, StreamParts
from icecore_node.serving.replication.sender import Framer

READ_BYTES_MAX = 4 << 20
"""Maximum size of an answer when the request names no limit."""


class ReplicationService:
    """Calls of other nodes. A newer stream of a follower node replaces its older one."""

    def __init__(
        self,
        context: NodeContext,
        table: ReplicaTable,
        leaders: Leaders,
        reading: ReplicaReading,
    ) -> None:
        self._context = context
        self._table = table
        self._reading = reading
        self._parts = StreamParts(
            context=context, table=table, leaders=leaders, reading=reading, framer=Framer()
        )
        self._streams: dict[NodeId, FollowerStream] = {}

    def handlers(self) -> dict[str, UnaryHandler]:
        """Method name to handler, but for the stream."""
        return {
            REPLICATION["ReadSegment"]: self.read_segment,
            REPLICATION["SealPrepare"]: self.seal_prepare,
        }

    # --- followers ------------------------------------------------------------------------------

    def leader_created(self, leader: Leader) -> None:
        """Tell all streams that we lead one more segment."""
        for stream in self._streams.values():
            stream.leader_created(leader)

    async def replicate(self, stream: ServerStream, _: CallContext) -> None:
        """Handler of ``ReplicationService/Replicate``."""
        body = await stream.read()
        if body is None:
            return
        first = framing.parse(replication_pb2.ReplicaProgress, body)
        self._context.identity.check_cluster(first.cluster_id)
        _check_meant(self._context.identity, first)
        node_id, incarnation = NodeId(first.node_id), Incarnation(first.incarnation)
        peer = self._context.peers.get(node_id)
        if peer is None or peer.incarnation != incarnation:
            raise FencedError(f"node {node_id} is not registered with that incarnation here")
        served = FollowerStream(self._parts, stream, node_id, incarnation)
        older = self._streams.get(node_id)
        if older is not None:
            older.supersede()
        self._streams[node_id] = served
        try:
            await served.run(first)
        finally:
            if self._streams.get(node_id) is served:
                del self._streams[node_id]

    # --- donors ---------------------------------------------------------------------------------

    async def read_segment(self, body: Received, _: CallContext) -> Body:
        """Raw batches of one replica; with the starting state when read from the base."""
        request = framing.parse(replication_pb2.ReadSegmentRequest, body)
        self._context.identity.check_cluster(request.cluster_id)
        replica = self._donor(SegmentId(request.segment_id))
        if replica.identity.generation != request.generation:
            raise NotReplicaError(
                f"segment {request.segment_id} is here in generation {replica.identity.generation}"
            )
        start, end = request.start_offset, min(request.end_offset, replica.log.tail.end_offset)
        header = replication_pb2.ReadSegmentHeader()
        if start == replica.base_offset:
            snapshot, max_append_timestamp_ms = await self._context.executor.run(
                self._context.store.reader.starting_state, replica.segment_id
            )
            header.producer_snapshot = snapshot
            header.max_append_timestamp_ms = max_append_timestamp_ms
        data = b""
        if start < end:
            max_bytes = request.max_bytes or READ_BYTES_MAX
            data, _next_offset = await self._reading.read(replica, start, max_bytes, end)
        return framing.frame_bulk(header.SerializeToString(), [data])

    async def seal_prepare(self, body: Received, _: CallContext) -> bytes:
        """An in-sync follower's digests through the leader's end, of what is on this disk."""
        request = framing.parse(replication_pb2.SealPrepareRequest, body)
        self._context.identity.check_cluster(request.cluster_id)
        if request.node_id != self._context.identity.node_id:
            raise FencedError(f"this is not node {request.node_id}")
        replica = self._followed(request)
        await replica.log.stay_synced()
        replica = self._followed(request)
        assert replica.role is not None
        durable_end_offset = replica.role.durable_end_offset
        if not durable_end_offset == replica.log.tail.end_offset == request.end_offset:
            raise InvalidRequestError(
                f"durable through {durable_end_offset} here, not {request.end_offset}"
            )
        return replication_pb2.SealPrepareResponse(
            seal_digest=replica.log.tail.digest, producer_digest=replica.log.producers.digest()
        ).SerializeToString()

    def _followed(self, request: replication_pb2.SealPrepareRequest) -> Replica:
        replica = self._donor(SegmentId(request.segment_id))
        if replica.promised_epoch > request.epoch or replica.life is not Life.FOLLOWED:
            raise FencedError(f"segment {request.segment_id} is not followed here any more")
        return replica

    def _donor(self, segment_id: SegmentId) -> Replica:
        replica = self._table.get(segment_id)
        if replica is None or not replica.life.is_donor:
            raise NotReplicaError(f"no intact replica of segment {segment_id} here")
        return replica


def _check_meant(identity: Identity, first: replication_pb2.ReplicaProgress) -> None:
    """Raises FencedError for a stream that is meant for another process."""
    meant = (first.leader_node_id, first.leader_incarnation)
    if meant != (identity.node_id, identity.incarnation):
        raise FencedError("this is another node, or another incarnation of the leader")
