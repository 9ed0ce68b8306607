"""Calls to nodes: lists of segments to one node each.

A call is meant for one incarnation of one node, the registered one, and names both. What any other
says counts for nothing (R57): whoever is not registered yet may stand on an old copy of a disk.
"""

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from icecore.errors import (
    ConflictError,
    FencedError,
    IcecoreError,
    ThrottledError,
    UnavailableError,
)
from icecore.model import (
    Epoch,
    Incarnation,
    NodeId,
    ProducerEpoch,
    ProducerId,
    Segment,
    SegmentId,
)
from icecore.rpc.addresses import (
    peer_address,
)
from icecore.rpc.convert import error_from_proto, segment_to_proto
from icecore.rpc.framing import in_parts
from icecore.rpc.messages import message_of, value_of
from icecore.rpc.methods import NODE
from icecore.rpc.ports import Net
from icecore.v1 import coordinator_pb2 as pb
from icecore.v1.common_pb2 import ProducerPosition
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_replication.recovery import FenceReply
from icecore_replication.seal_check import MemberWord

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
class WrittenReplica:
    """A node's report about a replica that it holds durably through the end."""

    incarnation: Incarnation
    seal_digest: bytes
    producer_snapshot: bytes
    producer_digest: bytes
    max_append_timestamp_ms: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class RollAnswer:
    """A node's answer about a segment that it was asked to roll."""

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
    """NodeService of all nodes. Every call carries the cluster id, the coordinator's epoch and the
    incarnation that it is meant for.

    All raise what ``Net.call`` raises, UnavailableError for nodes that never registered, and
    FencedError when another incarnation answered than the one that is registered.
    """

    def __init__(
        self, net: Net, state: ClusterState, check_acts: Callable[[], None] = lambda: None
    ) -> None:
        """``check_acts`` raises NotCoordinatorError when this coordinator may not act any more."""
        self._net = net
        self._state = state
        self._check_acts = check_acts

    async def _call(
        self,
        node_id: NodeId,
        request: _Request,
        decode: Callable[[bytes], A],
        incarnation: Incarnation,
        timeout_s: float,
    ) -> A:
        """The answer of this very incarnation, if it is still the registered one by then."""
        node = self._state.nodes.get(node_id)
        if node is None or not incarnation:
            raise UnavailableError(f"node {node_id} is not registered")
        method = type(request).__name__.removesuffix("Request")
        self._check_acts()
        body = await self._net.call(
            peer_address(node), NODE[method], request.SerializeToString(), timeout_s=timeout_s
        )
        answer = decode(bytes(body))
        for known in (incarnation, self._state.incarnation(node_id)):
            if answer.incarnation != known:
                raise FencedError(
                    f"node {node_id} answered as incarnation {answer.incarnation}, "
                    f"{known} is the one that counts"
                )
        return answer

    async def refuses(self, node_id: NodeId, within_s: float) -> bool:
        """Return whether the node's host says that nobody listens at its address; no call of a
        method."""
        node = self._state.nodes.get(node_id)
        return node is not None and await self._net.refuses(peer_address(node), within_s=within_s)

    @property
    def state(self) -> ClusterState:
        """The cluster whose nodes are called."""
        return self._state

    def _common(self, node_id: NodeId) -> dict[str, Any]:
        """Return the fields that each request of a call to this node carries. All parts of a call
        are for one process."""
        return {
            "cluster_id": self._state.cluster_id,
            "coordinator_epoch": self._state.coordinator_epoch,
            "metadata_revision": self._state.metadata_revision,
            "node_id": node_id,
            "incarnation": self._state.incarnation(node_id),
        }

    async def each_part(
        self,
        node_id: NodeId,
        parts: Iterable[Sequence[I]],
        ask: Callable[[dict[str, Any], Sequence[I]], _Request],
        decode: Callable[[bytes], A],
        results_of: Callable[[A, Sequence[I]], Sequence[T | IcecoreError]],
        timeout_s: float,
    ) -> list[T | IcecoreError]:
        """A result for each item of a list that may take several messages.

        What was answered before a later message fails counts: its items alone get the error. When
        the first one fails it is raised, for the node said nothing.
        """
        common = self._common(node_id)
        found: list[T | IcecoreError] = []
        failure: IcecoreError | None = None
        for part in parts:
            if failure is None:
                try:
                    request = ask(common, part)
                    answer = await self._call(
                        node_id, request, decode, common["incarnation"], timeout_s
                    )
                    results = results_of(answer, part)
                    check_count(results, part)
                    found += results
                    continue
                except IcecoreError as error:
                    if not found:
                        raise
                    failure = error
            found += [failure] * len(part)
        return found

    async def fence(
        self,
        node_id: NodeId,
        promises: Sequence[tuple[SegmentId, Epoch]],
        timeout_s: float,
        *,
        salvage: bool = False,
    ) -> list[FenceReply | IcecoreError]:
        """Have a node promise (segment id, epoch) pairs; what it holds, in the same order.

        With ``salvage`` it also looks what of its UNKNOWN logs can be proved, which takes long.
        """

        def ask(common: dict[str, Any], part: Sequence[tuple[SegmentId, Epoch]]) -> pb.FenceRequest:
            refs = [pb.SegmentRef(segment_id=each, epoch=epoch) for each, epoch in part]
            return pb.FenceRequest(**common, segments=refs, salvage=salvage)

        return await self.each_part(
            node_id,
            in_parts(promises, _no_bytes, SEGMENTS_PER_CALL),
            ask,
            pb.FenceResponse.FromString,
            lambda answer, _: [
                _fence_reply(each, Incarnation(answer.incarnation)) for each in answer.replicas
            ],
            timeout_s,
        )

    async def open(
        self, node_id: NodeId, items: Sequence[OpenItem], timeout_s: float
    ) -> list[Incarnation | IcecoreError]:
        """Have a node create segments; the incarnation that confirmed each, in the same order."""
        return await self.each_part(
            node_id,
            in_parts(items, lambda item: len(item.producer_snapshot), SEGMENTS_PER_CALL),
            lambda common, part: pb.OpenRequest(**common, segments=map(_open_segment, part)),
            pb.OpenResponse.FromString,
            lambda answer, _: [
                error_from_proto(each) or Incarnation(answer.incarnation) for each in answer.errors
            ],
            timeout_s,
        )

    async def write_back(
        self, node_id: NodeId, items: Sequence[WriteBackItem], timeout_s: float
    ) -> list[WrittenReplica | IcecoreError]:
        """Have a node bring replicas to their end; what it verified, in the same order.

        What an answer had no room for is asked again, as long as that brings more.
        """
        found = await self._write_back(node_id, items, timeout_s)
        left = len(items)
        while 0 < len(full := [at for at, each in enumerate(found) if _had_no_room(each)]) < left:
            left = len(full)
            try:
                again = await self._write_back(node_id, [items[at] for at in full], timeout_s)
            except IcecoreError:
                break  # what was answered before counts
            for at, each in zip(full, again, strict=True):
                found[at] = each
        return found

    async def _write_back(
        self, node_id: NodeId, items: Sequence[WriteBackItem], timeout_s: float
    ) -> list[WrittenReplica | IcecoreError]:
        return await self.each_part(
            node_id,
            in_parts(items, _no_bytes, SEGMENTS_PER_CALL),
            lambda common, part: pb.WriteBackRequest(**common, segments=map(_to_write, part)),
            pb.WriteBackResponse.FromString,
            lambda answer, _: [
                _written(each, Incarnation(answer.incarnation)) for each in answer.results
            ],
            timeout_s,
        )

    async def check_seal(
        self, node_id: NodeId, segment_ids: Sequence[SegmentId], timeout_s: float
    ) -> list[MemberWord | IcecoreError]:
        """Ask a node about its replicas of segments that are to be sealed; the answers keep the
        order."""

        def ask(common: dict[str, Any], part: Sequence[SegmentId]) -> pb.CheckSealRequest:
            refs = [pb.SegmentRef(segment_id=each) for each in part]
            return pb.CheckSealRequest(**common, segments=refs)

        return await self.each_part(
            node_id,
            in_parts(segment_ids, _no_bytes, SEGMENTS_PER_CALL),
            ask,
            pb.CheckSealResponse.FromString,
            lambda answer, _: [_member_word(each) for each in answer.replicas],
            timeout_s,
        )

    async def roll(
        self, node_id: NodeId, segments: Sequence[Segment], why: str, timeout_s: float
    ) -> list[RollAnswer]:
        """Have a leader roll segments now; in the same order."""

        def ask(common: dict[str, Any], part: Sequence[Segment]) -> pb.RollRequest:
            refs = [pb.SegmentRef(segment_id=each.segment_id, epoch=each.epoch) for each in part]
            return pb.RollRequest(**common, segments=refs, why=why)

        def results_of(answer: pb.RollResponse, part: Sequence[Segment]) -> list[RollAnswer]:
            empty = dict.fromkeys(answer.empty_segment_ids)
            return [
                RollAnswer(error_from_proto(error), each.segment_id in empty)
                for each, error in zip(part, answer.errors, strict=False)
            ]

        found: list[RollAnswer | IcecoreError] = await self.each_part(
            node_id,
            in_parts(segments, _no_bytes, SEGMENTS_PER_CALL),
            ask,
            pb.RollResponse.FromString,
            results_of,
            timeout_s,
        )
        return [
            each if isinstance(each, RollAnswer) else RollAnswer(each, is_empty=False)
            for each in found
        ]

    async def fence_producer(
        self, node_id: NodeId, producer_id: ProducerId, min_epoch: ProducerEpoch, timeout_s: float
    ) -> tuple[Incarnation, Sequence[ProducerPosition]]:
        """Have a node refuse older epochs; its incarnation and how far the producer got there."""
        fence = pb.ProducerFence(producer_id=producer_id, min_epoch=min_epoch)
        common = self._common(node_id)
        request = pb.FenceProducersRequest(**common, fences=[fence])
        answer = await self._call(
            node_id, request, pb.FenceProducersResponse.FromString, common["incarnation"], timeout_s
        )
        return Incarnation(answer.incarnation), answer.positions


