"""A node that holds sealed segments, and another one that reads the same ones in object storage.

The second one has no replica of anything: what it answers must be what the first one answers.
"""

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

from icecore.errors import IcecoreError, NotReplicaError
from icecore.model import Segment, SegmentId, SegmentState
from icecore.rpc import convert
from icecore.topic_settings import SegmentSettings
from icecore.v1 import coordinator_pb2
from icecore_node.context import Tasks
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.metrics import NodeMetrics
from icecore_node.remote.format.manifest import Manifest, SegmentFacts, StoredObject
from icecore_node.remote.format.parquet_object import ParquetEncoder, raw_batches
from icecore_node.remote.read.admission import Admission
from icecore_node.remote.read.cache import RemoteCache
from icecore_node.remote.read.descriptions import Descriptions
from icecore_node.remote.read.disk_cache import DiskCache
from icecore_node.remote.read.reading import RemoteParts, RemoteReading
from icecore_node.remote.store.object_store import ByteRange, ObjectInfo
from icecore_node.replica.reading import ReplicaReading
from icecore_node.serving.fetch.fetch import FetchHandler
from icecore_node.serving.query.query import QueryHandler
from icecore_node.serving.remote_segments import RemoteSegments
from icecore_node.storage.segment_engine.segment_names import index_file_name
from icecore_node.timing import NodeTiming
from tests.conformance.log_builder import CLUSTER
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.support.query_setup import INDEXED_HEADERS, DirectExecutor, QueryNode


class ClosingExecutor(DirectExecutor):
    """With the rest of the port."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class CountedStore:
    """Counts what is read."""

    inner: SimObjectStore
    requests: int = 0
    length_bytes: int = 0
    running: int = 0
    running_max: int = 0
    by_key: Counter[str] = field(default_factory=Counter)

    async def get_ranges(self, key: str, ranges: list[ByteRange]) -> list[bytes]:
        self.requests += 1
        self.by_key[key.rpartition(".")[2]] += 1
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            found = await self.inner.get_ranges(key, ranges)
        finally:
            self.running -= 1
        self.length_bytes += sum(map(len, found))
        return found

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        self.requests += 1
        self.by_key[key.rpartition(".")[2]] += 1
        found = await self.inner.get_whole(key, bytes_max)
        self.length_bytes += len(found)
        return found

    async def head(self, key: str) -> ObjectInfo:
        self.requests += 1
        self.by_key["head"] += 1
        return await self.inner.head(key)


def upload(
    bucket: SimBucket,
    node: QueryNode,
    segment_id: int,
    attempt: int,
    *,
    row_group_bytes: int = 2000,
    as_rows: bool = True,
) -> Manifest:
    """A copy of a sealed segment, with its index if that was made."""
    log = node.logs[segment_id]
    identity, tail = log.identity, log.tail
    facts = SegmentFacts(
        cluster_id=identity.cluster_id,
        topic_id=identity.topic_id,
        topic="topic",
        partition=identity.partition,
        segment_id=identity.segment_id,
        generation=identity.generation,
        epoch=identity.epoch,
        base_offset=identity.base_offset,
        end_offset=tail.end_offset,
        seal_digest=tail.digest,
        full_digest=b"",
    )
    encoder = ParquetEncoder(facts, row_group_bytes=row_group_bytes, as_rows=as_rows)
    data = b"".join(encoder.pieces(log.batches))
    made = encoder.encoded()
    side = b"".join(raw_batches(log.batches, made.raw_batches))
    name = index_file_name(identity)
    files = SimFileSystem(node.disk, None)
    index = b""
    if files.exists(name):
        file = files.open(name)
        index = file.pread(file.size(), 0)

    def put(suffix: str, content: bytes) -> StoredObject | None:
        key = facts.key(attempt, suffix)
        bucket.objects[key] = content
        return StoredObject(
            key=key, size_bytes=len(content), sha256=hashlib.sha256(content).digest()
        )

    bucket.objects[facts.key(attempt)] = data
    manifest = Manifest(
        facts=facts,
        attempt=attempt,
        content_digest=made.content_digest,
        records=made.records,
        parquet=made.stored(facts.key(attempt)),
        footer_start=made.footer_start,
        footer_sha256=made.footer_sha256,
        row_groups=made.row_groups,
        side=put(".batches", side) if side else None,
        raw_batches=made.raw_batches,
        index=put(".idx", index) if index else None,
    )
    bucket.objects[manifest.key] = manifest.encode()
    return manifest


class Metadata:
    """The coordinator's metadata of tiered segments."""

    def __init__(self) -> None:
        self.published: dict[int, Manifest] = {}
        self.log_start_offset = 0
        self.calls = 0
        self.refuted: list[int] = []
        """Attempts of copies that the node could not read."""
        self.failure: IcecoreError | None = None

    async def segment_at(self, topic: str, partition: int, offset: int) -> Segment | None:
        self.calls += 1
        for segment_id in sorted(self.published):
            found = self.record(segment_id)
            is_there = (found.topic, found.partition) == (topic, partition)
            if is_there and found.base_offset <= offset < found.end_offset:
                return found.changed(is_tiered=True, replicas=())
        return None

    async def ask(self, segment_id: SegmentId, refuted: int) -> coordinator_pb2.DescribedCopy:
        self.calls += 1
        self.refuted += [refuted] if refuted else []
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        manifest = self.published.get(segment_id)
        if manifest is None:
            error = NotReplicaError("no such segment")
            return coordinator_pb2.DescribedCopy(error=convert.error_to_proto(error))
        return coordinator_pb2.DescribedCopy(
            segment=convert.segment_to_proto(self.record(segment_id)),
            copy=coordinator_pb2.TierCopy(
                attempt=manifest.attempt,
                manifest_sha256=hashlib.sha256(manifest.encode()).digest(),
            ),
        )

    def record(self, segment_id: int) -> Segment:
        facts = self.published[segment_id].facts
        return Segment(
            segment_id=facts.segment_id,
            topic_id=facts.topic_id,
            topic=facts.topic,
            partition=facts.partition,
            state=SegmentState.SEALED,
            epoch=facts.epoch,
            generation=facts.generation,
            base_offset=facts.base_offset,
            end_offset=facts.end_offset,
            seal_digest=facts.seal_digest,
            settings=SegmentSettings(indexed_headers=INDEXED_HEADERS),
            log_start_offset=self.log_start_offset,
            is_tiered=True,
        )


