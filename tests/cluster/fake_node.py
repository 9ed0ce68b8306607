"""A scripted storage node: speaks to a real coordinator, holds offsets instead of bytes."""

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field

from icecore.errors import IcecoreError
from icecore.model import PROTOCOL_VERSION, NodeInfo, Segment, SegmentState
from icecore.rpc.convert import segment_from_proto
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.ports import CallContext, ClientStream, Handlers, Server
from icecore.v1 import coordinator_pb2 as pb
from icecore_replication.producers import snapshot_digest

COORDINATOR = "/icecore.v1.CoordinatorService/"
NODE = "/icecore.v1.NodeService/"


def digest_of(segment_id: int, end_offset: int) -> bytes:
    """Return the digest that every replica of a segment has at this end offset."""
    return hashlib.sha256(f"{segment_id}:{end_offset}".encode()).digest()


def length_of(end_offset: int) -> int:
    """Bytes that every replica has below an end."""
    return 128 * end_offset


@dataclass
class Held:
    """One replica."""

    end_offset: int = 0
    intact: bool = True
    promised_epoch: int = 0
    is_sealed: bool = False
    producer_snapshot: bytes = b""
    """The producer snapshot that it was opened with."""


@dataclass
class FakeNode:
    """Registers, heartbeats, answers NodeService; tests move ``held`` and read ``assignments``."""

    node_id: int
    coordinator: str
    rack: str = ""
    held: dict[int, Held] = field(default_factory=dict)
    assignments: dict[int, Segment] = field(default_factory=dict)
    nodes: dict[int, NodeInfo] = field(default_factory=dict)
    deletes: set[int] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    rolls: list[tuple[int, str]] = field(default_factory=list)
    refuses_open: bool = False
    refuses_confirm: bool = False
    sealing: set[int] = field(default_factory=set)
    """Segments that this node leads and has asked to seal."""
    incarnation: int = 0
    cluster_id: bytes = b""
    last_coordinator_epoch: int = 0
    disk_id: bytes = b""
    protocol_version: int = PROTOCOL_VERSION
    producer_snapshot: bytes = b"snapshot"
    """The producer snapshot that the node reports at the end of any segment."""
    written_max: int = 512
    """Number of producer states that fit into one of its answers."""

    async def start(self) -> None:
        """Serve, register, heartbeat; returns after the first full push."""
        self.net = GrpcNet()
        self.disk_id = self.disk_id or self.node_id.to_bytes(16, "big")
        handlers = {"Fence": self.fence, "Open": self.open, "WriteBack": self.write_back}
        unary = {NODE + name: handler for name, handler in handlers.items()}
        unary[NODE + "Roll"] = self.roll
        unary[NODE + "CheckSeal"] = self.check_seal
        self.server: Server = await self.net.serve("127.0.0.1:0", Handlers(unary, {}))
        request = pb.RegisterRequest(
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            disk_id=self.disk_id,
            incarnation=self.incarnation,
            address=self.server.address,
            rack=self.rack,
            protocol_version=self.protocol_version,
            segments=[
                pb.SegmentInventory(
                    segment_id=each,
                    durable_end_offset=held.end_offset,
                    sealed=held.is_sealed,
                    intact=held.intact,
                )
                for each, held in self.held.items()
            ],
        )
        answer = pb.RegisterResponse.FromString(
            await self.call("Register", request.SerializeToString())
        )
        self.incarnation, self.cluster_id = answer.incarnation, answer.cluster_id
        self.was_unknown = answer.disk_unknown
        self.delete_at_register = list(answer.delete_segment_ids)
        self.full = asyncio.Event()
        self.task = asyncio.create_task(self.run())
        await asyncio.wait_for(self.full.wait(), 30)

    async def call(self, method: str, body: bytes) -> bytes:
        return await self.net.call(self.coordinator, COORDINATOR + method, body, timeout_s=30)

    async def run(self) -> None:
        """Keep a heartbeat stream up for ever."""
        while True:
            stream = self.net.open_stream(self.coordinator, COORDINATOR + "Heartbeat")
            heartbeats = asyncio.create_task(self.heartbeat(stream))
            try:
                while (body := await stream.read()) is not None:
                    self.take(pb.HeartbeatResponse.FromString(body))
            except IcecoreError:
                await asyncio.sleep(0.1)
            finally:
                heartbeats.cancel()
                stream.cancel()

    async def heartbeat(self, stream: ClientStream) -> None:
        sequence = 0
        with contextlib.suppress(IcecoreError):
            while True:
                sequence += 1
                request = pb.HeartbeatRequest(
                    cluster_id=self.cluster_id,
                    node_id=self.node_id,
                    incarnation=self.incarnation,
                    sequence=sequence,
                    disk_id=self.disk_id,
                    led=[
                        pb.LedHighWatermark(
                            segment_id=each,
                            high_watermark=self.held[each].end_offset,
                            length_bytes=length_of(self.held[each].end_offset),
                        )
                        for each, segment in self.assignments.items()
                        if segment.leader == self.node_id and each in self.held
                    ],
                )
                await stream.write(request.SerializeToString())
                await asyncio.sleep(0.1)

    def take(self, push: pb.HeartbeatResponse) -> None:
        self.last_coordinator_epoch = push.coordinator_epoch
        for each in push.assignments:
            segment = segment_from_proto(each)
            known = self.assignments.get(segment.segment_id)
            if known is None or segment.version > known.version:
                self.assignments[segment.segment_id] = segment
        for node in push.nodes:
            self.nodes[node.node_id] = NodeInfo(node.node_id, node.address, node.incarnation)
        self.deletes.update(push.delete_segment_ids)
        if push.full:
            self.full.set()

    async def kill(self) -> None:
        """As SIGKILL: stream and server are gone, ``held`` stays on disk."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.server.stop(0)
        await self.net.close()

    # --- NodeService ------------------------------------------------------------------------------

    async def fence(self, body: bytes, _: CallContext) -> bytes:
        self.calls.append("Fence")
        response = pb.FenceResponse(incarnation=self.incarnation)
        for each in pb.FenceRequest.FromString(body).segments:
            held = self.held.get(each.segment_id)
            if held is None:
                response.replicas.add(intact=False)
                continue
            held.promised_epoch = max(held.promised_epoch, each.epoch)
            response.replicas.add(
                intact=held.intact,
                durable_end_offset=held.end_offset,
                digest=digest_of(each.segment_id, held.end_offset),
                max_known_high_watermark=0,
            )
        return response.SerializeToString()

    async def open(self, body: bytes, _: CallContext) -> bytes:
        self.calls.append("Open")
        response = pb.OpenResponse(incarnation=self.incarnation)
        for each in pb.OpenRequest.FromString(body).segments:
            assert each.segment.state == SegmentState.PREPARED
            if self.refuses_open or (self.refuses_confirm and each.confirm):
                response.errors.add(reason="OUT_OF_SPACE", message="full")
                continue
            held = self.held.setdefault(each.segment.segment_id, Held())
            if each.confirm:
                held.end_offset = each.segment.base_offset
                held.producer_snapshot = each.producer_snapshot
            response.errors.add()
        return response.SerializeToString()

    async def write_back(self, body: bytes, _: CallContext) -> bytes:
        self.calls.append("WriteBack")
        response = pb.WriteBackResponse(incarnation=self.incarnation)
        for at, each in enumerate(pb.WriteBackRequest.FromString(body).segments):
            if at >= self.written_max:
                response.results.add().error.reason = "THROTTLED"
                continue
            held = self.held.setdefault(each.segment.segment_id, Held())
            held.end_offset = each.end_offset
            held.is_sealed = each.seal
            response.results.add(
                seal_digest=digest_of(each.segment.segment_id, each.end_offset),
                producer_snapshot=self.producer_snapshot,
                producer_digest=snapshot_digest(self.producer_snapshot),
                max_append_timestamp_ms=7,
                length_bytes=length_of(each.end_offset),
            )
        return response.SerializeToString()

    async def roll(self, body: bytes, _: CallContext) -> bytes:
        request = pb.RollRequest.FromString(body)
        response = pb.RollResponse(incarnation=self.incarnation)
        for each in request.segments:
            self.rolls.append((each.segment_id, request.why))
            response.errors.add()
        return response.SerializeToString()

    async def check_seal(self, body: bytes, _: CallContext) -> bytes:
        self.calls.append("CheckSeal")
        response = pb.CheckSealResponse(incarnation=self.incarnation)
        for each in pb.CheckSealRequest.FromString(body).segments:
            held = self.held.get(each.segment_id)
            if held is None:
                response.replicas.add().error.reason = "NOT_REPLICA"
                continue
            response.replicas.add(
                durable_end_offset=held.end_offset,
                seal_digest=digest_of(each.segment_id, held.end_offset),
                producer_digest=snapshot_digest(self.producer_snapshot),
                high_watermark=held.end_offset,
                sealing=each.segment_id in self.sealing,
                length_bytes=length_of(held.end_offset),
            )
        return response.SerializeToString()

    # --- what a leader does -----------------------------------------------------------------------

    async def seal(self, segment: Segment, end_offset: int) -> pb.SealResult:
        """PrepareSuccessor and Seal, as a live leader."""
        common = {
            "cluster_id": self.cluster_id,
            "node_id": self.node_id,
            "incarnation": self.incarnation,
        }
        ref = pb.SegmentRef(segment_id=segment.segment_id, epoch=segment.epoch)
        prepare = pb.PrepareSuccessorRequest(**common, segments=[ref])
        body = await self.call("PrepareSuccessor", prepare.SerializeToString())
        [prepared] = pb.PrepareSuccessorResponse.FromString(body).results
        assert not prepared.error.reason, prepared.error
        seal = pb.SegmentSeal(
            segment_id=segment.segment_id,
            epoch=segment.epoch,
            version=segment.version,
            end_offset=end_offset,
            seal_digest=digest_of(segment.segment_id, end_offset),
            replicas=segment.isr,
            successor_segment_id=prepared.successor_segment_id,
            producer_snapshot=self.producer_snapshot,
            producer_digest=snapshot_digest(self.producer_snapshot),
            max_append_timestamp_ms=5,
            length_bytes=length_of(end_offset),
        )
        self.sealing.add(segment.segment_id)
        request = pb.SealRequest(**common, seals=[seal])
        answer = await self.call("Seal", request.SerializeToString())
        [result] = pb.SealResponse.FromString(answer).results
        return result
