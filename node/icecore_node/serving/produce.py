"""Produce: check each batch, give it to its partition's leader, answer when all have answered.

One request carries batches of many partitions; each gets its own result, in order. All checks
that need no partition state (``batch_checks.py``) happen before anything is appended.

The handler is a direct one. A request is admitted by its header, before its batches are received
where the transport can: from then on its bytes are counted, until no leader holds any of them, and
beyond the bound new requests are refused (THROTTLED) instead of queued. One of ordinary size is
checked and appended in the callback that received it, and answered in the one that finds the last
of its batches acknowledged. Only a request that must be inflated on a thread costs a task. Later
requests of the same connection to the same partition are appended after it: their sequences may
follow on it.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from icecore.codec import record
from icecore.codec.hashes import header_hashes
from icecore.errors import IcecoreError, InvalidRequestError, RequestTimeoutError, ThrottledError
from icecore.model import Acks
from icecore.rpc import convert, framing
from icecore.rpc.handling import failure_of
from icecore.rpc.methods import DATA
from icecore.rpc.ports import Admitted, Answer, Body, CallContext, DirectHandler, Received
from icecore.rpc.turns import Turns
from icecore.topic_settings import FlushMode
from icecore.v1 import common_pb2, data_pb2
from icecore_node.context import NodeContext
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.memory_room import MemoryRoom
from icecore_node.replication.leader import Leader, Offered, Produced
from icecore_node.serving.batch_checks import (
    CheckedBatch,
    are_light,
    check_contents,
    check_frame,
    check_heavy,
)

DEFAULT_TIMEOUT_MS = 30_000
RETRY_AFTER_MS = 50
_SHORT_MAX = 256
"""Maximum number of entries, or plain records, that are checked without a pause."""
_ENCODING_HOLDS = 4
"""Factor: memory that encoding takes, as a multiple of the plain records' size in a request."""
_Line: TypeAlias = tuple[str, bytes, str, int]
"""A connection and a partition; batches of one line are appended in the order in which they were
sent."""
FLUSH_MODES = {
    FlushMode.SYNC: common_pb2.FLUSH_MODE_SYNC,
    FlushMode.ASYNC: common_pb2.FLUSH_MODE_ASYNC,
}
_ACKS = {0: Acks.ALL, 1: Acks.ALL, 2: Acks.QUORUM, 3: Acks.LEADER}

_Outcome: TypeAlias = Produced | IcecoreError | None


class _ProduceCall:
    """Collects the outcomes of one request's batches, and ends once.

    Args:
        header: Header of the request.
        acks: When its leaders answer.
        on_end: Called when each batch has its outcome, or the time is over.
        on_release: Called when it has ended and no leader holds a batch of it any more.
    """

    def __init__(
        self,
        header: data_pb2.ProduceHeader,
        acks: Acks,
        on_end: Callable[["_ProduceCall"], None],
        on_release: Callable[[], None],
    ) -> None:
        count = len(header.partitions)
        self.header, self.acks = header, acks
        self.outcomes: list[_Outcome] = [None] * count
        self.checking: asyncio.Task[None] | None = None
        """Under way while batches are inflated elsewhere."""
        self.is_over = False
        self._missing = count
        self._held = 0
        """Number of batches whose outcome the leaders have not reported yet."""
        self._on_end = on_end
        self._on_release = on_release
        timeout_s = (header.timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._late)

    def offered(self, count: int) -> None:
        """Note that a leader is given this many batches, and will report the outcome of each."""
        self._held += count

    def produced(self, slot: int, result: Produced | IcecoreError) -> None:
        """Take the outcome of one batch, as ``ProduceWaiter``. When the call is over, the answer
        stays as it is."""
        self._held -= 1
        if self.is_over and not self._held:
            self._on_release()
        self.settle(slot, result)

    def settle(self, slot: int, result: Produced | IcecoreError) -> None:
        """The outcome of one batch, unless the call is over."""
        if self.is_over:
            return
        self.outcomes[slot] = result
        self._missing -= 1
        if self._missing == 0:
            self._end()

    def fail(self, error: IcecoreError) -> None:
        """The outcome of all batches that have none yet. Does nothing when the call is over."""
        if not self.is_over:
            self.outcomes = [each if each is not None else error for each in self.outcomes]
            self._end()

    def _late(self) -> None:
        """Fail the batches that have no outcome yet with a timeout. They may be appended all the
        same."""
        if self.checking is not None:
            self.checking.cancel()
        self.fail(RequestTimeoutError("the replicas did not confirm in time"))

    def _end(self) -> None:
        self.is_over = True
        self._timer.cancel()
        if not self._held:
            self._on_release()
        self._on_end(self)


