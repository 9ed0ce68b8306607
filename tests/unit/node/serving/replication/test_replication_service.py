"""Streams and questions of other nodes: each is meant for one node, not for whoever is here."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import FencedError, NotReplicaError
from icecore.rpc.ports import CallContext
from icecore.v1 import replication_pb2 as pb
from icecore_node.identity.identity import Identity
from icecore_node.serving.replication.replication_service import ReplicationService
from tests.support.role_setup import Calls

CALL = CallContext("peer", "anonymous", None)
NODE, INCARNATION = 2, 7


def service() -> ReplicationService:
    """Return the service of a node that knows no other node and has no replica."""
    identity = Identity(cast(Any, NODE))
    identity.incarnation = cast(Any, INCARNATION)
    nobody = SimpleNamespace(get=lambda _: None)
    context = SimpleNamespace(identity=identity, peers=nobody)
    return ReplicationService(
        cast(Any, context), cast(Any, nobody), cast(Any, Calls()), cast(Any, Calls())
    )


async def refusal_of_stream(node_id: int, incarnation: int) -> str:
    first = pb.ReplicaProgress(
        node_id=3, incarnation=5, leader_node_id=node_id, leader_incarnation=incarnation
    )

    async def read() -> bytes:
        return first.SerializeToString()

    with pytest.raises(FencedError) as caught:
        await service().replicate(cast(Any, SimpleNamespace(read=read)), CALL)
    return caught.value.message


@pytest.mark.parametrize(("ahead", "newer"), [(1, 0), (0, 1), (-NODE, 0)])
async def test_a_stream_to_another_process_is_refused(ahead: int, newer: int) -> None:
    assert "another node" in await refusal_of_stream(NODE + ahead, INCARNATION + newer)


async def test_a_stream_to_this_process_comes_to_the_next_check() -> None:
    assert "node 3 is not registered" in await refusal_of_stream(NODE, INCARNATION)


async def test_digests_are_told_only_to_who_asks_this_node() -> None:
    for asked, error in ((NODE + 1, FencedError), (0, FencedError), (NODE, NotReplicaError)):
        request = pb.SealPrepareRequest(segment_id=1, epoch=1, node_id=asked)
        with pytest.raises(error):
            await service().seal_prepare(request.SerializeToString(), CALL)
