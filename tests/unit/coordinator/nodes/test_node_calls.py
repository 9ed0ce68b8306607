"""Only what the registered incarnation of a node says counts, in every call."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import ConflictError, FencedError, ThrottledError, UnavailableError
from icecore.rpc.convert import error_to_proto
from icecore.v1 import common_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes import node_calls
from icecore_coordinator.nodes.node_calls import (
    NodeCalls,
    OpenItem,
    RollAnswer,
    WriteBackItem,
    WrittenReplica,
)
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import updated
from tests.support.cluster_states import ALL, segment, started

REQUESTS: dict[str, Any] = {
    "Fence": pb.FenceRequest,
    "Open": pb.OpenRequest,
    "WriteBack": pb.WriteBackRequest,
    "Roll": pb.RollRequest,
    "FenceProducers": pb.FenceProducersRequest,
    "CheckSeal": pb.CheckSealRequest,
}


class Node:
    """Answers every call as one incarnation."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.asked: list[int] = []
        self.on_call: Callable[[], None] = lambda: None

    async def call(self, address: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        name = method.rpartition("/")[2]
        self.asked.append(REQUESTS[name].FromString(body).incarnation)
        self.on_call()
        answers: dict[str, Any] = {
            "Fence": lambda: pb.FenceResponse(replicas=[pb.FencedReplica(intact=True)]),
            "Open": lambda: pb.OpenResponse(errors=[common_pb2.Error()]),
            "WriteBack": lambda: pb.WriteBackResponse(results=[pb.WrittenBack()]),
            "Roll": lambda: pb.RollResponse(errors=[common_pb2.Error()]),
            "FenceProducers": lambda: pb.FenceProducersResponse(),
            "CheckSeal": lambda: pb.CheckSealResponse(replicas=[pb.HeldEnd()]),
        }
        answer = answers[name]()
        answer.incarnation = self.incarnation
        return cast(bytes, answer.SerializeToString())


Ask = Callable[[NodeCalls, ClusterState], Awaitable[object]]
ASKS: dict[str, Ask] = {
    "Fence": lambda calls, _: calls.fence(2, [(1, 5)], 1.0),
    "Open": lambda calls, state: calls.open(2, [OpenItem(segment(state))], 1.0),
    "WriteBack": lambda calls, state: calls.write_back(2, [WriteBackItem(segment(state), 9)], 1.0),
    "Roll": lambda calls, state: calls.roll(2, [segment(state)], "test", 1.0),
    "FenceProducers": lambda calls, _: calls.fence_producer(2, 7, 1, 1.0),
    "CheckSeal": lambda calls, _: calls.check_seal(2, [1], 1.0),
}


def calls_to(node: Node) -> tuple[NodeCalls, ClusterState]:
    state = started()
    state.coordinator_epoch = 1
    return NodeCalls(cast(Any, node), state), state


@pytest.mark.parametrize("name", ASKS)
async def test_a_call_names_the_registered_incarnation(name: str) -> None:
    node = Node(ALL[2])
    calls, state = calls_to(node)
    await ASKS[name](calls, state)
    assert node.asked == [ALL[2]]


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("incarnation", [0, ALL[2] - 1, ALL[2] + 1])
async def test_what_another_incarnation_says_counts_for_nothing(
    name: str, incarnation: int
) -> None:
    calls, state = calls_to(Node(incarnation))
    with pytest.raises(FencedError):
        await ASKS[name](calls, state)


@pytest.mark.parametrize("name", ASKS)
async def test_nor_does_what_one_said_that_was_replaced_meanwhile(name: str) -> None:
    node = Node(ALL[2])
    calls, state = calls_to(node)

    def replace() -> None:
        state.nodes[2] = updated(state.nodes[2], incarnation=ALL[2] + 1)

    node.on_call = replace
    with pytest.raises(FencedError):
        await ASKS[name](calls, state)


@pytest.mark.parametrize("name", ASKS)
async def test_who_never_sent_a_heartbeat_is_not_asked(name: str) -> None:
    node = Node(0)
    calls, state = calls_to(node)
    state.nodes[2] = updated(state.nodes[2], incarnation=0)
    with pytest.raises(UnavailableError):
        await ASKS[name](calls, state)
    assert node.asked == []


TWICE: dict[str, Ask] = {
    "Fence": lambda calls, _: calls.fence(2, [(1, 5), (2, 5), (3, 5)], 1.0),
    "Open": lambda calls, state: calls.open(2, [OpenItem(segment(state))] * 3, 1.0),
    "WriteBack": lambda calls, state: calls.write_back(
        2, [WriteBackItem(segment(state), 9)] * 3, 1.0
    ),
    "CheckSeal": lambda calls, _: calls.check_seal(2, [1, 2, 3], 1.0),
    "Roll": lambda calls, state: calls.roll(2, [segment(state)] * 3, "test", 1.0),
}


@pytest.mark.parametrize("name", TWICE)
async def test_too_few_answers_count_for_nothing(name: str) -> None:
    """Nobody knows to which of the segments they belong."""
    calls, state = calls_to(Node(ALL[2]))
    with pytest.raises(ConflictError, match="a node answered 1 of 3 items"):
        await TWICE[name](calls, state)


@pytest.mark.parametrize("name", TWICE)
async def test_what_was_answered_before_a_later_message_fails_counts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_calls, "SEGMENTS_PER_CALL", 1)
    node = Node(ALL[2])
    calls, state = calls_to(node)

    def fail_at_second() -> None:
        if len(node.asked) == 2:
            raise UnavailableError("gone")

    node.on_call = fail_at_second
    found: Any = await TWICE[name](calls, state)
    errors = [each.error if isinstance(each, RollAnswer) else each for each in found]
    assert [isinstance(each, UnavailableError) for each in errors] == [False, True, True]
    assert len(node.asked) == 2, "who is gone is not asked on"


async def test_what_an_answer_has_no_room_for_is_asked_again_while_that_brings_more() -> None:
    """Ten results, and room for three in each answer; the last one never fits."""
    asked: list[list[int]] = []
    full = error_to_proto(ThrottledError("full"))

    async def call(address: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        ends = [each.end_offset for each in pb.WriteBackRequest.FromString(body).segments]
        asked.append(ends)
        results = [
            pb.WrittenBack(length_bytes=end) if at < 3 and end < 9 else pb.WrittenBack(error=full)
            for at, end in enumerate(ends)
        ]
        return pb.WriteBackResponse(incarnation=ALL[2], results=results).SerializeToString()

    calls, state = calls_to(cast(Any, SimpleNamespace(call=call)))
    found = await calls.write_back(2, [WriteBackItem(segment(state), end) for end in range(10)], 1)
    assert [each.length_bytes for each in found[:-1] if isinstance(each, WrittenReplica)] == [
        *range(9)
    ]
    assert isinstance(found[-1], ThrottledError)
    assert [len(ends) for ends in asked] == [10, 7, 4, 1]
