"""One produce request: encoded batches of many partitions, sent to the node that leads them.

A call ends with its answer, with its deadline, or when it makes no sense to wait: beside each call
the cluster is asked every second whether all its partitions have another leader by now.
"""

import asyncio
from typing import Any, TypeAlias, cast

from icecore.client.batches import Batch, PartitionQueue
from icecore.client.connection import Connection, share
from icecore.client.metadata import Metadata
from icecore.errors import IcecoreError, InternalError, LeaderLostError, NotLeaderError
from icecore.model import Acks
from icecore.rpc import framing
from icecore.rpc.methods import DATA
from icecore.v1 import data_pb2

_WATCH_S = 1.0
_ANSWER_GRACE_S = 5.0

Entry: TypeAlias = tuple[PartitionQueue, list[Batch]]
"""Encoded batches of one partition, oldest first."""


class ProduceCalls:
    """Makes the calls of one producer.

    Args:
        connection: The way to the cluster.
        metadata: Where nodes are, and who leads what.
        acks: When leaders answer.
        request_timeout_ms: How long leaders wait for replicas.
    """

    def __init__(
        self, connection: Connection, metadata: Metadata, acks: Acks, request_timeout_ms: int
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._acks = acks
        self._request_timeout_ms = request_timeout_ms

    async def produce(
        self, node_id: int, entries: list[Entry]
    ) -> tuple[list[data_pb2.ProducePartitionResult], int]:
        """One ProducePartitionResult per batch, and for how many ms to hold back.

        Raises:
            LeaderLostError: All of these partitions have another leader, or another topic.
            IcecoreError: What the call ended with.
        """
        address = self._metadata.view.address(node_id)
        if address is None:
            raise NotLeaderError(f"the address of node {node_id} is unknown")
        header = data_pb2.ProduceHeader(
            cluster_id=self._metadata.view.cluster_id,
            acks=cast(Any, int(self._acks)),
            timeout_ms=self._request_timeout_ms,
        )
        buffers: list[bytes] = []
        for queue, batches in entries:
            for batch in batches:
                assert batch.encoded is not None
                buffers.append(batch.encoded)
                header.partitions.add(
                    topic_id=queue.topic_id,
                    partition=queue.partition,
                    batch_length=len(batch.encoded),
                )
        body = framing.frame_bulk(header.SerializeToString(), buffers)
        call = share(
            self._connection.net.call(
                address,
                DATA["Produce"],
                body,
                timeout_s=self._request_timeout_ms / 1000 + _ANSWER_GRACE_S,
            )
        )
        try:
            await self._watch(call, node_id, entries)
        finally:
            call.cancel()
        answer = framing.parse(data_pb2.ProduceResponse, call.result())
        if len(answer.partitions) != len(buffers):
            raise InternalError(f"node {node_id} answered {len(answer.partitions)} entries")
        return list(answer.partitions), answer.throttle_ms

    async def _watch(
        self, call: "asyncio.Future[bytes]", node_id: int, entries: list[Entry]
    ) -> None:
        """Wait for the answer, but not for a node that hangs and has lost its partitions."""
        while not call.done():
            await asyncio.wait({call}, timeout=_WATCH_S)
            if call.done():
                return
            try:
                await self._metadata.refresh()
            except IcecoreError:
                continue  # no coordinator either: only the call's own deadline ends this
            if all(self._is_led_elsewhere(queue, node_id) for queue, _ in entries):
                raise LeaderLostError(f"node {node_id} does not answer and leads no more")

    def _is_led_elsewhere(self, queue: PartitionQueue, node_id: int) -> bool:
        found = self._metadata.view.partition(queue.topic, queue.partition)
        has_other = found is not None and found.leader not in (0, node_id)
        return has_other or self._metadata.recreated(queue.topic, queue.topic_id) is not None
