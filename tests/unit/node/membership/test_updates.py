"""The coordinator pushes nodes: those of a message are all that there are."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import UnavailableError
from icecore.v1 import coordinator_pb2 as pb
from icecore.v1.common_pb2 import NodeInfo
from icecore_node.context import Peers, ProducerFences
from icecore_node.membership.updates import Updates

ALL = [NodeInfo(node_id=each, address=f"n{each}:1") for each in (1, 2, 3)]


def updates_of(peers: Peers) -> Updates:
    nothing = cast(Any, SimpleNamespace(hear=lambda *_: None, heard=lambda *_: None))
    context = cast(
        Any, SimpleNamespace(identity=nothing, peers=peers, producer_fences=ProducerFences())
    )
    leaders = cast(Any, SimpleNamespace(all=list))
    return Updates(context, nothing, leaders, nothing, lambda _: None, lambda _: None, nothing)


def moved(node_id: int, version: int) -> pb.HeartbeatResponse:
    """A change of one node."""
    changed = [NodeInfo(node_id=node_id, address=f"moved{node_id}:1")]
    return pb.HeartbeatResponse(changed_nodes=changed, nodes_version=version)


def test_changes_of_nodes_are_taken_and_once_more_is_harmless() -> None:
    peers = Peers()
    updates = updates_of(peers)
    updates.take(pb.HeartbeatResponse(nodes=ALL, nodes_version=1))
    gone = pb.HeartbeatResponse(gone_node_ids=[3], nodes_version=3)
    back = pb.HeartbeatResponse(changed_nodes=[ALL[2]], nodes_version=4)
    for update in (moved(2, 2), moved(2, 2), gone, gone, moved(2, 2)):
        updates.take(update)
    found = {node_id: each.address for node_id, each in peers.nodes.items()}
    assert found == {1: "n1:1", 2: "moved2:1"}
    for update in (back, gone):
        updates.take(update)
    assert sorted(peers.nodes) == [1, 2, 3], "what comes late changes nothing"


def test_a_change_that_was_lost_ends_the_stream() -> None:
    """Also where the next message says nothing of nodes; a new stream begins with all of them."""
    for after in (moved(1, 3), pb.HeartbeatResponse(nodes_version=2)):
        peers = Peers()
        updates = updates_of(peers)
        updates.take(pb.HeartbeatResponse(nodes=ALL, nodes_version=1))
        with pytest.raises(UnavailableError, match="a change of nodes was lost"):
            updates.take(after)
        assert peers.nodes[1].address == "n1:1"
        updates.take(pb.HeartbeatResponse(nodes=ALL[:2], nodes_version=1))
        assert sorted(peers.nodes) == [1, 2]
        updates.take(moved(1, 2))
        assert peers.nodes[1].address == "moved1:1"


def test_nodes_that_were_forgotten_are_unknown_here_too() -> None:
    """A coordinator of before says no version, and all nodes each time."""
    peers = Peers()
    updates, all_nodes = updates_of(peers), ALL
    updates.take(pb.HeartbeatResponse(nodes=all_nodes))
    assert list(peers.nodes) == [1, 2, 3]
    updates.take(pb.HeartbeatResponse())
    assert list(peers.nodes) == [1, 2, 3]
    updates.take(pb.HeartbeatResponse(nodes=all_nodes[:2]))
    assert list(peers.nodes) == [1, 2]
