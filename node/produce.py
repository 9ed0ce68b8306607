"""Produce: check each batch, give it to its partition's leader, answer when all have answered.

One request carries batches of many partitions; each gets its own result, in order. All checks
that need no partition state happen before anything is appended. The bytes of requests being
worked on are counted, and beyond the bound new ones are refused (THROTTLED) instead of queued.
"""

import asyncio

from icecore import batch, convert, record, wire
from icecore.batch import BatchHeader
from icecore.errors import (
    BatchTooLargeError,
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    ThrottledError,
)
from icecore.model import Acks
from icecore.ports import CallContext
from icecore.v1 import common_pb2, data_pb2
from node.context import NodeContext
from node.leader import Leader, Produced
from node.replicas import Replicas

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

    def __init__(self, context: NodeContext, replicas: Replicas) -> None:
        self._context = context
        self._replicas = replicas
        self.inflight_bytes = 0

    async def produce(self, body: bytes, _: CallContext) -> bytes:
        """``ProduceRequest`` to ``ProduceResponse``, both as bytes."""
        context, metrics = self._context, self._context.metrics
        started_ms = context.clock.monotonic_ms()
        header_bytes, data = wire.split_bulk(body, data_pb2.ProduceRequest)
        header = wire.parse(data_pb2.ProduceHeader, header_bytes)
        context.check_cluster(header.cluster_id)
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
            self._append_all(call, header, acks, data)
            if header.partitions:
                await self._wait(call, header.timeout_ms)
        finally:
            self.inflight_bytes -= len(body)
            elapsed_ms = context.clock.monotonic_ms() - started_ms
            metrics.produce_latency_seconds.observe(elapsed_ms / 1000)
        return self._answer(call).SerializeToString()

    def _append_all(
        self, call: _ProduceCall, header: data_pb2.ProduceHeader, acks: Acks, data: memoryview
    ) -> None:
        position = records = length = 0
        for slot, entry in enumerate(header.partitions):
            end = position + entry.batch_length
            try:
                leader = self._replicas.leader(
                    entry.topic_id, entry.topic, entry.partition, entry.epoch
                )
                one, checked = self._checked(leader, entry, data[position:end])
            except IcecoreError as error:
                call.produced(slot, error)
            else:
                records += checked.record_count
                length += checked.batch_length
                leader.produce(call, slot, acks, one, checked)
            position = end
        self._context.metrics.produce_records.inc(records)
        self._context.metrics.produce_bytes.inc(length)

    def _checked(
        self, leader: Leader, entry: data_pb2.ProducePartition, data: memoryview
    ) -> tuple[memoryview, BatchHeader]:
        """The batch of one entry and its header, valid as a whole."""
        limits = self._context.settings.batch_limits
        if not len(data):
            data = memoryview(self._encode(entry))
        if len(data) > limits.batch_bytes_max:
            raise BatchTooLargeError(
                f"batch of {len(data)} bytes exceeds batch_bytes_max {limits.batch_bytes_max}"
            )
        header = batch.check_produced(data, 0, limits)
        if header.batch_length != len(data):
            raise InvalidRequestError(
                f"the batch says {header.batch_length} bytes, the request {len(data)}"
            )
        record.check_index(
            data, 0, header, hash_check=leader.segment.settings.partitioner == "xxh64"
        )
        return data, header

    def _encode(self, entry: data_pb2.ProducePartition) -> bytes:
        """Clear records of a client without the codec, as one batch."""
        if not entry.records:
            raise InvalidRequestError("neither a batch nor records")
        now_ms = self._context.clock.now_ms()
        records = entry.records
        return record.encode_columns(
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

    async def _wait(self, call: _ProduceCall, timeout_ms: int) -> None:
        """Until all have answered or the time is over; what is missing then has timed out."""
        try:
            async with asyncio.timeout((timeout_ms or DEFAULT_TIMEOUT_MS) / 1000):
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
