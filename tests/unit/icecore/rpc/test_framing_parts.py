"""Producer states that do not fit one message go in several, and each try gets further."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import InternalError, ThrottledError, UnavailableError
from icecore.rpc import framing
from icecore.rpc.convert import error_from_proto, segment_to_proto
from icecore.rpc.framing import in_parts
from icecore.v1 import common_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes import node_calls
from icecore_coordinator.nodes.node_calls import NodeCalls, OpenItem
from icecore_node.context import Peers
from icecore_node.identity.identity import Identity
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.maintenance.copying import Copying
from icecore_node.serving.orders.node_service import NodeService
from icecore_node.serving.orders.write_back import WriteBacks
from tests.support.cluster_states import ALL, segment, started


@pytest.fixture(autouse=True)
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "PART_BYTES_MAX", 10)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([4, 6, 1], [[4, 6], [1]]),
        ([11, 0, 12, 13], [[11], [0], [12], [13]]),
        ([0, 0, 0, 0], [[0, 0, 0], [0]]),
    ],
)
def test_parts_are_full_and_none_is_empty(sizes: list[int], expected: list[list[int]]) -> None:
    assert in_parts(sizes, lambda size: size, 3) == expected


class Copier:
    """Says of each segment that its producers take as many bytes as its end offset."""

    async def bring_to(self, asked: Copying, _: int) -> pb.WrittenBack:
        return pb.WrittenBack(producer_snapshot=bytes(asked.end_offset))


async def write_back(*sizes: int) -> list[pb.WrittenBack]:
    identity = Identity(1)
    identity.register(b"c", incarnation=5, coordinator_epoch=1)
    context: Any = SimpleNamespace(identity=identity)
    unused: Any = None
    service = NodeService(
        context,
        fencing=unused,
        opening=unused,
        write_backs=WriteBacks(Peers(), cast(Any, Copier()), unused),
        leader_orders=unused,
        tier_orders=None,
    )
    items = [
        pb.WriteBackSegment(segment=segment_to_proto(segment(started())), end_offset=size)
        for size in sizes
    ]
    request = pb.WriteBackRequest(
        coordinator_epoch=1, incarnation=5, cluster_id=b"c", segments=items
    )
    body = await service.write_back(request.SerializeToString(), cast(Any, None))
    return list(pb.WriteBackResponse.FromString(body).results)


async def test_what_an_answer_has_no_room_for_is_to_be_asked_again() -> None:
    results = await write_back(6, 5, 4, 0, 1)
    assert [len(each.producer_snapshot) for each in results] == [6, 0, 4, 0, 0]
    errors = [error_from_proto(each.error) for each in results]
    assert [type(each) for each in errors] == [
        *(type(None), ThrottledError, type(None), type(None), ThrottledError)
    ]
    assert all(error.retriable for error in errors if error)


async def test_one_result_is_always_in_the_answer() -> None:
    results = await write_back(50, 60)
    assert [len(each.producer_snapshot) for each in results] == [50, 0]


async def test_segments_are_opened_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "SEGMENTS_PER_CALL", 3)
    asked: list[list[int]] = []

    async def call(_: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        sizes = [len(each.producer_snapshot) for each in pb.OpenRequest.FromString(body).segments]
        asked.append(sizes)
        errors = [common_pb2.Error() for _ in sizes]
        return pb.OpenResponse(incarnation=ALL[2], errors=errors).SerializeToString()

    state = started()
    calls = NodeCalls(cast(Any, SimpleNamespace(call=call)), state)
    items = [OpenItem(segment(state), 0, bytes(size)) for size in (6, 5, 20, 1, 1, 1, 1)]
    assert await calls.open(2, items, 1.0) == [ALL[2]] * 7
    assert asked == [[6], [5], [20], [1, 1, 1], [1]]


async def test_an_answer_without_record_and_error_says_nothing() -> None:
    async def call(_: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        return pb.AlterIsrResponse(results=[pb.IsrResult()]).SerializeToString()

    with pytest.raises(InternalError) as unknown:
        await link_to(call).alter_isr(pb.IsrChange(segment_id=1, version=3))
    assert unknown.value.indeterminate  # so the leader counts both sets (R14)


def link_to(call: Any) -> CoordinatorLink:
    context = SimpleNamespace(
        settings=SimpleNamespace(coordinator="c:1"),
        net=SimpleNamespace(call=call),
        identity=Identity(1),
    )
    return CoordinatorLink(cast(Any, context))


async def test_seals_are_asked_for_in_parts_and_one_that_fails_harms_no_other() -> None:
    asked: list[list[int]] = []

    async def call(_: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        seals = pb.SealRequest.FromString(body).seals
        asked.append([each.segment_id for each in seals])
        if seals[0].segment_id == 3:
            raise UnavailableError("gone")
        return pb.SealResponse(results=[pb.SealResult() for _ in seals]).SerializeToString()

    link = link_to(call)
    seals = [
        pb.SegmentSeal(segment_id=at, producer_snapshot=bytes(size))
        for at, size in enumerate((4, 4, 4, 9), 1)
    ]
    outcomes = await asyncio.wait_for(
        asyncio.gather(*map(link.seal, seals), return_exceptions=True), 30
    )
    assert asked == [[1, 2], [3], [4]]
    assert [type(each) for each in outcomes] == [tuple, tuple, UnavailableError, tuple]
