"""Values and messages are copied by the names and hints of their fields."""

from dataclasses import dataclass, fields

import pytest

from icecore.client.cluster_types import (
    AdoptedMetadata,
    AdoptFinding,
    ClusterDescription,
    DiskUsage,
    NodeDescription,
    SegmentMove,
)
from icecore.client.types import PartitionDescription, PublishedCopy, TopicTiering
from icecore.errors import InvalidRequestError
from icecore.model import NodeInfo, NodeState, Segment, SegmentState
from icecore.rpc.messages import message_of, value_of
from icecore.v1 import admin_pb2, common_pb2, coordinator_pb2

NODE = NodeInfo(3, "127.0.0.1:7401", 5, NodeState.DOWN, rack="a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "kind", "elsewhere"),
    [
        (Segment, coordinator_pb2.SegmentAssignment, set()),
        (NodeInfo, common_pb2.NodeInfo, set()),
        (DiskUsage, common_pb2.DiskUsage, set()),
        (NodeDescription, admin_pb2.NodeDescription, set()),
        (ClusterDescription, admin_pb2.DescribeClusterResponse, set()),
        (PartitionDescription, admin_pb2.PartitionDescription, set()),
        (SegmentMove, admin_pb2.SegmentMove, set()),
        (AdoptFinding, admin_pb2.AdoptFinding, set()),
        (AdoptedMetadata, admin_pb2.AdoptMetadataResponse, set()),
        (PublishedCopy, coordinator_pb2.PublishedCopy, set()),
        (TopicTiering, admin_pb2.TopicTiering, {"table"}),
    ],
)
def test_values_of_the_api_miss_no_field_of_their_message(
    cls: type, kind: type, elsewhere: set[str]
) -> None:
    """A field that was renamed on one side only would be a default for ever."""
    there = set(kind.DESCRIPTOR.fields_by_name)  # type: ignore[attr-defined]
    here = {each.name.removeprefix("is_") for each in fields(cls)}
    assert here - elsewhere == there


def test_a_nested_value_goes_there_and_back() -> None:
    told = NodeDescription(
        node=NODE,
        leads=1,
        replicas=2,
        disk_used_bytes=3,
        disk_free_bytes=4,
        disks=(DiskUsage("/a", 1, 2), DiskUsage("/b", 3, 4, "worn out")),
        is_drained=True,
        host="h",
    )
    message = message_of(admin_pb2.NodeDescription, told)
    assert message.drained and message.node.rack == "a" and message.disks[1].problem == "worn out"
    assert value_of(NodeDescription, message) == told


def test_an_absent_message_is_none_and_none_is_an_absent_message() -> None:
    told = PartitionDescription(0, 1, 2, None, 3, 4)
    message = message_of(admin_pb2.PartitionDescription, told, left_out=())
    assert not message.HasField("tail")
    assert value_of(PartitionDescription, message, left_out=()) == told


def test_an_unspecified_enum_is_the_default_and_an_unknown_one_is_refused() -> None:
    assert value_of(NodeInfo, common_pb2.NodeInfo(node_id=1)).state is NodeState.UP
    with pytest.raises(InvalidRequestError, match="NodeState has no number 77"):
        value_of(NodeInfo, common_pb2.NodeInfo(state=77))  # type: ignore[arg-type]
    nothing = coordinator_pb2.SegmentAssignment()
    with pytest.raises(InvalidRequestError, match="SegmentState has no number 0"):
        value_of(Segment, nothing)
    closed = coordinator_pb2.SegmentAssignment(state=int(SegmentState.SEALED))  # type: ignore[arg-type]
    assert value_of(Segment, closed).state is SegmentState.SEALED


def test_fields_of_one_side_are_left_alone() -> None:
    @dataclass(frozen=True)
    class Known:
        node_id: int
        since_ms: int = 7

    assert value_of(Known, common_pb2.NodeInfo(node_id=1, rack="a")) == Known(1)
    assert message_of(common_pb2.NodeInfo, Known(2, 9)) == common_pb2.NodeInfo(node_id=2)


def test_given_fields_are_taken_as_they_are() -> None:
    found = value_of(NodeInfo, common_pb2.NodeInfo(node_id=1, state=2), state=NodeState.UP)  # type: ignore[arg-type]
    assert found.state is NodeState.UP
    assert message_of(common_pb2.NodeInfo, NODE, rack="b").rack == "b"
    with pytest.raises(TypeError):
        value_of(NodeInfo, common_pb2.NodeInfo(node_id=1), nobody=1)