class ProduceHandler:
    """Handler of ``DataService/Produce``."""

    def __init__(
        self,
        context: NodeContext,
        leaders: Leaders,
        heavy_work: HeavyWork,
        memory_room: MemoryRoom,
    ) -> None:
        self._context = context
        self._memory_room = memory_room
        self._heavy_work = heavy_work
        self._leaders = leaders
        self._last_later: dict[_Line, asyncio.Task[None]] = {}
        """The last request of each line that could not be appended at once."""
        self.inflight_bytes = 0

    @property
    def handler(self) -> DirectHandler:
        """``ProduceRequest`` to ``ProduceResponse``."""
        return DirectHandler(data_pb2.ProduceRequest, self.admit)

    def admit(self, header_bytes: bytes, body_bytes: int, caller: CallContext) -> Admitted | Body:
        """Refuse a request, or count it from now on; see ``icecore.rpc.ports.Admit``."""
        header = framing.parse(data_pb2.ProduceHeader, header_bytes)
        self._context.identity.check_cluster(header.cluster_id)
        acks = _ACKS.get(header.acks)
        if acks is None:
            raise InvalidRequestError(f"acks has no number {header.acks}")
        if not header.partitions:
            raise InvalidRequestError("a produce request names no partition")
        if sum(entry.batch_length for entry in header.partitions) != body_bytes:
            raise InvalidRequestError("batch lengths do not add up to the batches sent")
        size_bytes = len(header_bytes) + body_bytes
        limit = self._context.settings.produce_inflight_bytes_max
        if self.inflight_bytes + size_bytes > limit and self.inflight_bytes:
            raise ThrottledError(
                f"{self.inflight_bytes} bytes of produce requests are being worked on already",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._context.metrics.produce_requests[acks.name.lower()].inc()
        if (refusals := self._refusals(header)) is not None:
            return self._response(refusals).SerializeToString()
        self.inflight_bytes += size_bytes

        def release() -> None:
            self.inflight_bytes -= size_bytes

        def run(body: Received, answer: Answer) -> None:
            call = _ProduceCall(header, acks, self._answering(answer), release)
            self._run(call, body, caller)

        return Admitted(run, release)

    def _refusals(self, header: data_pb2.ProduceHeader) -> list[_Outcome] | None:
        """An error for each entry when this node leads none of them; None when it leads one."""
        refusals: list[_Outcome] = []
        for entry in header.partitions:
            try:
                self._leader(entry)
            except IcecoreError as error:
                refusals.append(error)
            else:
                return None
        return refusals

    def _answering(self, answer: Answer) -> Callable[[_ProduceCall], None]:
        """Return the function that answers a request; its latency counts from this call."""
        clock, metrics = self._context.clock, self._context.metrics
        started_ms = clock.monotonic_ms()

        def end(call: _ProduceCall) -> None:
            elapsed_ms = clock.monotonic_ms() - started_ms
            metrics.produce_latency_seconds.observe(elapsed_ms / 1000)
            answer(self._response(call.outcomes).SerializeToString())

        return end

    def _run(self, call: _ProduceCall, body: Received, caller: CallContext) -> None:
        try:
            self._begin(call, memoryview(body), caller)
        except Exception as error:  # whatever it is, the caller hears of it, once
            call.fail(failure_of(DATA["Produce"], error))

    def _begin(self, call: _ProduceCall, data: memoryview, caller: CallContext) -> None:
        """Check all, then append in the order of the request, with nothing in between."""
        batches: dict[int, CheckedBatch] | None = None
        if not _is_long(call.header):
            batches = self._check_frames(call, data)
            checked = list(batches.values())
            if not self._last_later and are_light(checked):
                check_contents(checked)
                self._append(call, batches)
                return
        lines = {
            (caller.peer, each.topic_id, each.topic, each.partition)
            for each in call.header.partitions
        }
        before = {self._last_later[each] for each in lines if each in self._last_later}
        call.checking = later = self._context.tasks.start(
            self._append_later(call, data, batches, before, caller)
        )
        for line in lines:
            self._last_later[line] = later
        later.add_done_callback(partial(self._appended, lines))

    def _appended(self, lines: set[_Line], later: "asyncio.Task[None]") -> None:
        for line in lines:
            if self._last_later.get(line) is later:
                del self._last_later[line]

    def _check_frames(self, call: _ProduceCall, data: memoryview) -> dict[int, CheckedBatch]:
        batches: dict[int, CheckedBatch] = {}
        for slot, entry, one in _entries(call.header, data):
            try:
                settings = self._leader(entry).segment.settings
                if not len(one):
                    one = self._encode(entry, settings.indexed_headers)
                batches[slot] = check_frame(one, settings)
            except IcecoreError as error:
                call.settle(slot, error)
        return batches

    async def _check_long(
        self, call: _ProduceCall, data: memoryview, turns: Turns
    ) -> dict[int, CheckedBatch]:
        """Do the work of ``_check_frames`` and give turns to other requests. Records are encoded on
        a thread."""
        batches: dict[int, CheckedBatch] = {}
        for slot, entry, one in _entries(call.header, data):
            await turns.give()
            try:
                settings = self._leader(entry).segment.settings
                if not len(one):
                    held_bytes = _ENCODING_HOLDS * entry.ByteSize()
                    one = await self._heavy_work.run(
                        held_bytes, self._encode, entry, settings.indexed_headers
                    )
                batches[slot] = check_frame(one, settings)
            except IcecoreError as error:
                call.settle(slot, error)
        return batches

    async def _append_later(
        self,
        call: _ProduceCall,
        data: memoryview,
        batches: dict[int, CheckedBatch] | None,
        before: "set[asyncio.Task[None]]",
        caller: CallContext,
    ) -> None:
        """Check a request's batches, then append them. Cancelled when the time is over before
        that."""
        try:
            if batches is None:
                batches = await self._check_long(call, data, Turns(caller.slot))
            checked = list(batches.values())
            if are_light(checked):
                check_contents(checked)
            else:
                await check_heavy(checked, self._heavy_work)
            if before:
                await asyncio.wait(before)
            call.checking = None
            self._append(call, batches)
        except Exception as error:  # whatever it is, the caller hears of it
            call.fail(failure_of(DATA["Produce"], error))

    def _append(self, call: _ProduceCall, batches: dict[int, CheckedBatch]) -> None:
        records = length = 0
        offered: dict[Leader, list[Offered]] = {}
        for slot, checked in batches.items():
            try:
                if checked.error is not None:
                    raise checked.error
                leader = self._leader(call.header.partitions[slot])  # perhaps another one by now
            except IcecoreError as error:
                call.settle(slot, error)
                continue
            offered.setdefault(leader, []).append(Offered(slot, checked.data, checked.header))
        for leader, group in offered.items():
            size_bytes = sum(each.header.batch_length for each in group)
            try:
                self._memory_room.take(leader, size_bytes)
            except ThrottledError as error:  # all of them: they keep their order
                for each in group:
                    call.settle(each.slot, error)
                continue
            records += sum(each.header.record_count for each in group)
            length += size_bytes
            call.offered(len(group))
            leader.produce(call, call.acks, group)
        self._context.metrics.produce_records.inc(records)
        self._context.metrics.produce_bytes.inc(length)

    def _leader(self, entry: data_pb2.ProducePartition) -> Leader:
        """Return the leader of an entry's partition. Raises IcecoreError when it is not here."""
        return self._leaders.leader(entry.topic_id, entry.topic, entry.partition, entry.epoch)

    def _encode(
        self, entry: data_pb2.ProducePartition, indexed_headers: tuple[str, ...]
    ) -> memoryview:
        """Encode the plain records of a client without the codec as one batch."""
        if not entry.records:
            raise InvalidRequestError("neither a batch nor records")
        now_ms = self._context.clock.now_ms()
        records = entry.records
        headers = [
            tuple(
                (each.name, each.value if each.HasField("value") else None) for each in one.headers
            )
            for one in records
        ]
        encoded = record.encode_columns(
            values=[each.value if each.HasField("value") else None for each in records],
            timestamps_ms=[each.timestamp_ms or now_ms for each in records],
            keys=[each.key if each.HasField("key") else None for each in records],
            tags=[tuple(each.tags) for each in records],
            headers=headers,
            header_hashes=header_hashes(headers, indexed_headers) if indexed_headers else None,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            base_sequence=entry.base_sequence,
        )
        return memoryview(encoded)

    def _response(self, outcomes: Sequence[_Outcome]) -> data_pb2.ProduceResponse:
        answer = data_pb2.ProduceResponse()
        metrics = self._context.metrics
        for outcome in outcomes:
            result = answer.partitions.add()
            if isinstance(outcome, Produced):
                result.base_offset = outcome.base_offset
                result.segment_id = outcome.segment_id
                result.epoch = outcome.epoch
                result.append_timestamp_ms = outcome.append_timestamp_ms
                result.durable_copies = outcome.durable_copies
                result.duplicate = outcome.duplicate
                result.batches_kept = outcome.batches_kept
                result.flush_mode = FLUSH_MODES[outcome.flush_mode]
                if outcome.duplicate:
                    metrics.produce_duplicates.inc()
                else:
                    metrics.produce_batches.inc()
            elif outcome is not None:
                result.error.CopyFrom(convert.error_to_proto(outcome))
                metrics.produce_errors.labels(outcome.reason).inc()
        return answer


def _is_long(header: data_pb2.ProduceHeader) -> bool:
    entries = header.partitions
    return len(entries) > _SHORT_MAX or sum(len(each.records) for each in entries) > _SHORT_MAX


def _entries(
    header: data_pb2.ProduceHeader, data: memoryview
) -> Iterator[tuple[int, data_pb2.ProducePartition, memoryview]]:
    """Number, entry and batch of each; the batch is empty where there are records instead."""
    position = 0
    for slot, entry in enumerate(header.partitions):
        end = position + entry.batch_length
        yield slot, entry, data[position:end]
        position = end
