"""A client that can reach every port, and knows what everyone may ask; it pretends to be a peer.

Its messages are what a forger or a broken peer would send. Each call answers with the error it
got, or None; what must hold whatever they answer is the tests' business.
"""

from dataclasses import dataclass
from typing import Any

from icecore.codec import batch, chain
from icecore.errors import IcecoreError, NotReplicaError
from icecore.rpc import framing
from icecore.rpc.ports import Net
from icecore.v1 import admin_pb2, replication_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_replication.producers import ProducerTable

NOBODY = "127.0.0.1:9"
FORGED = b"\x66" * 32
FORGED_FULL = b"\x01" + FORGED
"""A full digest: the format's number comes first."""


@dataclass
class Known:
    """The facts that anyone can learn of a topic's first partition."""

    cluster_id: bytes
    coordinator_epoch: int
    segment: pb.SegmentAssignment
    """The tail."""
    sealed: list[pb.SegmentAssignment]
    nodes: dict[int, Any]

    @property
    def leader(self) -> Any:
        return self.nodes[self.segment.leader]

    @property
    def replicas(self) -> list[Any]:
        return [self.nodes[each] for each in self.segment.replicas]


class Stranger:
    """Forged calls by name."""

    def __init__(self, net: Net, bootstrap: str) -> None:
        self._net = net
        self._bootstrap = bootstrap
        self._incarnations: dict[str, tuple[int, int]] = {}
        """(node id, incarnation) by address."""

    async def _ask(self, address: str, method: str, request: Any) -> bytes:
        if method.startswith("NodeService/") and "incarnation" in request.DESCRIPTOR.fields_by_name:
            # As everybody may know it.
            request.node_id, request.incarnation = self._incarnations.get(address, (0, 0))
        body: bytes = request.SerializeToString()
        return await self._net.call(address, f"/icecore.v1.{method}", body, timeout_s=20.0)

    async def say(self, address: str, method: str, request: Any) -> IcecoreError | None:
        """One call to anybody; its error."""
        try:
            await self._ask(address, method, request)
        except IcecoreError as error:
            return error
        return None

    async def look(self, topic: str) -> Known:
        """Read what is public."""
        call = admin_pb2.GetMetadataRequest(topics=[topic])
        body = await self._ask(self._bootstrap, "AdminService/GetMetadata", call)
        metadata = admin_pb2.GetMetadataResponse.FromString(body)
        call_list = admin_pb2.ListSegmentsRequest(topic=topic)
        body = await self._ask(self._bootstrap, "AdminService/ListSegments", call_list)
        segments = list(admin_pb2.ListSegmentsResponse.FromString(body).segments)
        call_cluster = admin_pb2.DescribeClusterRequest()
        body = await self._ask(self._bootstrap, "AdminService/DescribeCluster", call_cluster)
        coordinator_epoch = admin_pb2.DescribeClusterResponse.FromString(body).coordinator_epoch
        nodes = {each.node_id: each for each in metadata.nodes}
        self._incarnations = {
            each.address: (each.node_id, each.incarnation) for each in metadata.nodes
        }
        return Known(metadata.cluster_id, coordinator_epoch, segments[-1], segments[:-1], nodes)

    # --- to the coordinator ---------------------------------------------------------------------

    async def seal(self, known: Known, end_offset: int) -> str:
        """As the leader of the tail: it ends here. The reason of the refusal, empty when stored."""
        segment = known.segment
        common = {
            "cluster_id": known.cluster_id,
            "node_id": segment.leader,
            "incarnation": segment.leader_incarnation,
        }
        ref = pb.SegmentRef(segment_id=segment.segment_id, epoch=segment.epoch)
        prepare = pb.PrepareSuccessorRequest(**common, segments=[ref])
        body = await self._ask(self._bootstrap, "CoordinatorService/PrepareSuccessor", prepare)
        [prepared] = pb.PrepareSuccessorResponse.FromString(body).results
        producers = ProducerTable()
        seal = pb.SegmentSeal(
            segment_id=segment.segment_id,
            epoch=segment.epoch,
            version=segment.version,
            end_offset=end_offset,
            seal_digest=bytes(32),
            replicas=segment.isr,
            successor_segment_id=prepared.successor_segment_id,
            producer_snapshot=producers.snapshot(),
            producer_digest=producers.digest(),
        )
        request = pb.SealRequest(**common, seals=[seal])
        body = await self._ask(self._bootstrap, "CoordinatorService/Seal", request)
        [result] = pb.SealResponse.FromString(body).results
        return str(result.error.reason)

    async def report_digests(self, known: Known, segment_id: int, node_id: int) -> None:
        """As any node: the full digest is this one."""
        digest = pb.FullDigest(segment_id=segment_id, full_digest=FORGED_FULL)
        request = pb.ReportDigestsRequest(
            cluster_id=known.cluster_id,
            node_id=node_id,
            incarnation=known.nodes[node_id].incarnation,
            digests=[digest],
        )
        await self.say(self._bootstrap, "CoordinatorService/ReportDigests", request)

    async def register(
        self, known: Known, node_id: int, address: str = NOBODY, **fields: Any
    ) -> tuple[int, IcecoreError | None]:
        """As a node with another disk; the incarnation that it got."""
        request = pb.RegisterRequest(
            **{
                "cluster_id": known.cluster_id,
                "node_id": node_id,
                "disk_id": FORGED[:16],
                "address": address,
                "protocol_version": 1,
                **fields,
            }
        )
        try:
            body = await self._ask(self._bootstrap, "CoordinatorService/Register", request)
        except IcecoreError as error:
            return 0, error
        return pb.RegisterResponse.FromString(body).incarnation, None

    async def heartbeat(self, known: Known, node_id: int, incarnation: int, **fields: Any) -> bool:
        """One heartbeat as a node, without its disk id unless the fields say it; whether it was
        answered."""
        stream = self._net.open_stream(self._bootstrap, "/icecore.v1.CoordinatorService/Heartbeat")
        request = pb.HeartbeatRequest(
            cluster_id=known.cluster_id,
            node_id=node_id,
            incarnation=incarnation,
            sequence=1,
            **fields,
        )
        try:
            await stream.write(request.SerializeToString())
            return await stream.read() is not None
        except IcecoreError:
            return False
        finally:
            stream.cancel()

    # --- to nodes -------------------------------------------------------------------------------

    async def fence(
        self, known: Known, address: str, *, coordinator_epoch: int = 0, epoch: int | None = None
    ) -> IcecoreError | None:
        """As the coordinator: promise this epoch for the tail; no epoch = no segment either."""
        refs = []
        if epoch is not None:
            refs = [pb.SegmentRef(segment_id=known.segment.segment_id, epoch=epoch)]
        request = pb.FenceRequest(
            cluster_id=known.cluster_id,
            coordinator_epoch=coordinator_epoch or known.coordinator_epoch,
            segments=refs,
        )
        return await self.say(address, "NodeService/Fence", request)

    async def write_back(
        self, known: Known, address: str, segment: pb.SegmentAssignment, **fields: Any
    ) -> str:
        """As the coordinator: this is what the segment is to be. The reason of the refusal."""
        item = pb.WriteBackSegment(segment=segment, **fields)
        request = pb.WriteBackRequest(
            cluster_id=known.cluster_id, coordinator_epoch=known.coordinator_epoch, segments=[item]
        )
        try:
            body = await self._ask(address, "NodeService/WriteBack", request)
        except IcecoreError as error:
            return error.reason
        [result] = pb.WriteBackResponse.FromString(body).results
        return str(result.error.reason)

    async def first_batch(self, known: Known, address: str) -> tuple[int, bytes]:
        """Return the end of the tail's first batch, and the true seal digest there. Anyone who may
        read these bytes can hash them. Raises IcecoreError when there is none."""
        segment = known.segment
        request = replication_pb2.ReadSegmentRequest(
            cluster_id=known.cluster_id,
            segment_id=segment.segment_id,
            start_offset=segment.base_offset,
            end_offset=1 << 62,
            max_bytes=1,
        )
        body = await self._ask(address, "ReplicationService/ReadSegment", request)
        _, data = framing.split_bulk(body, replication_pb2.ReadSegmentResponse)
        seed = chain.segment_seed(
            known.cluster_id,
            segment.topic_id,
            segment.partition,
            segment.segment_id,
            segment.base_offset,
            segment.epoch,
        )
        found = next(iter(batch.iter_batches(data)), None)
        if found is None:
            raise NotReplicaError(f"segment {segment.segment_id} has no batch yet")
        position, header = found
        stamped = bytes(data[position : position + batch.HEADER_LENGTH])
        return header.end_offset, chain.digest_step(chain.digest_seed(seed), stamped)
