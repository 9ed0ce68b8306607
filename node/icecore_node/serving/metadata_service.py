"""Answers of a node in the place of a coordinator: the leaders of topics, and the segments held
here.

So a client can start with the address of any node, and produce and read while no coordinator
answers. All other methods of ``AdminService`` are refused, with the coordinator's address.
"""

from collections.abc import Iterator
from typing import Final

from icecore.errors import NotCoordinatorError, UnavailableError, UnknownTopicError
from icecore.model import NodeState, Segment, SegmentId, SegmentState
from icecore.rpc import convert
from icecore.rpc.framing import parse
from icecore.rpc.methods import ADMIN
from icecore.rpc.ports import CallContext, Received, UnaryHandler
from icecore.rpc.turns import Turns
from icecore.v1 import admin_pb2
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.registry.table import PartitionReplicas, ReplicaTable
from icecore_node.registry.topic_mirror import TopicMirror

SEGMENTS_PER_PAGE: Final = 1_000
SEGMENTS_PER_PAGE_MAX: Final = 10_000


class MetadataService:
    """Reads, changes nothing."""

    def __init__(
        self,
        context: NodeContext,
        coordinator: CoordinatorLink,
        mirror: TopicMirror,
        table: ReplicaTable,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._mirror = mirror
        self._table = table

    def handlers(self) -> dict[str, UnaryHandler]:
        """Method name to handler."""
        refused: dict[str, UnaryHandler] = dict.fromkeys(ADMIN, self.refuse)
        mine: dict[str, UnaryHandler] = {
            ADMIN["GetMetadata"]: self.get_metadata,
            ADMIN["ListSegments"]: self.list_segments,
        }
        return refused | mine

    async def refuse(self, _: Received, __: CallContext) -> bytes:
        """Raises NotCoordinatorError with the coordinator's address."""
        address = self._coordinator.address
        node_id = self._context.identity.node_id
        raise NotCoordinatorError(
            f"node {node_id} is no coordinator: ask the one at {address}", address=address
        )

    # --- topics ---------------------------------------------------------------------------------

    async def get_metadata(self, body: Received, call: CallContext) -> bytes:
        """Answer as a coordinator does, from the topics last heard from one. Each topic is answered
        once.

        Raises UnavailableError before the first topics were heard.
        """
        request, turns = parse(admin_pb2.GetMetadataRequest, body), Turns(call.slot)
        context, mirror = self._context, self._mirror
        if mirror.is_empty:
            raise UnavailableError(
                f"node {context.identity.node_id} has heard of no topics yet: ask again, or ask "
                f"the coordinator at {self._coordinator.address}"
            )
        nodes = [context.peers.nodes[each] for each in sorted(context.peers.nodes)]
        response = admin_pb2.GetMetadataResponse(
            cluster_id=context.identity.cluster_id,
            nodes=map(convert.node_to_proto, nodes),
            coordinator_epoch=mirror.coordinator_epoch,
            version=mirror.version,
            age_ms=mirror.age_ms(context.clock.monotonic_ms()),
            tells_changes=True,
        )
        if request.names_only and not request.topics:
            for name, topic_id in mirror.names():
                response.topics.add(name=name, topic_id=topic_id)
            return response.SerializeToString()
        down = frozenset(each.node_id for each in nodes if each.state is NodeState.DOWN)
        since = request.known_version if request.topics else 0
        for name in dict.fromkeys(request.topics) or [name for name, _ in mirror.names()]:
            await turns.give()
            found = mirror.changes(name, request.known_coordinator_epoch, since)
            _add(response, name, found, down)
        return response.SerializeToString()

    # --- segments -------------------------------------------------------------------------------

    async def list_segments(self, body: Received, call: CallContext) -> bytes:
        """One page of the segments that are here, by their newest records that are known here.

        Raises NotCoordinatorError unless these alone are asked for, and UnknownTopicError.
        """
        request = parse(admin_pb2.ListSegmentsRequest, body)
        if not request.held_only:
            return await self.refuse(body, call)
        limit = min(request.max_segments or SEGMENTS_PER_PAGE, SEGMENTS_PER_PAGE_MAX)
        age_ms = self._mirror.age_ms(self._context.clock.monotonic_ms())
        response, turns = admin_pb2.ListSegmentsResponse(age_ms=age_ms), Turns(call.slot)
        after = self._table.get(SegmentId(request.after_segment_id))
        place = (after.identity.partition, after.base_offset) if after is not None else (-1, -1)
        for held in self._partitions(request):
            for segment in _segments(held):
                await turns.give()
                if (segment.partition, segment.base_offset) <= place:
                    continue
                if not _ends_above(segment, request.from_offset):
                    continue
                if len(response.segments) == limit:
                    response.more = True
                    return response.SerializeToString()
                response.segments.append(convert.segment_to_proto(segment))
        return response.SerializeToString()

    def _partitions(self, request: admin_pb2.ListSegmentsRequest) -> list[PartitionReplicas]:
        topic_id = self._table.names.id_for_client(b"", request.topic)
        wanted = frozenset(request.partitions)
        found = self._table.partitions_of(topic_id)
        return [each for each in found if not wanted or each.partition in wanted]


def _add(
    response: admin_pb2.GetMetadataResponse,
    name: str,
    found: admin_pb2.TopicMetadata | None,
    down: frozenset[int],
) -> None:
    """Add a topic, or an error when it does not exist. A node that is down is not named as a
    leader."""
    if found is None:
        error = UnknownTopicError(f"no topic {name!r}", topic=name)
        response.topics.add(name=name, error=convert.error_to_proto(error))
        return
    response.topics.append(found)
    if down:
        for partition in response.topics[-1].partitions:
            if partition.leader in down:
                partition.leader, partition.down_leader = 0, partition.leader


def _segments(held: PartitionReplicas) -> Iterator[Segment]:
    """Yield the records of a partition's segments that can be read here."""
    for replica in list(held.replicas):
        record = replica.segment
        if record is None or not replica.life.is_intact or record.state is SegmentState.PREPARED:
            continue
        yield record.changed(log_start_offset=held.log_start_offset)


def _ends_above(segment: Segment, offset: int) -> bool:
    """Return whether a segment ends above an offset; one that is not sealed has no end yet."""
    start = max(offset, segment.log_start_offset)
    return segment.state is not SegmentState.SEALED or segment.end_offset > start
