"""Produce: check each batch, give it to its partition's leader, answer when all have answered.

One request carries batches of many partitions; each gets its own result, in order. All checks
that need no partition state (``batch_checks.py``) happen before anything is appended. The bytes of
requests being worked on are counted, and beyond the bound new ones are refused (THROTTLED) instead
of queued.
"""

import asyncio

from icecore.codec import record
from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    ThrottledError,
)
from icecore.model import Acks
from icecore.rpc import convert, framing
from icecore.rpc.ports import CallContext, Received
from icecore.v1 import common_pb2, data_pb2
from icecore_node.context import NodeContext
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.registry.leaders import Leaders
from icecore_node.roles.leader import Leader, Offered, Produced
from icecore_node.serving.batch_checks import CheckedBatch, check_contents, check_frame

DEFAULT_TIMEOUT_MS = 30_000
RETRY_AFTER_MS = 50
_ACKS = {0: Acks.ALL, 1: Acks.ALL, 2: Acks.QUORUM, 3: Acks.LEADER}


class _ProduceCall:
    """Collects the outcomes of one request's batches."""

    def __init__(self, count: int) -> None:
        self.outcomes: list[Produced | IcecoreError | None] = [None] * count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._missing = count

    def produced(self, slot: int, result: Produced | IcecoreError) -> None:
        self.outcomes[slot] = result
        self._missing -= 1
        if self._missing == 0 and not self.done.done():
            self.done.set_result(None)


class ProduceHandler:
    """Handler of ``DataService/Produce``."""

    def __init__(self, context: NodeContext, leaders: Leaders, heavy_work: HeavyWork) -> None:
        self._context = context
        self._heavy_work = heavy_work
        self._leaders = leaders
        self.inflight_bytes = 0

    async def produce(self, body: Received, _: CallContext) -> bytes:
        """``ProduceRequest`` to ``ProduceResponse``, both as bytes."""
        context, metrics = self._context, self._context.metrics
        started_ms = context.clock.monotonic_ms()
        header_bytes, data = framing.split_bulk(body, data_pb2.ProduceRequest)
        header = framing.parse(data_pb2.ProduceHeader, header_bytes)
        context.identity.check_cluster(header.cluster_id)
        acks = _ACKS.get(header.acks)
        if acks is None:
            raise InvalidRequestError(f"acks has no number {header.acks}")
        if sum(entry.batch_length for entry in header.partitions) != len(data):
            raise InvalidRequestError("batch lengths do not add up to the batches sent")
        limit = context.settings.produce_inflight_bytes_max
        if self.inflight_bytes + len(body) > limit and self.inflight_bytes:
            raise ThrottledError(
                f"{self.inflight_bytes} bytes of produce requests are being worked on already",
                retry_after_ms=RETRY_AFTER_MS,
            )
        metrics.produce_requests[acks.name.lower()].inc()
        self.inflight_bytes += len(body)
        try:
            call = _ProduceCall(len(header.partitions))
            if header.partitions:
                await self._work(call, header, acks, data)
        finally:
            self.inflight_bytes -= len(body)
            elapsed_ms = context.clock.monotonic_ms() - started_ms
            metrics.produce_latency_seconds.observe(elapsed_ms / 1000)
        return self._answer(call).SerializeToString()

    async def _append_all(
        self, call: _ProduceCall, header: data_pb2.ProduceHeader, acks: Acks, data: memoryview
    ) -> None:
        """Check all, then append in the order of the request, with nothing in between."""
        batches: dict[int, CheckedBatch] = {}
        position = 0
        for slot, entry in enumerate(header.partitions):
            end = position + entry.batch_length
            try:
                settings = self._leader(entry).segment.settings
                one = data[position:end]
                batches[slot] = check_frame(one if len(one) else self._encode(entry), settings)
            except IcecoreError as error:
                call.produced(slot, error)
            position = end
        await check_contents(list(batches.values()), self._heavy_work)
        records = length = 0
        offered: dict[Leader, list[Offered]] = {}
        for slot, checked in batches.items():
            try:
                if checked.error is not None:
                    raise checked.error
                leader = self._leader(header.partitions[slot])  # there may be another one by now
            except IcecoreError as error:
                call.produced(slot, error)
                continue
            records += checked.header.record_count
            length += checked.header.batch_length
            offered.setdefault(leader, []).append(Offered(slot, checked.data, checked.header))
        for leader, group in offered.items():
            leader.produce(call, acks, group)
        self._context.metrics.produce_records.inc(records)
        self._context.metrics.produce_bytes.inc(length)

    def _leader(self, entry: data_pb2.ProducePartition) -> Leader:
        """Raises IcecoreError when it is not here."""
        return self._leaders.leader(entry.topic_id, entry.topic, entry.partition, entry.epoch)

    def _encode(self, entry: data_pb2.ProducePartition) -> memoryview:
        """Clear records of a client without the codec, as one batch."""
        if not entry.records:
            raise InvalidRequestError("neither a batch nor records")
        now_ms = self._context.clock.now_ms()
        records = entry.records
        encoded = record.encode_columns(
            values=[each.value if each.HasField("value") else None for each in records],
            timestamps_ms=[each.timestamp_ms or now_ms for each in records],
            keys=[each.key if each.HasField("key") else None for each in records],
            tags=[tuple(each.tags) for each in records],
            headers=[
                tuple(
                    (each.name, each.value if each.HasField("value") else None)
                    for each in one.headers
                )
                for one in records
            ],
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            base_sequence=entry.base_sequence,
        )
        return memoryview(encoded)

    async def _work(
        self, call: _ProduceCall, header: data_pb2.ProduceHeader, acks: Acks, data: memoryview
    ) -> None:
        """Wait until all have answered or the time is over; what is missing then has timed out."""
        try:
            async with asyncio.timeout((header.timeout_ms or DEFAULT_TIMEOUT_MS) / 1000):
                await self._append_all(call, header, acks, data)
                await call.done
        except TimeoutError:
            late = RequestTimeoutError("the replicas did not confirm in time")
            call.outcomes = [each if each is not None else late for each in call.outcomes]

    def _answer(self, call: _ProduceCall) -> data_pb2.ProduceResponse:
        answer = data_pb2.ProduceResponse()
        metrics = self._context.metrics
        for outcome in call.outcomes:
            result = answer.partitions.add()
            if isinstance(outcome, Produced):
                result.base_offset = outcome.base_offset
                result.segment_id = outcome.segment_id
                result.epoch = outcome.epoch
                result.append_timestamp_ms = outcome.append_timestamp_ms
                result.durable_copies = outcome.durable_copies
                result.duplicate = outcome.duplicate
                result.flush_mode = common_pb2.FLUSH_MODE_SYNC
                if outcome.duplicate:
                    metrics.produce_duplicates.inc()
                else:
                    metrics.produce_batches.inc()
            elif outcome is not None:
                result.error.CopyFrom(convert.error_to_proto(outcome))
                metrics.produce_errors.labels(outcome.reason).inc()
        return answer
