"""A client that sends exactly what a test says, for input that our own client would never send."""

import asyncio
from types import TracebackType
from typing import Any, Self

from google.protobuf.message import Message

from icecore.codec import record
from icecore.rpc import framing
from icecore.rpc.grpc_net import GrpcNet
from icecore.v1 import admin_pb2, data_pb2


class RawClient:
    """Calls by message; use as an async context manager.

    Args:
        bootstrap: The coordinator's address.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._net = GrpcNet()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._net.close()

    async def call(self, address: str, method: str, request: Any, timeout_s: float = 30.0) -> bytes:
        """One call; ``request`` is a message or a body as it is."""
        body = request.SerializeToString() if isinstance(request, Message) else request
        return await self._net.call(address, f"/icecore.v1.{method}", body, timeout_s=timeout_s)

    async def create_topic(self, name: str, **settings: Any) -> admin_pb2.TopicDescription:
        """Create a topic and wait until every partition has a leader that knows of it."""
        request = admin_pb2.CreateTopicRequest(
            name=name, settings=admin_pb2.TopicSettings(**settings)
        )
        body = await self.call(self.bootstrap, "AdminService/CreateTopic", request)
        topic = admin_pb2.CreateTopicResponse.FromString(body).topic
        await self.leader(name, 0)
        return topic

    async def metadata(self, topic: str) -> admin_pb2.GetMetadataResponse:
        """Return the metadata that clients see of a topic."""
        request = admin_pb2.GetMetadataRequest(topics=[topic])
        body = await self.call(self.bootstrap, "AdminService/GetMetadata", request)
        return admin_pb2.GetMetadataResponse.FromString(body)

    async def leader(self, topic: str, partition: int) -> str:
        """Address of a partition's leader, once there is one."""
        for _ in range(1200):
            metadata = await self.metadata(topic)
            addresses = {node.node_id: node.address for node in metadata.nodes}
            leader = metadata.topics[0].partitions[partition].leader
            if leader:
                return addresses[leader]
            await asyncio.sleep(0.05)
        raise AssertionError(f"no leader of {topic}/{partition}")

    async def produce(
        self, address: str, topic: str, *batches: bytes, partition: int = 0, **header: Any
    ) -> data_pb2.ProduceResponse:
        """Batches as they are, one entry each."""
        entries = [
            data_pb2.ProducePartition(topic=topic, partition=partition, batch_length=len(batch))
            for batch in batches
        ]
        head = data_pb2.ProduceHeader(partitions=entries, **header)
        body = framing.frame_bulk(head.SerializeToString(), batches)
        return data_pb2.ProduceResponse.FromString(
            await self.call(address, "DataService/Produce", body)
        )

    async def fetch(
        self, address: str, topic: str, offset: int, *, partition: int = 0, **header: Any
    ) -> data_pb2.FetchResponseHeader:
        """The header of a fetch of plain records of one partition."""
        header.setdefault("max_bytes", 1 << 20)
        request = data_pb2.FetchRequest(
            header=data_pb2.FetchHeader(
                as_records=True,
                partitions=[
                    data_pb2.FetchPartition(topic=topic, partition=partition, offset=offset)
                ],
                **header,
            )
        )
        body = await self.call(address, "DataService/Fetch", request)
        head, _ = framing.split_bulk(body, data_pb2.FetchResponse)
        return data_pb2.FetchResponseHeader.FromString(head)


def batch_of(*values: bytes, **fields: Any) -> bytes:
    """A produced batch without keys."""
    return record.encode_columns(values=list(values), timestamps_ms=[1] * len(values), **fields)
