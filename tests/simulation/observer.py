"""Reads everything from every replica at the end, with nothing between it and the wire.

The clients under test have caches, retries and opinions; this reader asks one node for one segment
and reports exactly what came back.
"""

import asyncio
import hashlib
from collections.abc import Container
from dataclasses import dataclass, field

from icecore.codec import batch, row_group
from icecore.codec.columns import Record
from icecore.codec.decoding import decode
from icecore.errors import (
    IcecoreError,
    NotCoordinatorError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.model import NodeState, Segment, SegmentState
from icecore.rpc import convert, framing
from icecore.rpc.ports import Net
from icecore.v1 import admin_pb2, data_pb2
from tests.simulation.history import History, SegmentSeen

CALL_TIMEOUT_S = 5.0


@dataclass(slots=True)
class ReplicaContent:
    """The content that one node returns of one segment."""

    node_id: int
    records: list[tuple[int, bytes]] = field(default_factory=list)
    digest: bytes = b""
    high_watermark: int = 0


class Observer:
    """Talks to the coordinator and to single nodes.

    Args:
        net: Of the observer's own process.
        coordinators: Their addresses.
    """

    def __init__(self, net: Net, coordinators: str) -> None:
        self._net = net
        self._coordinators = coordinators.split(",")

    async def _admin(self, method: str, body: bytes) -> bytes:
        """Ask one after the other; who acts comes first the next time."""
        for _ in self._coordinators[1:]:
            try:
                return await self._ask(method, body)
            except (NotCoordinatorError, UnavailableError, RequestTimeoutError):
                self._coordinators.append(self._coordinators.pop(0))
        return await self._ask(method, body)

    async def _ask(self, method: str, body: bytes) -> bytes:
        path = f"/icecore.v1.AdminService/{method}"
        return await self._net.call(self._coordinators[0], path, body, timeout_s=CALL_TIMEOUT_S)

    async def segments(self, topic: str) -> list[Segment]:
        """All segment records of a topic that hold data or may, by partition and base offset."""
        found: list[Segment] = []
        after = 0
        while True:
            request = admin_pb2.ListSegmentsRequest(topic=topic, after_segment_id=after)
            body = await self._admin("ListSegments", request.SerializeToString())
            answer = admin_pb2.ListSegmentsResponse.FromString(body)
            found += [convert.segment_from_proto(each) for each in answer.segments]
            if not answer.more:
                return sorted(found, key=lambda each: (each.partition, each.base_offset))
            after = answer.segments[-1].segment_id

    async def addresses(self) -> dict[int, str]:
        """Return the addresses of all nodes that are up."""
        body = await self._admin("GetMetadata", admin_pb2.GetMetadataRequest().SerializeToString())
        messages = admin_pb2.GetMetadataResponse.FromString(body).nodes
        nodes = [convert.node_from_proto(message) for message in messages]
        return {node.node_id: node.address for node in nodes if node.state is NodeState.UP}

    async def settled(self, topic: str, nodes: int, excused: Container[int] = ()) -> str:
        """Empty when the cluster is whole: all nodes are up, every partition has a complete active
        segment and every sealed segment has all its copies; else what is missing.

        Args:
            topic: The only topic.
            nodes: How many there are.
            excused: Segments that may be unavailable.
        """
        up = await self.addresses()
        if len(up) < nodes:
            return f"only nodes {sorted(up)} are up"
        segments = await self.segments(topic)
        if not segments:
            return "no segments"
        for segment in segments:
            if segment.segment_id in excused or segment.is_skipped or segment.is_remote_only:
                continue
            wanted = segment.settings.replication_factor
            if segment.state is SegmentState.RECOVERING:
                return f"segment {segment.segment_id} is being recovered"
            copies = segment.isr if segment.state is SegmentState.ACTIVE else segment.replicas
            if len(copies) < wanted and segment.state is not SegmentState.PREPARED:
                name = segment.state.name
                return f"{name} segment {segment.segment_id} has {copies} of {wanted} copies"
        partitions = {segment.partition for segment in segments}
        active = {
            each.partition
            for each in segments
            if each.state is SegmentState.ACTIVE or each.segment_id in excused
        }
        if partitions != active:
            return f"partitions without an active segment: {sorted(partitions - active)}"
        return ""

    async def unavailable(self, topic: str, undecided: Container[int]) -> list[Segment]:
        """Segments that the coordinator has described as undecidable, or as down to a damaged last
        copy, and that still are not what they should be."""
        return [
            each
            for each in await self.segments(topic)
            if each.segment_id in undecided
            and (each.state is SegmentState.RECOVERING or len(each.replicas) <= 1)
        ]

    async def read_replica(self, address: str, node_id: int, segment: Segment) -> ReplicaContent:
        """Everything one node returns of one segment, up to its watermark.

        Raises:
            IcecoreError: What the node answers, also inside of a FetchPartitionResult.
        """
        content = ReplicaContent(node_id)
        offset = max(segment.base_offset, segment.log_start_offset)
        digest = hashlib.sha256()
        while True:
            result, batches = await self._fetch(address, segment, offset)
            content.high_watermark = result.high_watermark
            for position, header in batch.iter_batches(batches):
                batch.verify_producer_crc(batches, position, header)
                digest.update(batches[position : position + header.batch_length])
                for each in _records(batches, position, header):
                    if each.offset >= offset:
                        content.records.append((each.offset, each.value or b""))
            ends = segment.end_offset if segment.state is SegmentState.SEALED else None
            if result.next_offset == offset or result.next_offset == ends:
                break
            offset = result.next_offset
        content.digest = digest.digest()
        return content

    async def _fetch(
        self, address: str, segment: Segment, offset: int
    ) -> tuple[data_pb2.FetchPartitionResult, memoryview]:
        request = data_pb2.FetchRequest(
            header=data_pb2.FetchHeader(
                max_bytes=1 << 20,
                takes_row_groups=segment.segment_id % 2 == 0,  # some of each
                partitions=[
                    data_pb2.FetchPartition(
                        topic_id=segment.topic_id,
                        partition=segment.partition,
                        offset=offset,
                        segment_id=segment.segment_id,
                    )
                ],
            )
        )
        body = await self._net.call(
            address,
            "/icecore.v1.DataService/Fetch",
            request.SerializeToString(),
            timeout_s=CALL_TIMEOUT_S,
        )
        raw, batches = framing.split_bulk(body, data_pb2.FetchResponse)
        result = data_pb2.FetchResponseHeader.FromString(raw).partitions[0]
        error = convert.error_from_proto(result.error)
        if error is not None:
            raise error
        return result, batches

    async def read_everything(self, topic: str, history: History) -> list[str]:
        """Fill ``final``, ``segments`` and ``log_start`` of a history, from one moment: again when
        a segment was sealed meanwhile.

        Returns:
            What could not be read although it should: one line per replica.
        """
        problems = ["segments change without end"]
        for _ in range(5):
            listed = await self.segments(topic)
            problems = await self._read_listed(topic, listed, history)
            if listed == await self.segments(topic):
                break
        return problems

    async def _read_listed(self, topic: str, listed: list[Segment], history: History) -> list[str]:
        problems: list[str] = []
        addresses = await self.addresses()
        history.final.clear()
        history.segments.clear()
        for segment in listed:
            if segment.state not in (SegmentState.ACTIVE, SegmentState.SEALED):
                continue
            partition = (topic, segment.partition)
            start = max(segment.log_start_offset, history.log_start.get(partition, 0))
            history.log_start[partition] = start
            if history.is_unavailable(partition, segment.base_offset):
                self._note(segment, [], history, problems)
                continue
            copies: list[ReplicaContent] = []
            for node_id in segment.holders:
                try:
                    copies.append(await self._read_patiently(addresses[node_id], node_id, segment))
                except (IcecoreError, KeyError) as error:
                    where = f"segment {segment.segment_id} on node {node_id}"
                    problems.append(f"{where} can't be read: {error!r}")
            self._note(segment, copies, history, problems)
        return problems

    async def _read_patiently(self, address: str, node_id: int, segment: Segment) -> ReplicaContent:
        """A replica may lag for a moment: its watermark comes with the next message."""
        for _ in range(5):
            try:
                return await self.read_replica(address, node_id, segment)
            except IcecoreError:
                await asyncio.sleep(0.2)
        return await self.read_replica(address, node_id, segment)

    @staticmethod
    def _note(
        segment: Segment, copies: list[ReplicaContent], history: History, problems: list[str]
    ) -> None:
        partition = (segment.topic, segment.partition)
        longest: list[tuple[int, bytes]] = []
        for copy in copies:
            shorter, longer = sorted((copy.records, longest), key=len)
            if longer[: len(shorter)] != shorter:
                where = f"segment {segment.segment_id} on node {copy.node_id}"
                problems.append(f"{where} is no prefix of another copy")
            longest = longer
        history.final.setdefault(partition, []).extend(longest)
        sealed = segment.state is SegmentState.SEALED
        # Of rows each reader makes batches of its own: the records are compared above, and nothing
        # else is promised.
        has_files = sealed and not segment.is_remote_only
        seen = SegmentSeen(
            segment.segment_id,
            partition,
            segment.base_offset,
            segment.end_offset if sealed else -1,
            tuple((f"node-{copy.node_id}", copy.digest) for copy in copies) if has_files else (),
        )
        history.segments.append(seen)


def _records(data: memoryview, position: int, header: batch.BatchHeader) -> list[Record]:
    if header.leader_flags & batch.LeaderFlag.ROW_GROUP:
        return row_group.decode(data, position, header).to_records("", 0)
    return decode(data, position, header).to_records(header.base_offset)
