"""Calls to nodes: lists of segments to one node each, and the patience with many nodes at once.

A call is meant for one incarnation of a node, the registered one, and names it. What any other
says counts for nothing (R57): whoever is not registered yet may stand on an old copy of a disk.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from coordinator.ledger import Ledger
from icecore.convert import error_from_proto, segment_to_proto
from icecore.errors import ConflictError, FencedError, IcecoreError, UnavailableError
from icecore.model import Segment
from icecore.parts import in_parts
from icecore.ports import Clock, Net
from icecore.v1 import coordinator_pb2 as pb
from icecore.v1.common_pb2 import ProducerPosition
from replication.recovery import FenceReply
from replication.seal_check import MemberWord

SERVICE = "/icecore.v1.NodeService/"
SEGMENTS_PER_CALL = 512

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741  # an item of a list


@dataclass(frozen=True, slots=True)
class OpenItem:
    """One segment to create; ``base_offset`` None = only prepare, the base is not known yet."""

    segment: Segment
    base_offset: int | None = None
    producer_snapshot: bytes = b""
    max_append_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class WriteBackItem:
    """One segment to bring to its end; donor_address empty = this node is the donor."""

    segment: Segment
    end_offset: int
    donor_address: str = ""
    seal_digest: bytes = b""
    seal: bool = False
    salvage: bool = False
    """The node's log is UNKNOWN; what can be proved of it counts again (R46)."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a node reports of a replica that it holds durably through the end."""

    incarnation: int
    seal_digest: bytes
    producer_snapshot: bytes
    producer_digest: bytes
    max_append_timestamp_ms: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Rolling:
    """What a node says of a segment it was asked to roll."""

    error: IcecoreError | None = None
    is_empty: bool = False
    """It will roll, once it holds a record: an empty log can't be sealed."""


class _Request(Protocol):
    def SerializeToString(self) -> bytes: ...


class _Answer(Protocol):
    @property
    def incarnation(self) -> int: ...


A = TypeVar("A", bound=_Answer)


