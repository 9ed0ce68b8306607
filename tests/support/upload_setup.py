"""A node with sealed segments in a real engine on a simulated disk, that uploads them."""

import hashlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from icecore.codec.batch import Codec
from icecore.model import (
    CoordinatorEpoch,
    Epoch,
    Generation,
    Incarnation,
    NodeId,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.rpc import convert
from icecore.topic_settings import PARQUET_FORMAT
from icecore.v1 import common_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.identity.identity import Identity
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.metrics import NodeMetrics
from icecore_node.remote.access import TierAccess
from icecore_node.remote.format.manifest import MANIFEST, CopyName, Manifest, parse_manifest
from icecore_node.remote.format.stored_settings import StoredSettings
from icecore_node.remote.ports import Table, TierPorts
from icecore_node.remote.store.object_store import ObjectStore
from icecore_node.remote.write.copy_check import CopyCheck
from icecore_node.remote.write.sweeping import Sweeper
from icecore_node.remote.write.tier_evidence import TierEvidence
from icecore_node.remote.write.tier_tables import TierTables
from icecore_node.remote.write.uploads import Uploads
from icecore_node.replica.orders import Orders
from icecore_node.replica.reading import ReplicaReading
from icecore_node.serving.orders.node_service import NodeService
from icecore_node.serving.orders.tier_orders import TierOrders
from icecore_node.storage.control.known_buckets import KnownBucket
from icecore_node.timing import NodeTiming
from tests.conformance.log_builder import CLUSTER, TOPIC
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.simulation.topic_table import SimTopicTable
from tests.support import poison
from tests.support.query_setup import CALL, QueryNode, Stored

TOPIC_NAME = "flights"
SEGMENT = SegmentId(7)


class Chance:
    """Always the same."""

    def random(self) -> float:
        return 0.5

    def bytes(self, count: int) -> bytes:
        return bytes(count)


class BucketMemo:
    """The memory of a bucket, which ends with the test."""

    url = "memory:///"

    def __init__(self) -> None:
        self.known: KnownBucket | None = None

    def recall(self) -> KnownBucket | None:
        return self.known

    def keep(self, bucket: KnownBucket) -> None:
        self.known = bucket


class AtOnce:
    """An executor without threads."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def access_to(
    ports: TierPorts | None,
    metrics: NodeMetrics | None = None,
    *,
    identity: Identity | None = None,
    **waits: int,
) -> TierAccess:
    """The access of a node, which was not looked at yet."""
    return TierAccess(
        ports,
        identity or Identity(NodeId(1)),
        rng=cast(Any, Chance()),
        executor=cast(Any, AtOnce()),
        metrics=metrics or NodeMetrics(),
        timing=NodeTiming(**waits),
    )


NOT_SAID = StoredSettings()
OTHER_TOPIC = b"other topic 0000"


class UploadNode(QueryNode):
    """One node and its object store.

    Args:
        tier: The store; a simulated one if none is given.
        settings: Those of a node that have to do with it.
    """

    def __init__(self, tier: TierPorts | None = None, **settings: int) -> None:
        super().__init__()
        self.bucket = SimBucket()
        self.sim_tier = TierPorts(SimObjectStore(self.bucket, None), self.sim_table, BucketMemo())
        self.tier = tier or self.sim_tier
        self.divergences: list[str] = []
        fields = {"tier_uploads_at_once": 2, "tier_upload_bytes_per_s": 0, **settings}
        shared = cast(Any, self.context)
        shared.store, shared.rng = self.store, Chance()
        shared.settings = SimpleNamespace(**fields, timing=NodeTiming())
        shared.identity.register(CLUSTER, Incarnation(11), CoordinatorEpoch(1))
        self.orders = Orders(self.context.identity)
        identity = self.context.identity
        self.access = access_to(self.tier, self.context.metrics, identity=identity)
        reading = ReplicaReading(self.context, cast(Any, self))
        self.uploads = Uploads(
            self.context, self.access, self.table, self.orders, reading, cast(Any, self)
        )
        self.live_topics = {OTHER_TOPIC}
        """Topics that the node has heard of."""
        self.published: dict[SegmentId, int] = {}
        """Attempts that the coordinator calls published, by segment."""
        evidence = TierEvidence(cast(Any, self), self.describe_tiered, self.context.metrics)
        nothing = cast(Any, None)
        self.service = NodeService(
            self.context,
            fencing=nothing,
            opening=nothing,
            write_backs=nothing,
            leader_orders=nothing,
            tier_orders=TierOrders(
                self.access,
                uploads=self.uploads,
                tables=TierTables(self.context, self.access, evidence),
                sweeper=Sweeper(self.context, self.access, evidence),
                copies=CopyCheck(self.context, self.access),
            ),
        )

    def run_on(self, executor: Any) -> None:
        """Real threads from now on."""
        cast(Any, self.context).executor = executor
        self.uploads._work = HeavyWork(executor)

    def wait(self, **waits: int) -> None:
        """Set these waits of the node from now on; the other waits get their defaults."""
        cast(Any, self.context.settings).timing = NodeTiming(**waits)

    def sim_table(self, cluster_id: bytes, topic_id: bytes, topic: str) -> Table:
        return SimTopicTable(self.bucket, None, cluster_id, topic_id)

    async def ready(self) -> None:
        """The store was looked at."""
        await self.access.look(self.tier.store)
        self.access._problem = None

    @property
    def is_empty(self) -> bool:
        """As ``TopicMirror.is_empty``."""
        return not self.live_topics

    def shows(self, topic_id: bytes) -> bool:
        """As ``TopicMirror.shows``."""
        return topic_id in self.live_topics

    async def describe_tiered(self, segment_id: SegmentId) -> pb.DescribedCopy:
        """As ``CoordinatorLink.describe_tiered``."""
        found = pb.DescribedCopy()
        if segment_id in self.published:
            found.copy.attempt = self.published[segment_id]
        return found

    def report_divergence(self, replica: object, why: str) -> None:
        """As ``Damage.report_divergence``."""
        self.divergences.append(why)

    # --- segments -------------------------------------------------------------------------------

    def sealed(
        self, segment_id: SegmentId = SEGMENT, batches: int = 6, *, has_poison: bool = True
    ) -> Segment:
        """A sealed segment with everything that a record may have, and its index file."""
        self.begin(segment_id)
        for at in range(batches):
            self.append(segment_id, _records(at), codec=Codec(at % 3))
        if has_poison:
            self.append(segment_id, [], raw=poison.garbage(Codec.ZSTD))
        self.append(segment_id, _records(99), deltas=[0, 3, 4])
        self.seal(segment_id)
        while self.store.index.maintain():
            pass
        return self.segment(segment_id)

    def segment(self, segment_id: SegmentId) -> Segment:
        """As the coordinator has it."""
        log = self.logs[segment_id]
        return Segment(
            segment_id=segment_id,
            topic_id=TOPIC,
            topic=TOPIC_NAME,
            partition=0,
            state=SegmentState.SEALED,
            epoch=Epoch(log.identity.epoch),
            generation=Generation(0),
            base_offset=log.identity.base_offset,
            end_offset=log.tail.end_offset,
            length_bytes=log.tail.length_bytes,
            seal_digest=log.tail.digest,
            full_digest=self.store.reader.full_digest(segment_id),
        )

    # --- orders ---------------------------------------------------------------------------------

    async def upload(
        self, segment: Segment, attempt: int = 1, format_: str = PARQUET_FORMAT, **changes: Any
    ) -> pb.UploadedCopy:
        """One order, as the coordinator sends it."""
        item = pb.UploadOrder(
            segment=convert.segment_to_proto(segment), attempt=attempt, tier_format=format_
        )
        request = pb.UploadRequest(**self._head(changes), segments=[item])
        answer = await self.service.upload(request.SerializeToString(), CALL)
        [result] = pb.UploadResponse.FromString(answer).results
        return result

    async def merge(
        self,
        merged: Segment,
        sources: Sequence[tuple[Segment, pb.TierCopy]],
        attempt: int = 100,
        format_: str = PARQUET_FORMAT,
    ) -> pb.UploadedCopy:
        """The order to make one segment of several that were uploaded."""
        item = pb.UploadOrder(
            segment=convert.segment_to_proto(merged),
            attempt=attempt,
            tier_format=format_,
            sources=[
                pb.PublishedCopy(
                    segment_id=each.segment_id,
                    generation=each.generation,
                    base_offset=each.base_offset,
                    attempt=copy.attempt,
                    manifest_sha256=copy.manifest_sha256,
                )
                for each, copy in sources
            ],
        )
        request = pb.UploadRequest(**self._head({}), segments=[item])
        answer = await self.service.upload(request.SerializeToString(), CALL)
        [result] = pb.UploadResponse.FromString(answer).results
        return result

    async def commit(
        self,
        revision: int,
        copies: dict[SegmentId, pb.TierCopy],
        settings: StoredSettings = NOT_SAID,
        **changes: Any,
    ) -> common_pb2.Error:
        """The table of the partition, as of a revision."""
        segments = [
            pb.PublishedCopy(
                segment_id=segment_id,
                generation=0,
                base_offset=self.logs[segment_id].identity.base_offset,
                attempt=copy.attempt,
                manifest_sha256=copy.manifest_sha256,
            )
            for segment_id, copy in copies.items()
        ]
        table = pb.PartitionTable(
            topic_id=TOPIC,
            topic=TOPIC_NAME,
            partition=0,
            revision=revision,
            segments=segments,
            topic_settings=settings.text,
            settings_version=settings.version,
            partition_counts=settings.partition_counts,
            deleted=settings.is_deleted,
            log_starts=settings.log_starts,
        )
        request = pb.CommitTablesRequest(**self._head(changes), partitions=[table])
        answer = await self.service.commit_tables(request.SerializeToString(), CALL)
        found = pb.CommitTablesResponse.FromString(answer)
        self.said_missing = [*found.missing]
        [error] = found.errors
        return error

    async def verify(
        self, copies: dict[SegmentId, pb.TierCopy], **changes: Any
    ) -> pb.VerifyCopiesResponse:
        """Look for published copies."""
        items = [
            pb.CopyToVerify(
                topic_id=TOPIC,
                partition=0,
                copy=pb.PublishedCopy(
                    segment_id=segment_id,
                    generation=0,
                    base_offset=self.logs[segment_id].identity.base_offset,
                    attempt=copy.attempt,
                    manifest_sha256=copy.manifest_sha256,
                ),
            )
            for segment_id, copy in copies.items()
        ]
        request = pb.VerifyCopiesRequest(**self._head(changes), copies=items)
        answer = await self.service.verify_copies(request.SerializeToString(), CALL)
        return pb.VerifyCopiesResponse.FromString(answer)

    async def sweep(
        self,
        names: list[CopyName],
        topics: list[bytes] | None = None,
        to_mark: Sequence[tuple[bytes, int]] = (),
        **changes: Any,
    ) -> pb.SweepResponse:
        """Closed attempts, topics that are gone, and those that are to be marked: id, version."""
        attempts = [
            pb.ClosedAttempt(
                topic_id=each.topic_id,
                partition=each.partition,
                segment_id=each.segment_id,
                generation=each.generation,
                base_offset=each.base_offset,
                attempt=each.attempt,
            )
            for each in names
        ]
        request = pb.SweepRequest(
            **self._head(changes),
            attempts=attempts,
            gone_topic_ids=topics or [],
            to_mark=[pb.GoneTopic(topic_id=each, settings_version=v) for each, v in to_mark],
        )
        answer = await self.service.sweep(request.SerializeToString(), CALL)
        return pb.SweepResponse.FromString(answer)

    def _head(self, changes: dict[str, Any]) -> dict[str, Any]:
        return {
            "cluster_id": CLUSTER,
            "coordinator_epoch": self.context.identity.coordinator_epoch,
            "incarnation": 11,
            "node_id": 1,
            **changes,
        }

    # --- what is stored -------------------------------------------------------------------------

    def name(self, segment: Segment, attempt: int) -> CopyName:
        return CopyName(
            topic_id=segment.topic_id,
            partition=segment.partition,
            segment_id=segment.segment_id,
            generation=segment.generation,
            base_offset=segment.base_offset,
            attempt=attempt,
        )

    async def manifest(self, segment: Segment, copy: pb.TierCopy) -> Manifest:
        """Return the stored manifest of a copy; its hash is the one that the node answered."""
        store: ObjectStore = self.tier.store
        key = self.name(segment, copy.attempt).key(MANIFEST)
        size = (await store.head(key)).size_bytes
        [data] = await store.get_ranges(key, [(0, size)])
        assert hashlib.sha256(data).digest() == copy.manifest_sha256
        return parse_manifest(data, copy.manifest_sha256)


class FailingStore(SimObjectStore):
    """The n-th request fails, or the process ends there."""

    def __init__(self, node: UploadNode, fails_at: int, error: Exception) -> None:
        super().__init__(node.bucket, None)
        self._left = fails_at
        self._error = error

    async def _request(self, length_bytes: int) -> None:
        if not self._left:
            raise self._error
        self._left -= 1
        await super()._request(length_bytes)


class Killed(Exception):
    """The process is no more."""


def _records(at: int) -> list[Stored]:
    """Keys and tombstones, with nulls; tags; headers."""
    return [
        Stored(b"v%d" % at * 20, b"k%d" % (at % 3), 1_000 + at, ("UA", "ü"), (("h", b"1"),)),
        Stored(None, b"k%d" % at, 2_000 + at),
        Stored(b"", None, -5, (), (("", None), ("h", b""))),
    ]
