"""The coordinator pushes nodes: those of a message are all that there are."""

from types import SimpleNamespace
from typing import Any, cast

from icecore.v1 import coordinator_pb2 as pb
from icecore.v1.common_pb2 import NodeInfo
from icecore_node.context import Peers, ProducerFences
from icecore_node.membership.updates import Updates


def test_nodes_that_were_forgotten_are_unknown_here_too() -> None:
    peers = Peers()
    nothing = cast(Any, SimpleNamespace(hear=lambda *_: None, heard=lambda *_: None))
    context = cast(
        Any, SimpleNamespace(identity=nothing, peers=peers, producer_fences=ProducerFences())
    )
    leaders = cast(Any, SimpleNamespace(all=list))
    updates = Updates(context, nothing, leaders, nothing, lambda _: None, lambda _: None, nothing)
    all_nodes = [NodeInfo(node_id=each, address=f"n{each}:1") for each in (1, 2, 3)]
    updates.take(pb.HeartbeatResponse(nodes=all_nodes))
    assert list(peers.nodes) == [1, 2, 3]
    updates.take(pb.HeartbeatResponse())
    assert list(peers.nodes) == [1, 2, 3]
    updates.take(pb.HeartbeatResponse(nodes=all_nodes[:2]))
    assert list(peers.nodes) == [1, 2]
