"""A node's calls to its coordinator: registration, and the requests of leaders and producers.

Requests of many leaders (in-sync sets, successors, seals) that arrive in the same turn of the loop
share one RPC. When a coordinator stands by or does not answer, the next call goes to the one that
it names, or to the next address of the settings. Heartbeats are in ``membership/heartbeats.py``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Generic, TypeAlias, TypeVar

from icecore.errors import (
    IcecoreError,
    InternalError,
    NotCoordinatorError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.model import (
    Epoch,
    Segment,
    SegmentId,
)
from icecore.process.log import (
    event,
)
from icecore.rpc import convert
from icecore.rpc.framing import in_parts
from icecore.rpc.methods import ADMIN, COORDINATOR
from icecore.rpc.ports import ClientStream
from icecore.v1 import admin_pb2, common_pb2, coordinator_pb2
from icecore_node.context import NodeContext

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

_ANOTHER_MAY_ANSWER = (NotCoordinatorError, UnavailableError, RequestTimeoutError)
CALL_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 2.0
ITEMS_PER_CALL_MAX = 1_000
"""Coordinators take more (``rpc/bounds.py``), and a call of so many is answered in time."""
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
        for part in in_parts(waiting, lambda each: self._bytes_of(each[0]), ITEMS_PER_CALL_MAX):
            await self._send(part)

    async def _send(self, waiting: Sequence[tuple[RequestT, asyncio.Future[ResultT]]]) -> None:
        """One call; what goes wrong with it is no matter of the calls after it."""
        try:
            results = await self._call([request for request, _ in waiting])
            check_count(results, waiting)
        except Exception as error:  # whoever waits must hear of it, or waits for ever
            known = error if isinstance(error, IcecoreError) else InternalError(repr(error))
            if known is not error:
                event(_log, logging.ERROR, "answer_unexpected", exc_info=error)
            for _, future in waiting:
                if not future.done():
                    future.set_exception(known)
            return
        for (_, future), result in zip(waiting, results, strict=True):
            if not future.done():
                future.set_result(result)


def check_count(results: Sized, requests: Sized) -> None:
    """Raises InternalError when the coordinator answered more or less than it was asked."""
    if len(results) != len(requests):
        raise InternalError(f"{len(results)} answers to {len(requests)} requests")


class CoordinatorLink:
    """Calls of the coordinator, wherever it is."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        addresses = context.settings.coordinator.split(",")
        self._addresses = [address.strip() for address in addresses]
        self._at = 0
        self._named = ""
        """Address that a standby has named; it counts until it fails."""
        self._isr: _Batcher[coordinator_pb2.IsrChange, coordinator_pb2.IsrResult] = _Batcher(
            self._call_alter_isr
        )
        self._prepare: _Batcher[coordinator_pb2.SegmentRef, coordinator_pb2.PreparedSuccessor] = (
            _Batcher(self._call_prepare)
        )
        self._describe: _Batcher[tuple[SegmentId, int], coordinator_pb2.DescribedCopy] = _Batcher(
            self._call_describe
        )
        self._seal: _Batcher[coordinator_pb2.SegmentSeal, coordinator_pb2.SealResult] = _Batcher(
            self._call_seal, lambda seal: len(seal.producer_snapshot)
        )

    async def register(
        self,
        request: coordinator_pb2.RegisterRequest,
        on_refused: Callable[[IcecoreError], Awaitable[None]],
    ) -> coordinator_pb2.RegisterResponse:
        """Get an incarnation; waits for a coordinator as long as it takes.

        Args:
            request: What the node says of itself.
            on_refused: Called with each refusal that may end.

        Raises WrongClusterError and other definite refusals.
        """
        body, said = request.SerializeToString(), dict[str, str]()
        while True:
            try:
                answer = await self._call("Register", body, CALL_TIMEOUT_S)
            except IcecoreError as error:
                if not error.retriable:
                    raise
                if said.get(self.address) != error.message:  # it may last for hours
                    event(
                        _log,
                        logging.WARNING,
                        "coordinator_unreachable",
                        address=self.address,
                        error=error,
                    )
                said[self.address] = error.message
                await on_refused(error)
                await asyncio.sleep(self._context.settings.timing.registration_retry_ms / 1000)
            else:
                return coordinator_pb2.RegisterResponse.FromString(answer)

    async def tell_inventory(self, page: coordinator_pb2.TellInventoryRequest) -> None:
        """Tell one page of all that this node holds. Raises what the coordinator answers."""
        await self._call("TellInventory", page.SerializeToString(), CALL_TIMEOUT_S)

    def open_heartbeats(self) -> ClientStream:
        """A new stream for heartbeats."""
        return self._context.net.open_stream(self.address, COORDINATOR["Heartbeat"])

    def turn_from(self, address: str, error: IcecoreError) -> None:
        """Call another coordinator from now on: the one that a standby names, else the next one.

        Args:
            address: Of the one that failed. Many calls may fail at once: the first one turns.
            error: Its answer, or that there was none.
        """
        if address != self.address:
            return
        may_follow = isinstance(error, NotCoordinatorError) and not self._named
        self._named = error.metadata.get("address", "") if may_follow else ""
        if self._named in ("", address):  # round and round, past the one that named it
            self._named = ""
            self._at = (self._at + 1) % len(self._addresses)

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

    async def prepare_successor(self, segment_id: SegmentId, epoch: Epoch) -> SegmentId:
        """The id of a prepared and confirmed next segment."""
        result = await self._prepare.submit(
            coordinator_pb2.SegmentRef(segment_id=segment_id, epoch=epoch)
        )
        _raise(result.error)
        return SegmentId(result.successor_segment_id)

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

    async def request_recovery(self, segment_id: SegmentId, epoch: Epoch, why: str) -> None:
        """Ask until the coordinator has heard it."""
        request = coordinator_pb2.RequestRecoveryRequest(
            segments=[coordinator_pb2.SegmentRef(segment_id=segment_id, epoch=epoch)], why=why
        )
        while True:
            try:
                await self._call("RequestRecovery", self._identified(request), CALL_TIMEOUT_S)
            except IcecoreError as error:
                if not error.retriable:
                    event(
                        _log,
                        logging.WARNING,
                        "recovery_refused",
                        segment_id=segment_id,
                        error=error,
                    )
                    return
                await asyncio.sleep(self._context.settings.timing.registration_retry_ms / 1000)
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

    async def describe_tiered(
        self, segment_id: SegmentId, refuted_attempt: int = 0
    ) -> coordinator_pb2.DescribedCopy:
        """Return the published copy of a segment, or the error that says why there is none.

        Args:
            segment_id: Of the segment.
            refuted_attempt: Attempt of a copy that this node could not read; 0 = none.
        """
        return await self._describe.submit((segment_id, refuted_attempt))

    # --- plumbing -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Address at which the coordinator is called next."""
        return self._named or self._addresses[self._at]

    def _identified(self, request: _FromThisNode) -> bytes:
        """Encode a request, with this node's cluster, id and incarnation."""
        request.cluster_id = self._context.identity.cluster_id
        request.node_id = self._context.identity.node_id
        request.incarnation = self._context.identity.incarnation
        return request.SerializeToString()

    async def _call(self, method: str, body: bytes, timeout_s: float) -> bytes:
        return await self.ask(COORDINATOR[method], body, timeout_s)

    async def ask(self, method: str, body: bytes, timeout_s: float) -> bytes:
        """Any method, by its full name. Raises what the coordinator answers, or that it does not;
        then another one is called next."""
        address = self.address
        try:
            return bytes(await self._context.net.call(address, method, body, timeout_s=timeout_s))
        except IcecoreError as error:
            if isinstance(error, _ANOTHER_MAY_ANSWER):
                self.turn_from(address, error)
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

    async def _call_describe(
        self, asked: list[tuple[SegmentId, int]]
    ) -> list[coordinator_pb2.DescribedCopy]:
        request = coordinator_pb2.DescribeTieredRequest(
            cluster_id=self._context.identity.cluster_id,
            segment_ids=[segment_id for segment_id, _ in asked],
            refuted_attempts=[attempt for _, attempt in asked if attempt],
        )
        body = await self._call("DescribeTiered", request.SerializeToString(), CALL_TIMEOUT_S)
        return list(coordinator_pb2.DescribeTieredResponse.FromString(body).segments)

    async def _call_seal(
        self, seals: list[coordinator_pb2.SegmentSeal]
    ) -> list[coordinator_pb2.SealResult]:
        request = coordinator_pb2.SealRequest(seals=seals)
        body = await self._call("Seal", self._identified(request), SEAL_TIMEOUT_S)
        return list(coordinator_pb2.SealResponse.FromString(body).results)


async def segment_at(
    coordinator: CoordinatorLink, topic: str, partition: int, offset: int
) -> Segment | None:
    """Return the segment of a partition that holds an offset, wherever its records are; None when
    there is none. Raises what the coordinator answers, or that it does not."""
    request = admin_pb2.ListSegmentsRequest(
        topic=topic, partitions=[partition], from_offset=offset, max_segments=1
    )
    body = await coordinator.ask(ADMIN["ListSegments"], request.SerializeToString(), LOOK_TIMEOUT_S)
    listed = admin_pb2.ListSegmentsResponse.FromString(body).segments
    found = convert.segment_from_proto(listed[0]) if listed else None
    return found if found is not None and found.base_offset <= offset else None


def _raise(error: common_pb2.Error) -> None:
    found = convert.error_from_proto(error)
    if found is not None:
        raise found