class NodeCalls:
    """NodeService of all nodes. Every call carries the cluster id, the coordinator's token and the
    incarnation that it is meant for.

    All raise what ``Net.call`` raises, UnavailableError for nodes that never registered, and
    FencedError when another incarnation answered than the one that is registered.
    """

    def __init__(self, net: Net, ledger: Ledger) -> None:
        self._net = net
        self._ledger = ledger

    async def _call(
        self,
        node_id: int,
        request: _Request,
        decode: Callable[[bytes], A],
        incarnation: int,
        timeout_s: float,
    ) -> A:
        """The answer of this very incarnation, if it is still the registered one by then."""
        node = self._ledger.state.nodes.get(node_id)
        if node is None or not incarnation:
            raise UnavailableError(f"node {node_id} is not registered")
        method = type(request).__name__.removesuffix("Request")
        body = await self._net.call(
            node.address, SERVICE + method, request.SerializeToString(), timeout_s=timeout_s
        )
        answer = decode(body)
        for known in (incarnation, self._ledger.state.incarnation(node_id)):
            if answer.incarnation != known:
                raise FencedError(
                    f"node {node_id} answered as incarnation {answer.incarnation}, "
                    f"{known} is the one that counts"
                )
        return answer

    def _common(self, node_id: int) -> dict[str, Any]:
        """What each request of a call to this node carries; all its chunks are for one process."""
        state = self._ledger.state
        return {
            "cluster_id": state.cluster_id,
            "token": self._ledger.token,
            "incarnation": state.incarnation(node_id),
        }

    async def fence(
        self,
        node_id: int,
        promises: Sequence[tuple[int, int]],
        timeout_s: float,
        *,
        salvage: bool = False,
    ) -> list[FenceReply | IcecoreError]:
        """Have a node promise (segment id, epoch) pairs; what it holds, in the same order.

        With ``salvage`` it also looks what of its UNKNOWN logs can be proved, which takes long.
        """
        common = self._common(node_id)
        found: list[FenceReply | IcecoreError] = []
        for chunk in _chunks(promises):
            refs = [pb.SegmentRef(segment_id=each, epoch=epoch) for each, epoch in chunk]
            request = pb.FenceRequest(**common, segments=refs, salvage=salvage)
            answer = await self._call(
                node_id, request, pb.FenceResponse.FromString, common["incarnation"], timeout_s
            )
            _check_length(answer.replicas, chunk)
            found += [
                error_from_proto(each.error)
                or FenceReply(
                    intact=each.intact,
                    durable_end_offset=each.durable_end_offset,
                    last_header_crc32c=each.last_header_crc32c,
                    digest=each.digest,
                    incarnation=answer.incarnation,
                    max_known_high_watermark=each.max_known_high_watermark,
                    was_leader=each.was_leader,
                    salvageable=each.salvageable,
                )
                for each in answer.replicas
            ]
        return found

    async def open(
        self, node_id: int, items: Sequence[OpenItem], timeout_s: float
    ) -> list[int | IcecoreError]:
        """Have a node create segments; the incarnation that confirmed each, in the same order."""
        common = self._common(node_id)
        found: list[int | IcecoreError] = []
        for chunk in in_parts(items, lambda i: len(i.producer_snapshot), SEGMENTS_PER_CALL):
            request = pb.OpenRequest(**common, segments=[_open_segment(i) for i in chunk])
            answer = await self._call(
                node_id, request, pb.OpenResponse.FromString, common["incarnation"], timeout_s
            )
            _check_length(answer.errors, chunk)
            found += [error_from_proto(each) or answer.incarnation for each in answer.errors]
        return found

    async def write_back(
        self, node_id: int, items: Sequence[WriteBackItem], timeout_s: float
    ) -> list[Written | IcecoreError]:
        """Have a node bring replicas to their end; what it verified, in the same order."""
        common = self._common(node_id)
        found: list[Written | IcecoreError] = []
        for chunk in _chunks(items):
            segments = [
                pb.WriteBackSegment(
                    segment=segment_to_proto(each.segment),
                    end_offset=each.end_offset,
                    donor_address=each.donor_address,
                    seal_digest=each.seal_digest,
                    seal=each.seal,
                    salvage=each.salvage,
                )
                for each in chunk
            ]
            request = pb.WriteBackRequest(**common, segments=segments)
            answer = await self._call(
                node_id, request, pb.WriteBackResponse.FromString, common["incarnation"], timeout_s
            )
            _check_length(answer.results, chunk)
            found += [
                error_from_proto(each.error)
                or Written(
                    answer.incarnation,
                    each.seal_digest,
                    each.producer_snapshot,
                    each.producer_digest,
                    each.max_append_timestamp_ms,
                    each.bytes,
                )
                for each in answer.results
            ]
        return found

    async def check_seal(
        self, node_id: int, segment_ids: Sequence[int], timeout_s: float
    ) -> list[MemberWord | IcecoreError]:
        """What a node holds of segments that are to be sealed, in the same order."""
        common = self._common(node_id)
        found: list[MemberWord | IcecoreError] = []
        for chunk in _chunks(segment_ids):
            refs = [pb.SegmentRef(segment_id=each) for each in chunk]
            request = pb.CheckSealRequest(**common, segments=refs)
            answer = await self._call(
                node_id, request, pb.CheckSealResponse.FromString, common["incarnation"], timeout_s
            )
            _check_length(answer.replicas, chunk)
            found += [
                error_from_proto(each.error)
                or MemberWord(
                    each.durable_end_offset,
                    each.seal_digest,
                    each.producer_digest,
                    each.high_watermark,
                    each.sealing,
                )
                for each in answer.replicas
            ]
        return found

    async def roll(
        self, node_id: int, segments: Sequence[Segment], why: str, timeout_s: float
    ) -> list[Rolling]:
        """Have a leader roll segments now; in the same order."""
        common = self._common(node_id)
        found: list[Rolling] = []
        for chunk in _chunks(segments):
            refs = [pb.SegmentRef(segment_id=each.segment_id, epoch=each.epoch) for each in chunk]
            request = pb.RollRequest(**common, segments=refs, why=why)
            answer = await self._call(
                node_id, request, pb.RollResponse.FromString, common["incarnation"], timeout_s
            )
            _check_length(answer.errors, chunk)
            empty = dict.fromkeys(answer.empty_segment_ids)
            found += [
                Rolling(error_from_proto(error), each.segment_id in empty)
                for each, error in zip(chunk, answer.errors, strict=True)
            ]
        return found

    async def fence_producer(
        self, node_id: int, producer_id: int, min_epoch: int, timeout_s: float
    ) -> tuple[int, Sequence[ProducerPosition]]:
        """Have a node refuse older epochs; its incarnation and how far the producer got there."""
        fence = pb.ProducerFence(producer_id=producer_id, min_epoch=min_epoch)
        common = self._common(node_id)
        request = pb.FenceProducersRequest(**common, fences=[fence])
        answer = await self._call(
            node_id, request, pb.FenceProducersResponse.FromString, common["incarnation"], timeout_s
        )
        return answer.incarnation, answer.positions


