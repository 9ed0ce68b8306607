"""What the coordinator orders a node to do: fence, open, write back, roll.

Each order carries the coordinator's token; a lower one than any seen is refused. Orders are
idempotent: a coordinator that was interrupted repeats them. Lists are answered in order, each
item with its own error.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from icecore.errors import (
    SHORTAGES,
    FencedError,
    IcecoreError,
    InvalidRequestError,
    NotLeaderError,
    NotReplicaError,
    OutOfResourcesError,
    ReadOnlyError,
    ThrottledError,
    UnavailableError,
)
from icecore.rpc import convert, framing, parts
from icecore.rpc.methods import NODE
from icecore.rpc.ports import CallContext, UnaryHandler
from icecore.v1 import common_pb2, coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.registry.replicas import Replicas
from icecore_node.replica import order_checks
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import NO_TAIL, SEGMENT_ENGINE, SegmentIdentity
from icecore_node.upkeep.copying import SegmentCopier
from icecore_node.upkeep.salvage import Salvage
from icecore_replication import inputs
from icecore_replication.producers import ProducerTable

_log = logging.getLogger(__name__)

WHY_MAX = 200

_Order: TypeAlias = (
    coordinator_pb2.FenceRequest
    | coordinator_pb2.OpenRequest
    | coordinator_pb2.WriteBackRequest
    | coordinator_pb2.RollRequest
    | coordinator_pb2.FenceProducersRequest
    | coordinator_pb2.CheckSealRequest
)


class NodeCommands:
    """Handlers of ``NodeService``."""

    def __init__(
        self,
        context: NodeContext,
        replicas: Replicas,
        copier: SegmentCopier,
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._copier = copier
        self._salvage = Salvage(context, replicas)
        self._orders = replicas.orders
        self._writing_back: dict[
            tuple[int, bytes], asyncio.Future[coordinator_pb2.WrittenBack]
        ] = {}
        """Write-backs under way, by token and order."""

    def handlers(self) -> dict[str, UnaryHandler]:
        """Method name to handler."""
        return {
            NODE["Fence"]: self.fence,
            NODE["Open"]: self.open,
            NODE["WriteBack"]: self.write_back,
            NODE["Roll"]: self.roll,
            NODE["FenceProducers"]: self.fence_producers,
            NODE["CheckSeal"]: self.check_seal,
        }

    def _check(self, request: _Order) -> None:
        """Raises FencedError for an order of a coordinator that another one took over from, or to
        an earlier process: what that one held and had promised may be gone."""
        context = self._context
        context.check_cluster(request.cluster_id, is_needed=True)
        if isinstance(request, coordinator_pb2.FenceProducersRequest):
            order_checks.check_length(request.fences)
        else:
            order_checks.check_length(request.segments)
        order_checks.check_token(context, request.token)
        if request.incarnation != context.incarnation:
            raise FencedError(
                f"this is incarnation {context.incarnation}, the order is for {request.incarnation}"
            )
        if request.token < context.token:
            raise FencedError(
                f"coordinator token {request.token} is older than {context.token}",
                token=context.token,
            )
        context.token = request.token

    # --- fence ----------------------------------------------------------------------------------

    async def fence(self, body: bytes, _: CallContext) -> bytes:
        """Stop appends below the new epochs; answer with the durable ends after that.

        In this order: no new append is accepted, write-backs under way stop, queued appends finish
        (and are fsynced), the promises are persisted, then we answer. So the answer is the last
        word of this replica.
        """
        request = framing.parse(coordinator_pb2.FenceRequest, body)
        self._check(request)
        context = self._context
        answers: list[coordinator_pb2.FencedReplica] = []
        promised: list[tuple[Replica, int]] = []
        for ref in request.segments:
            self._orders.overtake(ref.segment_id, "a fence came")
            replica = self._replicas.get(ref.segment_id)
            answers.append(coordinator_pb2.FencedReplica())
            if replica is None or not replica.counts:
                continue  # UNKNOWN, never "empty"
            if ref.epoch < replica.promised_epoch:
                answers[-1].error.CopyFrom(_fenced(replica))
                continue
            try:
                order_checks.check_promise(replica, ref.epoch)
            except IcecoreError as error:
                answers[-1].error.CopyFrom(convert.error_to_proto(error))
                continue
            replica.promised_epoch = ref.epoch
            if replica.leader is not None:
                replica.leader.feed(inputs.Fenced(ref.epoch))
            replica.end_role(f"epoch {ref.epoch} was promised")
            promised.append((replica, ref.epoch))
        settled = await asyncio.gather(*(self._settle(replica) for replica, _ in promised))
        if promised:  # a token alone is no promise, and worth no memory that outlives the process
            await context.executor.run(
                context.store.promises.persist,
                [(replica.segment_id, epoch) for replica, epoch in promised],
                request.token,
            )
        self._check(request)
        by_id = {
            replica.segment_id: (replica, shortage)
            for (replica, _), shortage in zip(promised, settled, strict=True)
        }
        for ref, answer in zip(request.segments, answers, strict=True):
            if ref.segment_id not in by_id:
                continue
            replica, shortage = by_id[ref.segment_id]
            if shortage is not None:
                answer.error.CopyFrom(convert.error_to_proto(shortage))
            elif replica is self._replicas.get(ref.segment_id):
                _describe(replica, answer)
                self._replicas.note_promise(replica)
        if request.salvage:
            await self._salvage.describe(request, answers)
        context.metrics.fences.inc(len(promised))
        return coordinator_pb2.FenceResponse(
            incarnation=context.incarnation, replicas=answers
        ).SerializeToString()

    async def _settle(self, replica: Replica) -> IcecoreError | None:
        """The shortage for which it cannot be told where the log ends: not now, and no damage."""
        async with self._orders.alone(replica.segment_id):
            if not replica.counts:
                return None
            try:
                await replica.settle()
            except SHORTAGES as error:
                return error
            except IcecoreError as error:
                self._replicas.condemn(replica, f"its log did not settle: {error}")
        return None

    # --- open -----------------------------------------------------------------------------------

    async def open(self, body: bytes, _: CallContext) -> bytes:
        """Create, and where told confirm, replicas of segments about to open."""
        request = framing.parse(coordinator_pb2.OpenRequest, body)
        self._check(request)
        async with self._orders.alone(*(each.segment.segment_id for each in request.segments)):
            self._check(request)
            errors = self._refused(request)
            await self._create(request, errors)
            self._check(request)
            confirms = [
                self._confirm(item)
                for item in request.segments
                if item.confirm and errors.get(item.segment.segment_id) is None
            ]
            errors.update(await asyncio.gather(*confirms))
        return coordinator_pb2.OpenResponse(
            incarnation=self._context.incarnation,
            errors=[
                convert.error_to_proto(errors.get(each.segment.segment_id))
                for each in request.segments
            ],
        ).SerializeToString()

    def _refused(self, request: coordinator_pb2.OpenRequest) -> dict[int, IcecoreError | None]:
        """The errors of those that nobody should have ordered so; nothing of them is stored."""
        errors: dict[int, IcecoreError | None] = {}
        seen: set[int] = set()
        for item in request.segments:
            segment_id = item.segment.segment_id
            try:
                if segment_id in seen:
                    raise InvalidRequestError(f"segment {segment_id} is named twice")
                seen.add(segment_id)
                held = self._replicas.get(segment_id)
                order_checks.check_open(item, self._identity(item), held)
            except IcecoreError as error:
                errors[segment_id] = error
        return errors

    async def _create(
        self, request: coordinator_pb2.OpenRequest, errors: dict[int, IcecoreError | None]
    ) -> None:
        """Make those that are not here and have no error yet; adds what goes wrong."""
        context = self._context
        fresh: list[SegmentIdentity] = []
        for identity in map(self._identity, request.segments):
            segment_id = identity.segment_id
            if segment_id in errors or self._replicas.get(segment_id) is not None:
                continue
            if self._orders.was_deleted(segment_id) or context.store.promises.epoch_of(segment_id):
                # Deleted, or set aside as damaged: an empty log must not take its place.
                errors[segment_id] = NotReplicaError(f"segment {segment_id} was here and is gone")
            else:
                fresh.append(identity)
        if fresh:
            created = await context.executor.run(context.store.create, *_to_create(request, fresh))
            for identity, error in zip(fresh, created, strict=True):
                errors[identity.segment_id] = _refusal(error)
                if error is None:
                    self._replicas.add(Replica(context, identity, NO_TAIL, None))

    def _identity(self, item: coordinator_pb2.OpenSegment) -> SegmentIdentity:
        segment = item.segment
        return SegmentIdentity(
            cluster_id=self._context.cluster_id,
            topic_id=segment.topic_id,
            partition=segment.partition,
            segment_id=segment.segment_id,
            generation=segment.generation,
            epoch=segment.epoch,
            engine=segment.settings.engine or SEGMENT_ENGINE,
        )

    async def _confirm(self, item: coordinator_pb2.OpenSegment) -> tuple[int, IcecoreError | None]:
        """Fix base and starting state, once. The caller works on the segment alone."""
        segment_id = item.segment.segment_id
        replica = self._replicas.get(segment_id)
        if replica is None:
            return segment_id, NotReplicaError(f"segment {segment_id} was not prepared here")
        if replica.base_offset >= 0 or not replica.intact or replica.is_partial:
            return segment_id, await self._confirmed_before(replica, item)
        identity = replace(replica.identity, base_offset=item.segment.base_offset)
        try:
            producers = ProducerTable(item.producer_snapshot)
            tail = await replica.worker.run(
                self._context.store.confirm,
                identity,
                item.producer_snapshot,
                item.max_append_timestamp_ms,
            )
        except IcecoreError as error:
            return segment_id, error
        replica.begin(identity, tail, producers)
        self._replicas.add(replica)
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
            replica.counts
            and replica.idle
            and replica.tail.end_offset == replica.base_offset == item.segment.base_offset
            and replica.promised_epoch == replica.identity.epoch
        )
        if is_untouched and known == start:
            return None
        return InvalidRequestError(f"segment {replica.segment_id} is already in use here")

    # --- write back -----------------------------------------------------------------------------

    async def write_back(self, body: bytes, _: CallContext) -> bytes:
        """Bring replicas to exactly [base, end) and report their digests and producer states."""
        request = framing.parse(coordinator_pb2.WriteBackRequest, body)
        self._check(request)
        results = await asyncio.gather(
            *(self._write_back(item, request.token) for item in request.segments)
        )
        return coordinator_pb2.WriteBackResponse(
            incarnation=self._context.incarnation, results=_that_fit(results)
        ).SerializeToString()

    async def _write_back(
        self, item: coordinator_pb2.WriteBackSegment, token: int
    ) -> coordinator_pb2.WrittenBack:
        """An order that arrives once more while it is carried out gets the same answer."""
        key = (token, item.SerializeToString(deterministic=True))
        first = self._writing_back.get(key)
        if first is not None:
            return await asyncio.shield(first)
        answer: asyncio.Future[coordinator_pb2.WrittenBack]
        answer = asyncio.get_running_loop().create_future()
        self._writing_back[key] = answer
        found = coordinator_pb2.WrittenBack(
            error=convert.error_to_proto(UnavailableError("the order before it was given up"))
        )
        try:
            found = await self._carry_out(item, token)
        finally:
            del self._writing_back[key]
            answer.set_result(found)
        return found

    async def _carry_out(
        self, item: coordinator_pb2.WriteBackSegment, token: int
    ) -> coordinator_pb2.WrittenBack:
        segment = convert.segment_from_proto(item.segment)
        try:
            order_checks.check_donor(self._context, item.donor_address)
            if item.salvage:
                await self._salvage.readmit(segment)
            return await self._copier.bring_to(
                segment,
                item.end_offset,
                item.donor_address,
                expected_digest=item.seal_digest,
                seal=item.seal,
                token=token,
            )
        except IcecoreError as error:
            _log.warning(
                "write-back failed segment_id=%d end_offset=%d donor=%.300r error=%s",
                segment.segment_id,
                item.end_offset,
                item.donor_address,
                error,
            )
            return coordinator_pb2.WrittenBack(error=convert.error_to_proto(error))

    # --- roll -----------------------------------------------------------------------------------

    async def roll(self, body: bytes, _: CallContext) -> bytes:
        """Seal these segments now, if we lead them and they hold anything to seal."""
        request = framing.parse(coordinator_pb2.RollRequest, body)
        self._check(request)
        errors: list[IcecoreError | None] = []
        empty: list[int] = []
        for ref in request.segments:
            replica = self._replicas.get(ref.segment_id)
            if replica is None or replica.leader is None:
                errors.append(NotLeaderError(f"segment {ref.segment_id} is not led here"))
                continue
            if replica.tail.end_offset == replica.base_offset:
                empty.append(ref.segment_id)
            why = repr(request.why[:WHY_MAX]) if request.why else "asked by the coordinator"
            replica.leader.feed(inputs.RollRequested(why))
            errors.append(None)
        return coordinator_pb2.RollResponse(
            incarnation=self._context.incarnation,
            errors=[convert.error_to_proto(error) for error in errors],
            empty_segment_ids=empty,
        ).SerializeToString()

    # --- seal -----------------------------------------------------------------------------------

    async def check_seal(self, body: bytes, _: CallContext) -> bytes:
        """What we hold of segments that are to be sealed, in our own words."""
        request = framing.parse(coordinator_pb2.CheckSealRequest, body)
        self._check(request)
        return coordinator_pb2.CheckSealResponse(
            incarnation=self._context.incarnation,
            replicas=[self._held_end(ref.segment_id) for ref in request.segments],
        ).SerializeToString()

    def _held_end(self, segment_id: int) -> coordinator_pb2.HeldEnd:
        replica = self._replicas.get(segment_id)
        if replica is None or not replica.counts or replica.sealed:
            error = NotReplicaError(f"no intact open replica of segment {segment_id} here")
            return coordinator_pb2.HeldEnd(error=convert.error_to_proto(error))
        if replica.promised_epoch > replica.identity.epoch:
            return coordinator_pb2.HeldEnd(error=_fenced(replica))
        leader, tail = self._replicas.leader_of(replica), replica.durable_tail
        seen = max(replica.tail.max_known_high_watermark, replica.high_watermark)
        return coordinator_pb2.HeldEnd(
            durable_end_offset=tail.end_offset,
            seal_digest=tail.digest,
            producer_digest=replica.producers.digest(),
            high_watermark=seen,
            sealing=leader is not None and leader.core.sealing_end_offset == tail.end_offset,
            length_bytes=tail.length_bytes,
        )

    # --- producers ------------------------------------------------------------------------------

    async def fence_producers(self, body: bytes, _: CallContext) -> bytes:
        """Refuse older epochs of named producers; how far each got in what is led here.

        Needs no disk: a process that is started again leads nothing that it led before, and hears
        all fences before it leads anything new.
        """
        request = framing.parse(coordinator_pb2.FenceProducersRequest, body)
        context = self._context
        self._check(request)
        answer = coordinator_pb2.FenceProducersResponse(incarnation=context.incarnation)
        for fence in request.fences:
            order_checks.check_producer_fence(context, fence.producer_id, fence.min_epoch)
        for fence in request.fences:
            context.fence_producer(fence.producer_id, fence.min_epoch)
            for leader in self._replicas.leaders():
                last = leader.core.producers.last_sequence(fence.producer_id)
                if last is not None:
                    answer.positions.add(
                        topic_id=leader.segment.topic_id,
                        partition=leader.segment.partition,
                        producer_epoch=last[0],
                        next_sequence=last[1],
                    )
        return answer.SerializeToString()


def _refusal(error: IcecoreError | None) -> IcecoreError | None:
    """What an Open is answered with: a shortage as what it is, all else means "not here"."""
    if error is None or isinstance(error, OutOfResourcesError):
        return error
    return ReadOnlyError(str(error))


def _to_create(
    request: coordinator_pb2.OpenRequest, fresh: Sequence[SegmentIdentity]
) -> tuple[list[SegmentIdentity], dict[int, tuple[bytes, int]]]:
    """Arguments of ``ReplicaStore.create``: what is to be confirmed needs no second sync."""
    final = {each.segment.segment_id: each for each in request.segments if each.confirm}
    identities: list[SegmentIdentity] = []
    starts: dict[int, tuple[bytes, int]] = {}
    for each in fresh:
        base_offset = each.base_offset
        if (item := final.get(each.segment_id)) is not None:
            base_offset = item.segment.base_offset
            starts[each.segment_id] = (item.producer_snapshot, item.max_append_timestamp_ms)
        identities.append(replace(each, base_offset=base_offset))
    return identities, starts


def _that_fit(
    results: Sequence[coordinator_pb2.WrittenBack],
) -> list[coordinator_pb2.WrittenBack]:
    """As many as one message holds, at least one good one; an error to ask again for the rest."""
    full = ThrottledError("the answer is full, ask again for this segment")
    found: list[coordinator_pb2.WrittenBack] = []
    used = 0
    for each in results:
        size = len(each.producer_snapshot)
        if used and size and used + size > parts.PART_BYTES_MAX:
            found.append(coordinator_pb2.WrittenBack(error=convert.error_to_proto(full)))
            continue
        used += size
        found.append(each)
    return found


def _fenced(replica: Replica) -> common_pb2.Error:
    return convert.error_to_proto(
        FencedError(
            f"epoch {replica.promised_epoch} is promised for segment {replica.segment_id}",
            promised_epoch=replica.promised_epoch,
        )
    )


def _describe(replica: Replica, answer: coordinator_pb2.FencedReplica) -> None:
    """From now on no write-back may cut what was told here, until the end is decided."""
    if not replica.counts:
        return
    tail = replica.durable_tail
    replica.told_end_offset = max(replica.told_end_offset, tail.end_offset)
    answer.intact = True
    answer.durable_end_offset = tail.end_offset
    answer.last_header_crc32c = tail.last_header_crc32c
    answer.digest = tail.digest
    answer.max_known_high_watermark = max(
        replica.tail.max_known_high_watermark, replica.high_watermark
    )
