"""The node's conversations with the coordinator: registration, heartbeats, batched requests.

Heartbeats prove that the I/O workers turn, not just the loop: a beat goes out only after every
worker answered a probe, so a node whose disk stalls loses its lease. The lease counts from when a
beat was *sent*, on our monotonic clock; it only gates ``acks=leader``. Requests of many leaders
(in-sync sets, successors, seals) that arrive in the same turn of the loop share one RPC.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from icecore.errors import (
    IcecoreError,
    InternalError,
    NotCoordinatorError,
    SupersededError,
    WrongClusterError,
)
from icecore.model import Segment
from icecore.rpc import convert
from icecore.rpc.methods import COORDINATOR
from icecore.rpc.parts import in_parts
from icecore.rpc.ports import ClientStream
from icecore.v1 import common_pb2, coordinator_pb2
from icecore_node.context import NodeContext, end_task

_log = logging.getLogger(__name__)

_FromThisNode: TypeAlias = (
    coordinator_pb2.AlterIsrRequest
    | coordinator_pb2.PrepareSuccessorRequest
    | coordinator_pb2.ReportDigestsRequest
    | coordinator_pb2.RequestRecoveryRequest
    | coordinator_pb2.SealRequest
)
RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

RETRY_S = 0.1
CALL_TIMEOUT_S = 5.0
SEAL_TIMEOUT_S = 15.0


class _Batcher(Generic[RequestT, ResultT]):
    """Collects requests of one turn of the loop into one call with a list, or as many calls as it
    takes when they are too large for one message."""

    def __init__(
        self,
        call: Callable[[list[RequestT]], Awaitable[list[ResultT]]],
        bytes_of: Callable[[RequestT], int] = lambda _: 0,
    ) -> None:
        self._call = call
        self._bytes_of = bytes_of
        self._waiting: list[tuple[RequestT, asyncio.Future[ResultT]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, request: RequestT) -> ResultT:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._waiting.append((request, future))
        if len(self._waiting) == 1:
            task = loop.create_task(self._flush())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _flush(self) -> None:
        await asyncio.sleep(0)
        waiting, self._waiting = self._waiting, []
        for part in in_parts(waiting, lambda each: self._bytes_of(each[0])):
            await self._send(part)

    async def _send(self, waiting: Sequence[tuple[RequestT, asyncio.Future[ResultT]]]) -> None:
        """One call; what goes wrong with it is no matter of the calls after it."""
        try:
            results = await self._call([request for request, _ in waiting])
            if len(results) != len(waiting):
                raise InternalError(f"{len(results)} answers to {len(waiting)} requests")
        except Exception as error:  # whoever waits must hear of it, or waits for ever
            known = error if isinstance(error, IcecoreError) else InternalError(repr(error))
            if known is not error:
                _log.exception("unexpected answer of the coordinator")
            for _, future in waiting:
                if not future.done():
                    future.set_exception(known)
            return
        for (_, future), result in zip(waiting, results, strict=True):
            if not future.done():
                future.set_result(result)


class LedLog(NamedTuple):
    """How far a segment is that this node leads."""

    high_watermark: int
    length_bytes: int
    """Of what is durable here."""


class Standing(NamedTuple):
    """How things are on this node."""

    unknown_ids: list[int]
    """Segments whose copy here counts for nothing."""
    led: dict[int, LedLog]
    """By segment."""
    fenced_ids: Sequence[int] = ()
    """ACTIVE segments that a promise keeps this node out of."""


class BeatNews(Protocol):
    """What has more to say with beats; ``serving/disk_report.py``."""

    def begin(self) -> None:
        """A new stream begins: tell all of it."""
        ...

    async def fill(self, beat: coordinator_pb2.HeartbeatRequest) -> None:
        """Add to a beat that is about to be sent."""
        ...


class CoordinatorLink:
    """Everything this node says to the coordinator and hears from it."""

    def __init__(
        self,
        context: NodeContext,
        on_update: Callable[[coordinator_pb2.HeartbeatResponse], None],
        standing: Callable[[], Standing],
    ) -> None:
        """
        Args:
            context: The node.
            on_update: Called with every message of the coordinator.
            standing: What the first beat of each stream says.
        """
        self._context = context
        self._on_update = on_update
        self._standing = standing
        addresses = context.settings.coordinator.split(",")
        self._addresses = [address.strip() for address in addresses]
        self._active = 0
        self._lease_ms = 6000
        self._heartbeat_ms = 500
        self._lease_end_ms = 0.0
        self._sequence = 0
        self._sent_at_ms: dict[int, float] = {}
        self._moved: dict[int, LedLog] = {}
        self._unknown: dict[int, None] = {}
        self._disputed: dict[int, None] = {}
        self.disk_report: BeatNews | None = None
        self._fenced: dict[int, None] = {}
        self.read_only = False
        """The disk is getting full: no new replicas, please."""
        self._draining = False
        self._leaving = False
        self._beat_now = asyncio.Event()
        self.heard = asyncio.Event()
        """Set by every message of the coordinator, and when the stream breaks."""
        self.is_connected = False
        """Whether a stream is open on which the coordinator has answered."""
        self.was_heard = False
        """Whether the coordinator ever answered a beat: then our incarnation counted."""
        self.may_leave = False
        """Whether the coordinator said that nobody needs this node, which is draining."""
        self._isr: _Batcher[coordinator_pb2.IsrChange, coordinator_pb2.IsrResult] = _Batcher(
            self._call_alter_isr
        )
        self._prepare: _Batcher[coordinator_pb2.SegmentRef, coordinator_pb2.PreparedSuccessor] = (
            _Batcher(self._call_prepare)
        )
        self._seal: _Batcher[coordinator_pb2.SegmentSeal, coordinator_pb2.SealResult] = _Batcher(
            self._call_seal, lambda seal: len(seal.producer_snapshot)
        )

    # --- registration and heartbeats ------------------------------------------------------------

    async def register(
        self, request: coordinator_pb2.RegisterRequest
    ) -> coordinator_pb2.RegisterResponse:
        """Get an incarnation; waits for a coordinator as long as it takes.

        Raises WrongClusterError and other definite refusals.
        """
        body = request.SerializeToString()
        while True:
            try:
                answer = coordinator_pb2.RegisterResponse.FromString(
                    await self._call("Register", body, CALL_TIMEOUT_S)
                )
            except IcecoreError as error:
                if not error.retriable:
                    raise
                _log.warning("coordinator not reachable address=%s error=%s", self._address, error)
                await asyncio.sleep(RETRY_S * 5)
                continue
            self._lease_ms = answer.lease_ms or self._lease_ms
            self._heartbeat_ms = answer.heartbeat_ms or self._heartbeat_ms
            return answer

    async def run(self) -> None:
        """Keep a heartbeat stream open until cancelled.

        Raises SupersededError when another incarnation of this node counts, and
        WrongClusterError: the process must end.
        """
        while True:
            stream = self._context.net.open_stream(self._address, COORDINATOR["Heartbeat"])
            try:
                await self._converse(stream)
            except (SupersededError, WrongClusterError):
                raise
            except IcecoreError as error:
                _log.info("heartbeat stream broke error=%s", error)
                self._next_address()
            finally:
                stream.cancel()
            await asyncio.sleep(RETRY_S)

    async def _converse(self, stream: ClientStream) -> None:
        # All of it, not only what is new: a coordinator that was restarted knows none (R32).
        standing = self._standing()
        self._unknown = dict.fromkeys(standing.unknown_ids)
        self._moved = dict(standing.led)
        if self.disk_report is not None:
            self.disk_report.begin()
        self._fenced = dict.fromkeys(standing.fenced_ids)
        writer = asyncio.get_running_loop().create_task(self._beat(stream))
        writer.add_done_callback(lambda _: stream.cancel())  # no beats, no stream
        try:
            while (body := await stream.read()) is not None:
                update = coordinator_pb2.HeartbeatResponse.FromString(body)
                if update.token < self._context.token:
                    # It may live on for as long as it has nothing to change (R36).
                    raise NotCoordinatorError(
                        f"coordinator token {update.token} is older than {self._context.token}; "
                        "if no newer coordinator runs: icecore-node reset-token"
                    )
                self.is_connected = self.was_heard = True
                self.may_leave = update.may_leave
                self._renew(update.sequence)
                self._on_update(update)
                self.heard.set()
        finally:
            self.is_connected = False
            self.heard.set()
            await end_task(writer)

    async def _beat(self, stream: ClientStream) -> None:
        context = self._context
        while True:
            self._beat_now.clear()
            self._sequence += 1
            self._sent_at_ms[self._sequence] = context.clock.monotonic_ms()
            moved, self._moved = self._moved, {}
            unknown, self._unknown = self._unknown, {}
            disputed, self._disputed = self._disputed, {}
            fenced, self._fenced = self._fenced, {}
            used, free = await context.executor.run(context.files.space)
            beat = coordinator_pb2.HeartbeatRequest(
                cluster_id=context.cluster_id,
                node_id=context.node_id,
                incarnation=context.incarnation,
                sequence=self._sequence,
                led=[
                    coordinator_pb2.LedHighWatermark(
                        segment_id=segment_id,
                        high_watermark=log.high_watermark,
                        length_bytes=log.length_bytes,
                    )
                    for segment_id, log in moved.items()
                ],
                draining=self._draining,
                leaving=self._leaving,
                disk_used_bytes=used,
                disk_free_bytes=free,
                unknown_segment_ids=unknown,
                disputed_segment_ids=disputed,
                fenced_segment_ids=fenced,
                wall_clock_ms=context.clock.now_ms(),
                read_only=self.read_only,
            )
            if self.disk_report is not None:
                await self.disk_report.fill(beat)
            try:
                await stream.write(beat.SerializeToString())
            except IcecoreError:
                return  # the reader sees the same break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_ms / 1000):
                    await self._beat_now.wait()
            await context.pool.probe()

    def announce(self, *, leaving: bool = False) -> None:
        """Say at once that this node wants to stop, and when ``leaving``, that it does now."""
        self._draining, self._leaving = True, leaving
        self._beat_now.set()

    def _renew(self, sequence: int) -> None:
        sent_at_ms = self._sent_at_ms.pop(sequence, None)
        if sent_at_ms is None:
            return
        for older in [each for each in self._sent_at_ms if each < sequence]:
            del self._sent_at_ms[older]
        self._lease_end_ms = max(self._lease_end_ms, sent_at_ms + self._lease_ms)

    @property
    def lease_valid(self) -> bool:
        """Whether the coordinator heard of us recently enough to ack on the leader alone."""
        return self._context.clock.monotonic_ms() < self._lease_end_ms

    def watermark_moved(self, segment_id: int, log: LedLog) -> None:
        """Report with the next beat."""
        self._moved[segment_id] = log

    def report_unknown(self, segment_id: int) -> None:
        """A replica here is damaged or missing: say so with the next beat."""
        self._unknown[segment_id] = None

    def report_dispute(self, segment_id: int) -> None:
        """A replica here differs from another one: say so with the next beat."""
        self._disputed[segment_id] = None

    def report_fenced(self, segment_id: int) -> None:
        """An ACTIVE segment is shut for this node by a promise: say so with the next beat."""
        self._fenced[segment_id] = None

    def forget_unknown(self, segment_id: int) -> None:
        """The damaged replica is gone; a copy takes its place."""
        self._unknown.pop(segment_id, None)

    # --- requests of leaders --------------------------------------------------------------------

    async def alter_isr(self, change: coordinator_pb2.IsrChange) -> Segment:
        """Compare-and-set an in-sync set; the newer record, whether ours or another's change.

        Raises what the coordinator answers when the record is still the one we compared with, and
        InternalError when it answers neither a record nor an error: then the outcome is unknown.
        """
        result = await self._isr.submit(change)
        if result.HasField("assignment") and result.assignment.version > change.version:
            return convert.segment_from_proto(result.assignment)
        _raise(result.error)
        raise InternalError("the coordinator answered without the segment")

    async def prepare_successor(self, segment_id: int, epoch: int) -> int:
        """The id of a prepared and confirmed next segment."""
        result = await self._prepare.submit(
            coordinator_pb2.SegmentRef(segment_id=segment_id, epoch=epoch)
        )
        _raise(result.error)
        return result.successor_segment_id

    async def seal(
        self, seal: coordinator_pb2.SegmentSeal
    ) -> tuple[Segment | None, Segment | None]:
        """Seal a segment and open its successor: both records as they are now."""
        result = await self._seal.submit(seal)
        _raise(result.error)
        return (
            convert.segment_from_proto(result.sealed) if result.HasField("sealed") else None,
            convert.segment_from_proto(result.successor) if result.HasField("successor") else None,
        )

    async def request_recovery(self, segment_id: int, epoch: int, why: str) -> None:
        """Ask until the coordinator has heard it."""
        request = coordinator_pb2.RequestRecoveryRequest(
            segments=[coordinator_pb2.SegmentRef(segment_id=segment_id, epoch=epoch)], why=why
        )
        while True:
            try:
                await self._call("RequestRecovery", self._identified(request), CALL_TIMEOUT_S)
            except IcecoreError as error:
                if not error.retriable:
                    _log.warning("recovery refused segment_id=%d error=%s", segment_id, error)
                    return
                await asyncio.sleep(RETRY_S * 5)
            else:
                return

    async def report_digests(
        self, digests: list[coordinator_pb2.FullDigest]
    ) -> list[IcecoreError | None]:
        """Full digests of sealed replicas; per item the disagreement, if any."""
        request = coordinator_pb2.ReportDigestsRequest(digests=digests)
        body = await self._call("ReportDigests", self._identified(request), CALL_TIMEOUT_S)
        answer = coordinator_pb2.ReportDigestsResponse.FromString(body)
        return [convert.error_from_proto(error) for error in answer.errors]

    async def allocate_producer_ids(self, count: int) -> range:
        """Producer ids that nobody else gets."""
        request = coordinator_pb2.AllocateProducerIdsRequest(
            cluster_id=self._context.cluster_id, count=count
        )
        body = await self._call("AllocateProducerIds", request.SerializeToString(), CALL_TIMEOUT_S)
        answer = coordinator_pb2.AllocateProducerIdsResponse.FromString(body)
        return range(answer.first_producer_id, answer.first_producer_id + answer.count)

    async def name_producer(
        self, request: coordinator_pb2.NameProducerRequest
    ) -> coordinator_pb2.NameProducerResponse:
        """Take a producer's name over; returns when the leaders of its topics have heard of it."""
        body = await self._call("NameProducer", request.SerializeToString(), CALL_TIMEOUT_S)
        return coordinator_pb2.NameProducerResponse.FromString(body)

    # --- plumbing -------------------------------------------------------------------------------

    @property
    def _address(self) -> str:
        return self._addresses[self._active % len(self._addresses)]

    def _next_address(self) -> None:
        self._active += 1

    def _identified(self, request: _FromThisNode) -> bytes:
        """The request's bytes, with who asks."""
        request.cluster_id = self._context.cluster_id
        request.node_id = self._context.node_id
        request.incarnation = self._context.incarnation
        return request.SerializeToString()

    async def _call(self, method: str, body: bytes, timeout_s: float) -> bytes:
        try:
            return await self._context.net.call(
                self._address, COORDINATOR[method], body, timeout_s=timeout_s
            )
        except IcecoreError as error:
            if error.retriable:
                self._next_address()
            raise

    async def _call_alter_isr(
        self, changes: list[coordinator_pb2.IsrChange]
    ) -> list[coordinator_pb2.IsrResult]:
        request = coordinator_pb2.AlterIsrRequest(changes=changes)
        body = await self._call("AlterIsr", self._identified(request), CALL_TIMEOUT_S)
        return list(coordinator_pb2.AlterIsrResponse.FromString(body).results)

    async def _call_prepare(
        self, segments: list[coordinator_pb2.SegmentRef]
    ) -> list[coordinator_pb2.PreparedSuccessor]:
        request = coordinator_pb2.PrepareSuccessorRequest(segments=segments)
        body = await self._call("PrepareSuccessor", self._identified(request), SEAL_TIMEOUT_S)
        return list(coordinator_pb2.PrepareSuccessorResponse.FromString(body).results)

    async def _call_seal(
        self, seals: list[coordinator_pb2.SegmentSeal]
    ) -> list[coordinator_pb2.SealResult]:
        request = coordinator_pb2.SealRequest(seals=seals)
        body = await self._call("Seal", self._identified(request), SEAL_TIMEOUT_S)
        return list(coordinator_pb2.SealResponse.FromString(body).results)


def _raise(error: common_pb2.Error) -> None:
    found = convert.error_from_proto(error)
    if found is not None:
        raise found