class RemoteNode:
    """A node with an object store and no replicas.

    Args:
        disk: Of its cache; None = it has none.
        bucket: What its store holds.
        metadata: What its coordinator says.
        memory_bytes: Of its cache.
        disk_bytes: The same.
        limits: Of ``Admission``.
    """

    def __init__(
        self,
        disk: SimDisk | None = None,
        bucket: SimBucket | None = None,
        metadata: Metadata | None = None,
        *,
        memory_bytes: int = 8 << 20,
        disk_bytes: int = 8 << 20,
        **limits: int,
    ) -> None:
        self.node = QueryNode()
        self.bucket = bucket or SimBucket()
        self.store = CountedStore(SimObjectStore(self.bucket, None))
        self.metadata = metadata or Metadata()
        self.unexpected: list[BaseException] = []
        self.executor = ClosingExecutor()
        files = SimFileSystem(disk, None) if disk is not None else None
        self.disk = DiskCache(files, disk_bytes) if files is not None else None
        self.cache = RemoteCache(self.disk, memory_bytes, cast(Any, self.executor))
        self.metrics = NodeMetrics()
        clock = self.node.clock
        self.reading = RemoteReading(
            RemoteParts(
                store=cast(Any, self.store),
                descriptions=Descriptions(self.metadata.ask, clock, NodeTiming()),
                cache=self.cache,
                admission=Admission(clock, **limits),
                executor=cast(Any, self.executor),
                tasks=Tasks(self.unexpected.append),
                metrics=self.metrics,
            )
        )
        self._serve(self.node)

    def _serve(self, node: QueryNode) -> None:
        node.context.identity.register(CLUSTER, incarnation=11, coordinator_epoch=1)
        segments = RemoteSegments(
            self.reading, node.table, self.node.clock, self.metadata.segment_at
        )
        reading = ReplicaReading(node.context, cast(Any, node))
        heavy = HeavyWork(cast(Any, node.executor))
        context, table = node.context, node.table
        node.queries = QueryHandler(context, table, reading, heavy, segments)
        node.fetches = FetchHandler(context, table, node.readers, reading, heavy, segments)

    def publish(self, source: QueryNode, segment_id: int, attempt: int = 1, **options: Any) -> None:
        """Put a copy of a segment and say so."""
        found = upload(self.bucket, source, segment_id, attempt, **options)
        self.metadata.published[segment_id] = found

    def take_over(self, source: QueryNode) -> None:
        """Be the node that holds replicas, too."""
        self.node = source
        self._serve(source)
