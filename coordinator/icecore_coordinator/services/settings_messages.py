"""Settings of a topic as messages have them: what they say, and what the cluster says besides."""

from dataclasses import replace

from icecore.rpc.convert import said, settings_to_topic, settings_with
from icecore.topic_settings import FlushMode, SegmentSettings, check_value
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.state.records import DELETE_GRACE_MS, TopicRecord

OF_ENGINE = ("engine", "file_model", "on_total_loss")


def settings_of(message: pb.TopicSettings, given: SegmentSettings | None = None) -> SegmentSettings:
    """Segment settings of a message; fields that it does not say stay as ``given``.

    Without ``given``, replication_factor and min_insync_replicas may come out as 0 = not said.

    Raises:
        InvalidRequestError: A setting of the message, of segments or not, is out of its range.
    """
    for name, value in said(message).items():
        check_value(name, value)
    unsaid = SegmentSettings(replication_factor=0, min_insync_replicas=0, on_total_loss="")
    return settings_with(given or unsaid, message)


def with_defaults(message: pb.TopicSettings, defaults: TopicDefaults) -> pb.TopicSettings:
    """A message with what the cluster says in the place of what it does not say.

    What belongs to an engine comes from where the engine comes from.
    """
    usual = defaults.said
    if message.HasField("engine"):
        usual = {key: value for key, value in usual.items() if key not in OF_ENGINE}
    if "flush_mode" in usual:
        usual["flush_mode"] = FlushMode[usual["flush_mode"].upper()]
    found = pb.TopicSettings(**usual)
    found.MergeFrom(message)
    return found


def altered_settings(request: pb.AlterTopicRequest, given: SegmentSettings) -> SegmentSettings:
    """``given`` as a request changes it. An empty list says nothing, so that a flag clears it."""
    kept = replace(given, indexed_headers=()) if request.clear_indexed_headers else given
    return settings_of(request.settings, kept)


def grace_of(message: pb.TopicSettings, given: int = DELETE_GRACE_MS) -> int:
    """``delete_grace_ms`` of a message; ``given`` when it says nothing, for 0 means something."""
    return message.delete_grace_ms if message.HasField("delete_grace_ms") else given


def settings_message(topic: TopicRecord) -> pb.TopicSettings:
    """A topic's settings with all defaults filled in."""
    return settings_to_topic(
        topic.settings,
        partitions=topic.partitions,
        delete_grace_ms=topic.delete_grace_ms,
        retention=topic.retention,
        tiering=topic.tiering,
    )
