"""Converts the coordinator's descriptions of topics and of the cluster into client values."""

from icecore.client.admin.topic_settings import settings_from_proto
from icecore.client.types import PartitionDescription, SnapshotHold, TopicDescription
from icecore.errors import InternalError
from icecore.rpc.messages import value_of
from icecore.v1 import admin_pb2


def topic_from_proto(message: admin_pb2.TopicDescription) -> TopicDescription:
    """Raises InternalError: It is none."""
    if not message.name:
        raise InternalError("the coordinator answered without a topic")
    return value_of(
        TopicDescription,
        message,
        settings=settings_from_proto(message.settings),
        partitions=tuple(map(_partition_from_proto, message.partitions)),
        holds=tuple(
            value_of(SnapshotHold, each, topic_id=message.topic_id) for each in message.holds
        ),
    )


def _partition_from_proto(message: admin_pb2.PartitionDescription) -> PartitionDescription:
    left_out = tuple((each.base_offset, each.end_offset) for each in message.left_out)
    return value_of(PartitionDescription, message, left_out=left_out)
