"""A node says what it has heard, how long ago, and sends everything else on."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import NotCoordinatorError, UnavailableError
from icecore.model import NodeInfo, NodeState
from icecore.rpc.methods import ADMIN
from icecore.rpc.ports import NO_SLOT
from icecore.v1 import admin_pb2, mirror_pb2
from icecore_node.identity.readers import Readers
from icecore_node.registry.table import ReplicaTable
from icecore_node.registry.topic_mirror import TopicMirror
from icecore_node.serving.metadata_service import MetadataService

CALL = cast(Any, SimpleNamespace(slot=NO_SLOT))


def heard() -> TopicMirror:
    mirror = TopicMirror()
    partitions = [admin_pb2.PartitionMetadata(partition=n, leader=n + 1) for n in range(2)]
    topic = admin_pb2.TopicMetadata(name="t", topic_id=b"t" * 16, partitions=partitions)
    mirror.take(mirror_pb2.FollowTopicsResponse(coordinator_epoch=3, version=9, topics=[topic]))
    mirror.note_newest(1_000)
    return mirror


def service(mirror: TopicMirror) -> MetadataService:
    nodes = {
        1: NodeInfo(cast(Any, 1), "n1:1", cast(Any, 1)),
        2: NodeInfo(cast(Any, 2), "n2:1", cast(Any, 1), state=NodeState.DOWN),
    }
    context = SimpleNamespace(
        identity=SimpleNamespace(cluster_id=b"c" * 16, node_id=1),
        peers=SimpleNamespace(nodes=nodes),
        clock=SimpleNamespace(monotonic_ms=lambda: 1_400.0),
    )
    coordinator = SimpleNamespace(address="c:1")
    return MetadataService(
        cast(Any, context), cast(Any, coordinator), mirror, ReplicaTable(Readers())
    )


async def ask(service: MetadataService, *topics: str, **fields: Any) -> Any:
    body = admin_pb2.GetMetadataRequest(topics=topics, **fields).SerializeToString()
    found = await service.handlers()[ADMIN["GetMetadata"]](body, CALL)
    return admin_pb2.GetMetadataResponse.FromString(bytes(cast(Any, found)))


async def test_what_was_heard_and_how_long_ago() -> None:
    answer = await ask(service(heard()), "t", "u", "t")
    assert (answer.coordinator_epoch, answer.version, answer.age_ms) == (3, 9, 400)
    known, unknown = answer.topics
    assert [each.leader for each in known.partitions] == [1, 0]  # who is down leads nothing
    assert (unknown.name, unknown.error.reason) == ("u", "UNKNOWN_TOPIC_OR_PARTITION")
    assert [each.node_id for each in answer.nodes] == [1, 2]


async def test_all_topics_and_their_names() -> None:
    of = service(heard())
    assert [each.name for each in (await ask(of)).topics] == ["t"]
    (named,) = (await ask(of, names_only=True)).topics
    assert (named.topic_id, len(named.partitions)) == (b"t" * 16, 0)


async def test_who_has_heard_nothing_says_so() -> None:
    with pytest.raises(UnavailableError, match="ask the coordinator at c:1"):
        await ask(service(TopicMirror()))


async def test_held_segments_are_as_old_as_what_was_heard() -> None:
    body = admin_pb2.ListSegmentsRequest(held_only=True).SerializeToString()
    found = await service(heard()).handlers()[ADMIN["ListSegments"]](body, CALL)
    assert admin_pb2.ListSegmentsResponse.FromString(bytes(cast(Any, found))).age_ms == 400


@pytest.mark.parametrize("method", ["CreateTopic", "ListSegments", "SavePositions"])
async def test_everything_else_is_sent_on(method: str) -> None:
    with pytest.raises(NotCoordinatorError) as caught:
        await service(heard()).handlers()[ADMIN[method]](b"", CALL)
    assert caught.value.metadata["address"] == "c:1"
