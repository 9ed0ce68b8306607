"""A cluster in a few hundred lines: one coordinator, some nodes, logs in lists, over a real net.

It keeps what the client relies on (sequences, segments, high watermark) and can be told to fail:
``on_produce`` decides the fate of each batch.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from icecore.codec import batch as batches
from icecore.codec.batch import BatchHeader, BatchLimits
from icecore.codec.decoding import check_columns
from icecore.errors import (
    IcecoreError,
    NotCoordinatorError,
    NotLeaderError,
    NotReplicaError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    TopicExistsError,
    UnknownTopicError,
)
from icecore.model import NodeInfo, Segment, SegmentState
from icecore.rpc import convert, framing
from icecore.rpc.addresses import native
from icecore.rpc.ports import CallContext, Handlers
from icecore.rpc.transports import Transports
from icecore.topic_settings import KEEP_ALL, SegmentSettings
from icecore.v1 import admin_pb2, data_pb2
from tests.support.fake_positions import FakePositions
from tests.support.fake_query import answer_query, only_matching

CLUSTER_ID = b"c" * 16


@dataclass
class Fate:
    """The fate of one produced batch: an error, before or after the batch is appended."""

    error: IcecoreError | None = None
    append: bool = True


@dataclass
class FakeSegment:
    record: Segment
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else self.record.base_offset


class FakePartition:
    def __init__(self, cluster: "FakeCluster", topic: str, number: int, leader: int) -> None:
        self.cluster, self.topic, self.number = cluster, topic, number
        self.segments: list[FakeSegment] = []
        self.log_start = 0
        self.left_out: tuple[tuple[int, int], ...] = ()
        self.sequences: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self.epochs: dict[int, int] = {}
        self.open(leader, (leader,))

    @property
    def tail(self) -> FakeSegment:
        return self.segments[-1]

    def open(self, leader: int, replicas: tuple[int, ...]) -> None:
        """Seal the tail, if there is one, and open the next segment."""
        base, number = 0, self.cluster.next_segment_id()
        if self.segments:
            base = self.tail.end
            self.tail.record = self.tail.record.changed(
                state=SegmentState.SEALED, end_offset=base, leader=0
            )
        record = Segment(
            number,
            self.cluster.topic_id(self.topic),
            self.topic,
            self.number,
            SegmentState.ACTIVE,
            epoch=number,
            base_offset=base,
            leader=leader,
            replicas=replicas,
            isr=replicas,
            settings=self.cluster.topic_settings[self.topic],
        )
        self.segments.append(FakeSegment(record))

    def drop_replicas(self, at: int, readers: tuple[int, ...]) -> None:
        """A sealed segment lies in object storage alone, where these nodes read it."""
        segment = self.segments[at]
        segment.record = segment.record.changed(replicas=(), is_tiered=True, readers=readers)

    def append(self, body: bytes, header: BatchHeader) -> tuple[int, bool]:
        """Base offset and whether the batch was there before."""
        recent = self.sequences[header.producer_id]
        if header.producer_epoch > self.epochs.get(header.producer_id, header.producer_epoch):
            recent.clear()
        first, end = header.base_sequence, header.base_sequence + header.record_count
        if header.producer_id:
            for known_first, known_end, base in recent:
                if (known_first, known_end) == (first, end):
                    return base, True
            expected = recent[-1][1] if recent else 0
            if first != expected:
                known = {"oldest": recent[0][0]} if recent else {}
                raise OutOfOrderSequenceError(
                    f"{expected} expected, got {first}", expected=expected, **known
                )
        base = self.tail.end
        record = self.tail.record
        stamped, _ = batches.stamp(
            body,
            0,
            header,
            segment_id=record.segment_id,
            epoch=record.epoch,
            base_offset=base,
            append_timestamp_ms=1000 + base,
            high_watermark=base,
            prev_header_crc32c=0,
        )
        recent.append((first, end, base))
        self.epochs[header.producer_id] = header.producer_epoch
        del recent[: -self.cluster.batches_kept]
        self.tail.batches.append(
            (base, base + header.record_count, stamped + body[batches.HEADER_LENGTH :])
        )
        return base, False


class FakeCluster:
    """Use as ``async with FakeCluster(nodes=2) as cluster``; topics are made by ``add_topic``.

    Args:
        nodes: So many.
        is_native: Nodes are called over the native transport, where requests keep their order.
        batches_kept: Of each producer, as leaders say.
    """

    def __init__(self, nodes: int = 1, *, is_native: bool = False, batches_kept: int = 5) -> None:
        self.net = Transports()
        self.batches_kept = batches_kept
        self._is_native = is_native
        self.topics: dict[str, list[FakePartition]] = {}
        self.times_made: Counter[str] = Counter()
        self.addresses: dict[int, str] = dict.fromkeys(range(1, nodes + 1), "")
        self.on_produce: Callable[[int, FakePartition, BatchHeader], Fate] = lambda *_: Fate()
        self.queries: list[data_pb2.QueryRequest] = []
        self.on_query: Callable[[int, data_pb2.QueryResponse], None] = lambda *_: None
        self.on_offsets: Callable[[data_pb2.ListOffsetsResponse], None] = lambda _: None
        self.before_call: Callable[[int, str], Any] | None = None
        self.calls: list[tuple[int, str]] = []
        self.held_fetches = 0
        """Fetches that waited for data at a node."""
        self.produce_sizes: list[int] = []
        self.settings: list[admin_pb2.TopicSettings] = []
        self.topic_settings: defaultdict[str, SegmentSettings] = defaultdict(SegmentSettings)
        self.earlier_partitions: dict[str, list[int]] = {}
        self.positions = FakePositions(self._name_of, lambda name: name in self.topics)
        self.bootstrap = ""
        self.ages_ms = Counter[str]()
        """The age that the answers of each method report, as those of nodes do, by method."""
        self._segment_ids = 0
        self._next_producer = 0
        self._servers: list[Any] = []
        self._appended = asyncio.Condition()

    async def __aenter__(self) -> Self:
        for number in self.addresses:
            address = native("127.0.0.1:0") if self._is_native else "127.0.0.1:0"
            server = await self.net.serve(address, self._node_handlers(number))
            self.addresses[number] = server.address
            self._servers.append(server)
        admin = {
            f"/icecore.v1.AdminService/{name}": getattr(self, f"_{name}")
            for name in ("GetMetadata", "ListSegments", "CreateTopic", "DescribeTopics")
        }
        admin |= self.positions.handlers()
        active = await self.net.serve("127.0.0.1:0", Handlers(admin, {}))
        standby = dict.fromkeys(admin, self._redirect)
        self._servers += [active, await self.net.serve("127.0.0.1:0", Handlers(standby, {}))]
        self._active = active.address
        self.bootstrap = f"{self._servers[-1].address},{active.address}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            await server.stop(0)
        await self.net.close()

    def next_segment_id(self) -> int:
        self._segment_ids += 1
        return self._segment_ids

    def add_topic(self, name: str, partitions: int = 1) -> list[FakePartition]:
        self.times_made[name] += 1
        self.topics[name], self.earlier_partitions[name] = [], []
        return self.add_partitions(name, partitions)

    def add_partitions(self, name: str, count: int) -> list[FakePartition]:
        """Add ``count`` partitions to a topic, and return the new ones."""
        nodes, found = list(self.addresses), self.topics[name]
        if found:
            self.earlier_partitions[name].append(len(found))
        numbers = range(len(found), len(found) + count)
        added = [FakePartition(self, name, n, nodes[n % len(nodes)]) for n in numbers]
        found += added
        return added

    def topic_id(self, name: str) -> bytes:
        """Another one each time that a topic of this name is made."""
        return f"{name:-<14}{self.times_made[name]:02}".encode()

    def _name_of(self, topic_id: bytes) -> str:
        return {self.topic_id(name): name for name in self.topics}.get(topic_id, "")

    def find(self, item: Any) -> FakePartition:
        names = {self.topic_id(name): name for name in self.topics}
        name = item.topic or names.get(item.topic_id, "")
        if name not in self.topics or item.partition >= len(self.topics[name]):
            raise UnknownTopicError(name)
        return self.topics[name][item.partition]

    # --- node -----------------------------------------------------------------------------------

    def _node_handlers(self, number: int) -> Handlers:
        def handler(method: Any) -> Any:
            async def run(body: bytes, _: CallContext) -> bytes:
                self.calls.append((number, method.__name__))
                if self.before_call is not None:
                    await self.before_call(number, method.__name__)
                return await method(number, body)

            return run

        methods = (
            self._Produce,
            self._Fetch,
            self._Query,
            self._ListOffsets,
            self._InitProducer,
        )
        names = {f"/icecore.v1.DataService/{m.__name__[1:]}": handler(m) for m in methods}
        return Handlers(names, {})

    async def _InitProducer(self, number: int, body: bytes) -> bytes:
        self._next_producer += 1
        return data_pb2.InitProducerResponse(producer_id=self._next_producer).SerializeToString()

    async def _Produce(self, number: int, body: bytes) -> bytes:
        raw, data = framing.split_bulk(body, data_pb2.ProduceRequest)
        request = framing.parse(data_pb2.ProduceHeader, raw)
        answer, at = data_pb2.ProduceResponse(), 0
        self.produce_sizes.append(len(request.partitions))
        for item in request.partitions:
            piece = bytes(data[at : at + item.batch_length])
            at += item.batch_length
            result = answer.partitions.add()
            try:
                self._append(number, item, piece, result)
            except IcecoreError as error:
                result.error.CopyFrom(convert.error_to_proto(error))
        async with self._appended:
            self._appended.notify_all()
        return answer.SerializeToString()

    def _append(self, number: int, item: Any, piece: bytes, result: Any) -> None:
        partition = self.find(item)
        if partition.tail.record.leader != number:
            raise NotLeaderError()
        header = batches.parse_header(piece)
        batches.verify_producer_crc(piece, 0, header)
        settings = partition.tail.record.settings
        limits = BatchLimits(
            settings.record_bytes_max, settings.batch_bytes_max, settings.uncompressed_bytes_max
        )
        batches.check_produced(piece, 0, limits)
        names = settings.indexed_headers
        check_columns(piece, 0, header, limits=limits, indexed_headers=names)
        fate = self.on_produce(number, partition, header)
        if fate.error is None or fate.append:
            base, result.duplicate = partition.append(piece, header)
            result.base_offset, result.durable_copies = base, 1
            result.batches_kept = self.batches_kept
            result.append_timestamp_ms = 1000 + base
        if fate.error is not None:
            raise fate.error

    async def _Fetch(self, number: int, body: bytes) -> bytes:
        request = data_pb2.FetchRequest.FromString(body).header
        loop = asyncio.get_running_loop()
        end = loop.time() + request.max_wait_ms / 1000
        while True:
            header = data_pb2.FetchResponseHeader(age_ms=self.ages_ms["Fetch"])
            data = list[bytes]()
            for item in request.partitions:
                result = header.partitions.add()
                try:
                    data += self._read(number, item, result)
                except IcecoreError as error:
                    result.error.CopyFrom(convert.error_to_proto(error))
            news = data or any(r.error.reason or r.segment_sealed for r in header.partitions)
            if news or loop.time() >= end:
                return framing.frame_bulk(header.SerializeToString(), data)
            self.held_fetches += 1
            try:
                async with asyncio.timeout(end - loop.time()), self._appended:
                    await self._appended.wait()
            except TimeoutError:
                end = 0

    def _read(self, number: int, item: Any, result: Any) -> list[bytes]:
        partition = self.find(item)
        high = partition.tail.end
        if not partition.log_start <= item.offset <= high:
            raise OffsetOutOfRangeError(log_start_offset=partition.log_start, high_watermark=high)
        named = [s for s in partition.segments if s.record.segment_id == item.segment_id]
        here = [s for s in partition.segments if number in s.record.replicas]
        here += [s for s in named if number in s.record.readers]
        for segment in here:
            record = segment.record
            is_tail = segment is partition.tail
            if record.base_offset <= item.offset and (item.offset < segment.end or is_tail):
                break
        else:
            raise NotReplicaError()
        if item.segment_id not in (0, record.segment_id):
            raise NotReplicaError()
        data: list[bytes] = []
        result.next_offset = item.offset
        for base, end, stored in segment.batches:
            if end > item.offset and (not data or sum(map(len, data)) < item.max_bytes):
                result.next_offset = end
                if item.HasField("filter"):
                    stored = only_matching(stored, item.filter)
                if stored:
                    data.append(stored)
                assert base <= item.offset or len(data) > 1 or item.HasField("filter")
        result.batches_length = sum(map(len, data))
        result.high_watermark, result.log_start_offset = high, partition.log_start
        result.segment_id = record.segment_id
        if record.state is SegmentState.SEALED:
            result.segment_sealed, result.sealed_end_offset = True, record.end_offset
            if result.next_offset == record.end_offset and record.replicas:
                following = partition.segments[partition.segments.index(segment) + 1].record
                result.successor_node_ids.extend(following.replicas)
        return data

    async def _Query(self, number: int, body: bytes) -> bytes:
        request = data_pb2.QueryRequest.FromString(body)
        self.queries.append(request)
        (asked,) = request.partitions
        item = data_pb2.FetchPartition(topic_id=request.topic_id, partition=asked.partition)
        answer = answer_query(self.find(item), number, request)
        self.on_query(number, answer)
        return answer.SerializeToString()

    async def _ListOffsets(self, number: int, body: bytes) -> bytes:
        answer = data_pb2.ListOffsetsResponse()
        for item in data_pb2.ListOffsetsRequest.FromString(body).partitions:
            partition, result = self.find(item), answer.partitions.add()
            result.offset, result.append_timestamp_ms = partition.tail.end, -1
            if item.WhichOneof("target") == "producers":
                asked, result.segment_id = item.producers, partition.tail.record.segment_id
                for producer, epoch in sorted(partition.epochs.items()):
                    if asked.first_id <= producer <= asked.last_id and epoch == asked.epoch:
                        recent = partition.sequences[producer]
                        result.producers.add(
                            producer_id=producer,
                            next_sequence=recent[-1][1],
                            oldest_sequence=recent[0][0],
                        )
            if item.earliest:
                result.offset = partition.log_start
            elif item.WhichOneof("target") == "timestamp_ms":
                for segment in partition.segments:
                    is_asked = item.segment_id in (0, segment.record.segment_id)
                    for base, _, _ in segment.batches:
                        is_here = is_asked and number in segment.record.holders
                        if is_here and not result.found and 1000 + base >= item.timestamp_ms:
                            result.offset, result.found = base, True
                            result.append_timestamp_ms = 1000 + base
        self.on_offsets(answer)
        return answer.SerializeToString()

    # --- coordinator ----------------------------------------------------------------------------

    async def _redirect(self, body: bytes, _: CallContext) -> bytes:
        raise NotCoordinatorError(address=self._active)

    async def _GetMetadata(self, body: bytes, _: CallContext) -> bytes:
        self.calls.append((0, "GetMetadata"))
        if self.before_call is not None:
            await self.before_call(0, "GetMetadata")
        request = admin_pb2.GetMetadataRequest.FromString(body)
        age_ms = self.ages_ms["GetMetadata"]
        answer = admin_pb2.GetMetadataResponse(cluster_id=CLUSTER_ID, age_ms=age_ms)
        for number, address in self.addresses.items():
            native_address = address if self._is_native else ""
            node = NodeInfo(number, address, 1, native_address=native_address)
            answer.nodes.append(convert.node_to_proto(node))
        for name in request.topics or self.topics:
            topic = answer.topics.add(name=name)
            if name not in self.topics:
                topic.error.CopyFrom(convert.error_to_proto(UnknownTopicError(name)))
                continue
            topic.topic_id = self.topic_id(name)
            topic.settings.CopyFrom(self._settings(name))
            topic.earlier_partitions.extend(self.earlier_partitions[name])
            for partition in self.topics[name]:
                record = partition.tail.record
                topic.partitions.add(
                    partition=partition.number,
                    log_start_offset=partition.log_start,
                    segment_id=record.segment_id,
                    epoch=record.epoch,
                    leader=record.leader,
                    replicas=record.replicas,
                    isr=record.isr,
                    tail_base_offset=record.base_offset,
                )
        return answer.SerializeToString()

    def _settings(self, name: str) -> admin_pb2.TopicSettings:
        return convert.settings_to_topic(
            self.topic_settings[name],
            partitions=len(self.topics[name]),
            delete_grace_ms=0,
            retention=KEEP_ALL,
        )

    async def _ListSegments(self, body: bytes, _: CallContext) -> bytes:
        self.calls.append((0, "ListSegments"))
        request = admin_pb2.ListSegmentsRequest.FromString(body)
        found = [
            segment.record
            for partition in self.topics[request.topic]
            for segment in partition.segments
            if not request.partitions or partition.number in request.partitions
            if segment.record.end_offset < 0 or segment.record.end_offset > request.from_offset
        ]
        ids = [record.segment_id for record in found]
        start = ids.index(request.after_segment_id) + 1 if request.after_segment_id else 0
        page = found[start : start + min(2, request.max_segments or 2)]
        answer = admin_pb2.ListSegmentsResponse(more=start + len(page) < len(found))
        for record in page:
            message = convert.segment_to_proto(record)
            message.readers.extend(record.readers)
            answer.segments.append(message)
        return answer.SerializeToString()

    async def _CreateTopic(self, body: bytes, _: CallContext) -> bytes:
        request = admin_pb2.CreateTopicRequest.FromString(body)
        if request.name in self.topics and not request.if_not_exists:
            raise TopicExistsError(request.name)
        self.settings.append(request.settings)
        self.add_topic(request.name, request.settings.partitions or 1)
        return admin_pb2.CreateTopicResponse(topic=self._describe(request.name)).SerializeToString()

    async def _DescribeTopics(self, body: bytes, _: CallContext) -> bytes:
        names = admin_pb2.DescribeTopicsRequest.FromString(body).names or self.topics
        answer = admin_pb2.DescribeTopicsResponse(topics=[self._describe(name) for name in names])
        return answer.SerializeToString()

    def _describe(self, name: str) -> admin_pb2.TopicDescription:
        if name not in self.topics:
            raise UnknownTopicError(name)
        answer = admin_pb2.TopicDescription(name=name, topic_id=self.topic_id(name))
        for partition in self.topics[name]:
            described = answer.partitions.add(
                partition=partition.number, segments=len(partition.segments)
            )
            described.tail.CopyFrom(convert.segment_to_proto(partition.tail.record))
            for base, end in partition.left_out:
                described.left_out.add(base_offset=base, end_offset=end)
        return answer