def check_count(results: Sized, asked: Sized) -> None:
    """Raises ConflictError when a node answered more or less than it was asked."""
    if len(results) != len(asked):
        raise ConflictError(f"a node answered {len(results)} of {len(asked)} items")


def _open_segment(item: OpenItem) -> pb.OpenSegment:
    is_final = item.base_offset is not None
    segment = item.segment.changed(base_offset=item.base_offset) if is_final else item.segment
    message = segment_to_proto(segment)
    return message_of(pb.OpenSegment, item, segment=message, confirm=is_final)


def _had_no_room(result: object) -> bool:
    return isinstance(result, ThrottledError)


def _to_write(item: WriteBackItem) -> pb.WriteBackSegment:
    return message_of(pb.WriteBackSegment, item, segment=segment_to_proto(item.segment))


def _fence_reply(message: pb.FencedReplica, incarnation: Incarnation) -> FenceReply | IcecoreError:
    error = error_from_proto(message.error)
    return error or value_of(FenceReply, message, incarnation=incarnation)


def _written(message: pb.WrittenBack, incarnation: Incarnation) -> WrittenReplica | IcecoreError:
    error = error_from_proto(message.error)
    return error or value_of(WrittenReplica, message, incarnation=incarnation)


def _member_word(message: pb.HeldEnd) -> MemberWord | IcecoreError:
    return error_from_proto(message.error) or value_of(MemberWord, message)


def _no_bytes(_: object) -> int:
    """Return 0 bytes for items that are so small that only their number is bounded."""
    return 0
