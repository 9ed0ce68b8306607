"""Uploads ordered by the coordinator. Sealed replicas, or segments merged from copies already
there, go into the object store, a few at a time.

An order holds its segment while it is carried out, so that nothing changes the replica meanwhile;
but it is no obstacle: a delete order, a fence, another attempt or a newer coordinator ends it. It
is never repeated by itself. The coordinator gives each attempt its own number, and takes a new one.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from icecore.errors import IcecoreError, InvalidRequestError, NotReplicaError
from icecore.model import CoordinatorEpoch, Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore.topic_settings import TIER_FORMATS
from icecore_node.context import NodeContext
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.registry.table import ReplicaTable
from icecore_node.remote.access import TierAccess
from icecore_node.remote.format.manifest import PublishedCopy, facts_of
from icecore_node.remote.write.copy_writer import CopyWriter, Throttle, WrittenCopy
from icecore_node.remote.write.merge_attempt import MERGED_FORMAT, MergeAttempt
from icecore_node.remote.write.tier_tables import check_name
from icecore_node.remote.write.upload_attempt import SourceDamagedError, UploadAttempt
from icecore_node.replica.damage import Damage
from icecore_node.replica.order_checks import NUMBER_MAX, check_identity, check_same
from icecore_node.replica.orders import Order, Orders
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import SegmentIdentity
from icecore_replication.digest import is_full_digest

_log = logging.getLogger(__name__)

TOPIC_CHARACTERS_MAX: Final = 249
SOURCES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class UploadOrder:
    """Order to upload a segment."""

    segment: Segment
    attempt: int
    tier_format: str
    sources: tuple[PublishedCopy, ...] = ()
    """Copies from which the segment is merged, when no replica of it exists; empty = upload a
    replica."""


class Uploads:
    """All uploads of one node. Loop only."""

    def __init__(
        self,
        context: NodeContext,
        access: TierAccess,
        table: ReplicaTable,
        orders: Orders,
        reading: ReplicaReading,
        damage: Damage,
    ) -> None:
        at_once = context.settings.tier_uploads_at_once
        self._context = context
        self._access = access
        self._table = table
        self._orders = orders
        self._reading = reading
        self._damage = damage
        self._slots = asyncio.Semaphore(at_once)
        self._work = HeavyWork(context.executor, calls_max=at_once)
        bytes_per_s = int(context.settings.tier_upload_bytes_per_s)
        self._throttle = Throttle(context.clock, bytes_per_s)
        self._under_way: dict[SegmentId, Order] = {}

    async def upload(self, asked: UploadOrder, coordinator_epoch: CoordinatorEpoch) -> WrittenCopy:
        """Carry out one order.

        Raises:
            InvalidRequestError: There can be no such segment, or it is another one here.
            NotReplicaError: There is no intact sealed replica here.
            FencedError: The order was overtaken.
            UnsupportedError, ObjectStoreError, ObjectStoreBusyError: As the object store has it.
            StorageError: What is stored is not what was put, or a shortage here.
        """
        segment_id = asked.segment.segment_id
        metrics, clock = self._context.metrics, self._context.clock
        began_ms = clock.monotonic_ms()
        try:
            _check_order(asked)
            uploaded = await self._alone(asked, coordinator_epoch)
        except IcecoreError as error:
            metrics.tier_errors.labels("upload", type(error).__name__).inc()
            event(
                _log,
                logging.WARNING,
                "upload_failed",
                segment_id=segment_id,
                attempt=asked.attempt,
                error=error,
            )
            raise
        took_ms = clock.monotonic_ms() - began_ms
        metrics.tier_uploads.inc()
        metrics.tier_upload_bytes.inc(uploaded.length_bytes)
        metrics.tier_upload_seconds.observe(took_ms / 1000)
        event(
            _log,
            logging.INFO,
            "uploaded",
            segment_id=segment_id,
            attempt=asked.attempt,
            length_bytes=uploaded.length_bytes,
            took_ms=round(took_ms),
        )
        return uploaded

    async def _alone(self, asked: UploadOrder, coordinator_epoch: CoordinatorEpoch) -> WrittenCopy:
        segment_id = asked.segment.segment_id
        before = self._under_way.get(segment_id)
        if before is not None:
            before.overtake(f"attempt {asked.attempt} was ordered")
        async with self._orders.carry_out(segment_id, coordinator_epoch) as order:
            self._under_way[segment_id] = order
            try:
                return await order.unless_overtaken(self._carry_out(order, asked))
            finally:
                if self._under_way.get(segment_id) is order:
                    del self._under_way[segment_id]

    async def _carry_out(self, order: Order, asked: UploadOrder) -> WrittenCopy:
        async with self._slots:
            await self._access.confirm()
            uploaded = await self._upload(order, asked)
            await self._access.confirm()  # nothing was unmounted meanwhile
            return uploaded

    async def _upload(self, order: Order, asked: UploadOrder) -> WrittenCopy:
        facts = facts_of(asked.segment, self._context.identity.cluster_id)
        headers = asked.segment.settings.indexed_headers
        if asked.sources:
            merging = MergeAttempt(self._context, self._writer(order.check), headers)
            return await merging.run(facts, asked.attempt, asked.sources)
        replica = self._find(asked.segment)

        def check() -> None:
            order.check()
            if not replica.life.is_intact:
                raise _not_here(replica.segment_id)

        check()
        attempt = UploadAttempt(self._context, self._writer(check), headers)
        try:
            return await attempt.run(facts, asked.attempt, asked.tier_format)
        except SourceDamagedError as error:
            await self._judge(replica, error)
            raise _not_here(replica.segment_id) from error

    def _writer(self, check: Callable[[], None]) -> CopyWriter:
        store, clock = self._access.store, self._context.clock
        return CopyWriter(store, self._work, self._throttle, clock, check)

    def _find(self, segment: Segment) -> Replica:
        """Return the replica to upload, which must be as the order describes it."""
        replica = self._table.get(segment.segment_id)
        if replica is None or not replica.sealed or not replica.life.is_intact:
            raise _not_here(segment.segment_id)
        check_same(replica, _identity(segment, self._context.identity.cluster_id))
        have = (replica.base_offset, replica.sealed_end_offset, replica.log.tail.digest)
        if have != (segment.base_offset, segment.end_offset, segment.seal_digest):
            raise InvalidRequestError(
                f"segment {segment.segment_id} is sealed here from {have[0]} to {have[1]}, and not "
                f"from {segment.base_offset} to {segment.end_offset} with that digest"
            )
        return replica

    async def _judge(self, replica: Replica, error: SourceDamagedError) -> None:
        """Verify the replica after it differed. Only damage found in its own file counts as damage;
        else the divergence is reported (R66)."""
        event(_log, logging.ERROR, "source_damaged", segment_id=replica.segment_id, error=error)
        if await self._reading.verify(replica):
            why = (
                "digest mismatch: the file passes its CRCs but differs from the agreed full digest"
            )
            self._damage.report_divergence(replica, why)


def _not_here(segment_id: SegmentId) -> NotReplicaError:
    return NotReplicaError(
        f"there is no intact sealed replica of segment {segment_id} here", segment_id=segment_id
    )


def _check_order(asked: UploadOrder) -> None:
    """Raises InvalidRequestError for an impossible order: its values would become parts of keys."""
    segment = asked.segment
    what = f"segment {segment.segment_id}"
    check_identity(_identity(segment, b""), segment.base_offset)
    is_proved = bool(asked.sources) or is_full_digest(segment.full_digest)
    if segment.state is not SegmentState.SEALED or not is_proved:
        raise InvalidRequestError(f"{what} is not sealed with a full digest")
    if not segment.base_offset <= segment.end_offset <= NUMBER_MAX:
        raise InvalidRequestError(f"{what}: no log ends at {segment.end_offset}")
    if not 0 < len(segment.topic) <= TOPIC_CHARACTERS_MAX:
        raise InvalidRequestError(f"{what}: no topic has the name {segment.topic[:50]!r}")
    if not 1 <= asked.attempt <= NUMBER_MAX:
        raise InvalidRequestError(f"{what}: no attempt has the number {asked.attempt}")
    if asked.sources and asked.tier_format != MERGED_FORMAT:
        raise InvalidRequestError(f"{what}: only segments in format {MERGED_FORMAT} are merged")
    for each in asked.sources:
        check_name(each.name)
    if len(asked.sources) > SOURCES_MAX:
        raise InvalidRequestError(f"{what}: {len(asked.sources)} sources, {SOURCES_MAX} at most")
    if asked.tier_format not in TIER_FORMATS:
        raise InvalidRequestError(f"{what}: no format is called {asked.tier_format[:50]!r}")


def _identity(segment: Segment, cluster_id: bytes) -> SegmentIdentity:
    return SegmentIdentity(
        cluster_id=cluster_id,
        topic_id=segment.topic_id,
        partition=segment.partition,
        segment_id=segment.segment_id,
        generation=segment.generation,
        epoch=segment.epoch,
        base_offset=segment.base_offset,
    )