def _open_segment(item: OpenItem) -> pb.OpenSegment:
    is_final = item.base_offset is not None
    segment = item.segment.changed(base_offset=item.base_offset) if is_final else item.segment
    return pb.OpenSegment(
        segment=segment_to_proto(segment),
        confirm=is_final,
        producer_snapshot=item.producer_snapshot,
        max_append_timestamp_ms=item.max_append_timestamp_ms,
    )


def _chunks(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[at : at + SEGMENTS_PER_CALL] for at in range(0, len(items), SEGMENTS_PER_CALL)]


def _check_length(answers: Sequence[object], asked: Sequence[object]) -> None:
    if len(answers) != len(asked):
        raise ConflictError(f"a node answered {len(answers)} of {len(asked)} items")


def by_node(items: Iterable[tuple[int, I]]) -> dict[int, list[I]]:
    """(node, item) pairs grouped by node, in order of first mention."""
    grouped: dict[int, list[I]] = {}
    for node_id, item in items:
        grouped.setdefault(node_id, []).append(item)
    return grouped


async def fan_out(
    clock: Clock,
    calls: Mapping[int, Coroutine[Any, Any, T]],
    *,
    required: Iterable[int],
    patience_ms: float,
    is_enough: Callable[[Mapping[int, T]], bool],
) -> dict[int, T | IcecoreError]:
    """Call many nodes at once and stop waiting when more patience would gain nothing.

    Returns when all have answered. Of three things, all required nodes have answered, the answers
    are enough, ``patience_ms`` have passed, any two end the waiting as well. Calls that are still
    running then are cancelled and missing from the result.

    Args:
        clock: Counts the patience.
        calls: By node; each has its own time limit.
        required: Nodes worth the full patience.
        patience_ms: How long to wait for required ones when there is enough without them.
        is_enough: Asked with the good answers so far.
    """
    tasks: dict[int, asyncio.Future[T]] = {
        node_id: asyncio.ensure_future(call) for node_id, call in calls.items()
    }
    wanted = [tasks[node_id] for node_id in required if node_id in tasks]
    deadline = clock.monotonic_ms() + patience_ms
    try:
        while waiting := [task for task in tasks.values() if not task.done()]:
            left_ms = deadline - clock.monotonic_ms()
            is_complete = all(task.done() for task in wanted)
            if is_complete and left_ms <= 0:
                break
            if (is_complete or left_ms <= 0) and is_enough(_good(tasks)):
                break
            timeout_s = left_ms / 1000 if left_ms > 0 else None
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks.values():
            task.cancel()
    results: dict[int, T | IcecoreError] = {}
    for node_id, task in tasks.items():
        if not _is_finished(task):
            continue
        error = task.exception()
        if error is None:
            results[node_id] = task.result()
        elif isinstance(error, IcecoreError):
            results[node_id] = error
        else:
            raise error
    return results


def _is_finished(task: "asyncio.Future[T]") -> bool:
    return task.done() and not task.cancelled()


def _good(tasks: Mapping[int, "asyncio.Future[T]"]) -> dict[int, T]:
    return {
        node_id: task.result()
        for node_id, task in tasks.items()
        if _is_finished(task) and task.exception() is None
    }
