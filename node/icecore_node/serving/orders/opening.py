"""Opens: files for replicas of segments to come, and where told the base of their logs (R34, R60).

Base and starting state are given once; the same again is answered alike as long as nothing has
happened. A log never begins in the place of one that was here before.

Files are made some at a time, by one thread for all orders: a thousand new partitions do not delay
fences or readers. When the caller's timeout is over, no more are made.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    NotReplicaError,
    OutOfResourcesError,
    ReadOnlyError,
    ThrottledError,
)
from icecore.model import Epoch, Generation, SegmentId
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica import order_checks
from icecore_node.replica.life import Begun, Life
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import NO_TAIL, SegmentIdentity
from icecore_replication.producers import ProducerTable

MADE_AT_ONCE = 64
"""Number of segments made with one commit of the control store."""


class ReplicaOpening:
    """Creates and confirms replicas."""

    def __init__(self, context: NodeContext, table: ReplicaTable, orders: Orders) -> None:
        self._context = context
        self._table = table
        self._orders = orders
        self._making = asyncio.Lock()

    async def open(
        self,
        items: Sequence[coordinator_pb2.OpenSegment],
        check: Callable[[], None],
        within_s: float | None = None,
    ) -> list[IcecoreError | None]:
        """Create, and where told confirm, replicas of segments about to open; per item the error.

        Args:
            items: The segments to open.
            check: Raises an error when the order must be refused by now.
            within_s: Seconds for which the caller waits for the answer; None = for ever.
        """
        now_ms = self._context.clock.monotonic_ms()
        until_ms = inf if within_s is None else now_ms + 1000 * within_s
        segment_ids = convert.segment_ids(each.segment.segment_id for each in items)
        async with self._orders.alone(*segment_ids):
            check()
            errors = self._refused(items)
            await self._create(items, errors, check, until_ms)
            check()
            confirms = [
                self._confirm(item)
                for item, segment_id in zip(items, segment_ids, strict=True)
                if item.confirm and errors.get(segment_id) is None
            ]
            errors.update(await asyncio.gather(*confirms))
        return [errors.get(each) for each in segment_ids]

    def _refused(
        self, items: Sequence[coordinator_pb2.OpenSegment]
    ) -> dict[SegmentId, IcecoreError | None]:
        """Return the errors of invalid items; nothing of these is stored."""
        errors: dict[SegmentId, IcecoreError | None] = {}
        seen: set[SegmentId] = set()
        for item in items:
            segment_id = SegmentId(item.segment.segment_id)
            try:
                if segment_id in seen:
                    raise InvalidRequestError(f"segment {segment_id} is named twice")
                seen.add(segment_id)
                held = self._table.get(segment_id)
                order_checks.check_open(item, self._identity(item), held)
            except IcecoreError as error:
                errors[segment_id] = error
        return errors

    async def _create(
        self,
        items: Sequence[coordinator_pb2.OpenSegment],
        errors: dict[SegmentId, IcecoreError | None],
        check: Callable[[], None],
        until_ms: float,
    ) -> None:
        """Make replicas that are not here and have no error yet; add the errors of those that
        fail."""
        fresh: list[SegmentIdentity] = []
        for identity in map(self._identity, items):
            segment_id = identity.segment_id
            if segment_id in errors or self._table.get(segment_id) is not None:
                continue
            if (error := self._was_here(segment_id)) is not None:
                errors[segment_id] = error
            else:
                fresh.append(identity)
        identities, starts = _to_create(items, fresh)
        for at in range(0, len(fresh), MADE_AT_ONCE):
            part = slice(at, at + MADE_AT_ONCE)
            # What a thread makes is there, whoever has given up meanwhile: it is taken in, too.
            making = asyncio.ensure_future(self._make(fresh[part], identities[part], starts))
            errors.update(await asyncio.shield(making))
            check()
            if self._context.clock.monotonic_ms() >= until_ms:
                late = ThrottledError("the open request timed out before this segment was created")
                errors.update((each.segment_id, late) for each in fresh[part.stop :])
                break

    def _was_here(self, segment_id: SegmentId) -> IcecoreError | None:
        """Return the error for a segment that was deleted here, or set aside as damaged. An empty
        log must not take its place."""
        epoch = self._context.store.promises.epoch_of(segment_id)
        if not (epoch or self._orders.was_deleted(segment_id)):
            return None
        return NotReplicaError(f"segment {segment_id} was here and is gone")

    async def _make(
        self,
        fresh: Sequence[SegmentIdentity],
        identities: Sequence[SegmentIdentity],
        starts: Mapping[SegmentId, tuple[bytes, int]],
    ) -> dict[SegmentId, IcecoreError | None]:
        """Make files and control records of some replicas. Each is in the table from then on, or
        has an error."""
        context, table = self._context, self._table
        errors: dict[SegmentId, IcecoreError | None] = {}
        async with self._making:
            created = await context.executor.run(context.store.creation.create, identities, starts)
            for identity, error in zip(fresh, created, strict=True):
                errors[identity.segment_id] = _refusal(error)
                if error is None and table.get(identity.segment_id) is None:
                    table.add(Replica(context.log_io, identity, NO_TAIL, None, life=Life.PREPARED))
        return errors

    def _identity(self, item: coordinator_pb2.OpenSegment) -> SegmentIdentity:
        segment = item.segment
        settings = convert.settings_from_proto(segment.settings)
        return SegmentIdentity(
            cluster_id=self._context.identity.cluster_id,
            topic_id=segment.topic_id,
            partition=segment.partition,
            segment_id=SegmentId(segment.segment_id),
            generation=Generation(segment.generation),
            epoch=Epoch(segment.epoch),
            engine=settings.active_engine,
            flush=settings.flush,
        )

    async def _confirm(
        self, item: coordinator_pb2.OpenSegment
    ) -> tuple[SegmentId, IcecoreError | None]:
        """Fix base and starting state, once. The caller works on the segment alone."""
        segment_id = SegmentId(item.segment.segment_id)
        replica = self._table.get(segment_id)
        if replica is None:
            return segment_id, NotReplicaError(f"segment {segment_id} was not prepared here")
        if replica.life is not Life.PREPARED:
            return segment_id, await self._confirmed_before(replica, item)
        identity = replace(replica.identity, base_offset=item.segment.base_offset)
        try:
            producers = ProducerTable(item.producer_snapshot)
            tail = await replica.log.worker.run(
                self._context.store.creation.confirm,
                identity,
                item.producer_snapshot,
                item.max_append_timestamp_ms,
            )
        except IcecoreError as error:
            return segment_id, error
        replica.move(Begun(identity, tail, producers))
        self._table.add(replica)
        return segment_id, None

    async def _confirmed_before(
        self, replica: Replica, item: coordinator_pb2.OpenSegment
    ) -> IcecoreError | None:
        """None when the same was confirmed and nothing has happened since. Changes nothing."""
        start = (item.producer_snapshot, item.max_append_timestamp_ms)
        try:
            known = await self._context.executor.run(
                self._context.store.reader.starting_state, replica.segment_id
            )
        except IcecoreError as error:
            return error
        is_untouched = (
            replica.life is Life.IDLE
            and replica.log.tail.end_offset == replica.base_offset == item.segment.base_offset
        )
        if is_untouched and known == start:
            return None
        return InvalidRequestError(f"segment {replica.segment_id} is already in use here")


def _refusal(error: IcecoreError | None) -> IcecoreError | None:
    """Return the error for the answer: a shortage as it is; any other one becomes ReadOnlyError,
    "not here"."""
    if error is None or isinstance(error, OutOfResourcesError):
        return error
    return ReadOnlyError(str(error))


def _to_create(
    items: Sequence[coordinator_pb2.OpenSegment], fresh: Sequence[SegmentIdentity]
) -> tuple[list[SegmentIdentity], dict[SegmentId, tuple[bytes, int]]]:
    """Arguments of ``Store.create``: what is to be confirmed needs no second sync."""
    final = {each.segment.segment_id: each for each in items if each.confirm}
    identities: list[SegmentIdentity] = []
    starts: dict[SegmentId, tuple[bytes, int]] = {}
    for each in fresh:
        base_offset = each.base_offset
        if (item := final.get(each.segment_id)) is not None:
            base_offset = item.segment.base_offset
            starts[each.segment_id] = (item.producer_snapshot, item.max_append_timestamp_ms)
        identities.append(replace(each, base_offset=base_offset))
    return identities, starts
