"""Topics for Admin: creates, changes and deletes them, deletes records, gives up segments.

A change may be repeated after an attempt that got no answer. The coordinator then refuses it, and
the error says ``repeated``: what is there already counts as done by the earlier attempt.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from icecore.client import checks
from icecore.client.admin.descriptions import topic_from_proto
from icecore.client.admin.topic_settings import settings_to_proto
from icecore.client.cluster.connection import AdminCalls
from icecore.client.cluster.held_segments import list_segments
from icecore.client.types import DeletedRecords, DeletedTopic, RollResult, TopicDescription
from icecore.errors import IcecoreError, InvalidRequestError, TopicExistsError, UnknownTopicError
from icecore.model import Segment
from icecore.rpc import convert
from icecore.topic_settings import TopicFields, TopicSettings
from icecore.v1 import admin_pb2


async def create_topic(
    calls: AdminCalls,
    name: str,
    settings: TopicSettings | None,
    fields: TopicFields,
    *,
    if_not_exists: bool,
) -> TopicDescription:
    """As ``Admin.create_topic``."""
    request = admin_pb2.CreateTopicRequest(
        name=checks.topic_name(name),
        settings=settings_to_proto(settings, fields),
        if_not_exists=checks.flag("if_not_exists", if_not_exists),
    )
    try:
        answer = await calls.call("CreateTopic", request, admin_pb2.CreateTopicResponse)
    except TopicExistsError as error:
        if not _was_repeated(error):
            raise
        return (await describe_topics(calls, [name], deleted=False))[0]
    return topic_from_proto(answer.topic)


async def describe_topics(
    calls: AdminCalls, names: Sequence[str], *, deleted: bool
) -> list[TopicDescription]:
    """As ``Admin.describe_topics``."""
    request = admin_pb2.DescribeTopicsRequest(
        names=checks.names("names", names), deleted=checks.flag("deleted", deleted)
    )
    answer = await calls.call("DescribeTopics", request, admin_pb2.DescribeTopicsResponse)
    return [topic_from_proto(topic) for topic in answer.topics]


async def alter_topic(
    calls: AdminCalls, name: str, settings: TopicSettings | None, fields: TopicFields
) -> TopicDescription:
    """As ``Admin.alter_topic``."""
    changed = settings_to_proto(settings, fields)
    asked = fields.get("indexed_headers") if settings is None else settings.indexed_headers
    request = admin_pb2.AlterTopicRequest(
        name=checks.topic_name(name),
        settings=changed,
        clear_indexed_headers=asked is not None and not changed.indexed_headers,
    )
    answer = await calls.call("AlterTopic", request, admin_pb2.AlterTopicResponse)
    for message in answer.roll_errors:
        if (error := convert.error_from_proto(message)) is not None:
            raise error
    return topic_from_proto(answer.topic)


async def delete_topic(calls: AdminCalls, name: str, topic_id: bytes, *, now: bool) -> DeletedTopic:
    """As ``Admin.delete_topic``."""
    checks.flag("now", now)
    meant = _topic_fields(name, topic_id)
    # By its id: a repeated call must not hit a later topic of the name.
    topic_id = topic_id or await _id_of(calls, name)
    request = admin_pb2.DeleteTopicRequest(now=now, **(meant | {"topic_id": topic_id}))
    try:
        answer = await calls.call("DeleteTopic", request, admin_pb2.DeleteTopicResponse)
    except UnknownTopicError as error:
        if not _was_repeated(error):
            raise
        kept = await describe_topics(calls, [name] if name else (), deleted=True)
        mine = [each for each in kept if topic_id in (b"", each.topic_id)]
        newest = max(mine, key=lambda each: each.deleted_at_ms, default=None)
        if now or newest is None:
            return DeletedTopic(topic_id, 0)
        return DeletedTopic(newest.topic_id, newest.grace_left_ms)
    return DeletedTopic(answer.topic_id, answer.grace_ms)


async def undelete_topic(
    calls: AdminCalls, name: str, topic_id: bytes, new_name: str
) -> TopicDescription:
    """As ``Admin.undelete_topic``."""
    request = admin_pb2.UndeleteTopicRequest(
        new_name=new_name if new_name == "" else checks.topic_name(new_name),
        **_topic_fields(name, topic_id),
    )
    try:
        answer = await calls.call("UndeleteTopic", request, admin_pb2.UndeleteTopicResponse)
    except (UnknownTopicError, TopicExistsError) as error:
        if not _was_repeated(error):
            raise
        names = [new_name or name] if new_name or name else ()
        found = await describe_topics(calls, names, deleted=False)
        mine = [each for each in found if topic_id in (b"", each.topic_id)]
        if not mine:
            raise
        return mine[0]
    return topic_from_proto(answer.topic)


async def delete_records(
    calls: AdminCalls, topic: str, before_offsets: Mapping[int, int], *, dry_run: bool
) -> list[DeletedRecords]:
    """As ``Admin.delete_records``."""
    if not isinstance(before_offsets, Mapping):
        raise checks.wrong_type("before_offsets", before_offsets, "a mapping")
    request = admin_pb2.DeleteRecordsRequest(
        topic=checks.topic_name(topic), dry_run=checks.flag("dry_run", dry_run)
    )
    for partition, offset in before_offsets.items():
        request.partitions.add(
            partition=checks.partition_number(partition),
            before_offset=checks.whole("before_offset", offset, 0, checks.OFFSET_MAX),
        )
    request.topic_id = await _id_of(calls, topic)  # as in delete_topic
    answer = await calls.call("DeleteRecords", request, admin_pb2.DeleteRecordsResponse)
    return [
        DeletedRecords(
            each.partition,
            each.from_offset,
            each.log_start_offset,
            tuple(map(convert.segment_from_proto, each.segments)),
        )
        for each in answer.partitions
    ]


async def declare_lost(calls: AdminCalls, topic: str, partition: int, segment_id: int) -> Segment:
    """As ``Admin.declare_lost``."""
    request = admin_pb2.DeclareLostRequest(**_segment_fields(topic, partition, segment_id))
    answer = await calls.call("DeclareLost", request, admin_pb2.DeclareLostResponse)
    return convert.segment_from_proto(answer.segment)


async def recover_unclean(
    calls: AdminCalls, topic: str, partition: int, segment_id: int
) -> Segment | None:
    """As ``Admin.recover_unclean``."""
    request = admin_pb2.RecoverUncleanRequest(**_segment_fields(topic, partition, segment_id))
    try:
        answer = await calls.call("RecoverUnclean", request, admin_pb2.RecoverUncleanResponse)
    except InvalidRequestError as error:
        if not _was_repeated(error):
            raise
        found = await list_segments(
            calls.connection, topic, (partition,), 0, timeout_s=calls.timeout_s
        )
        return next((each for each in found if each.segment_id == segment_id), None)
    has_segment = answer.HasField("segment")
    return convert.segment_from_proto(answer.segment) if has_segment else None


def _was_repeated(error: IcecoreError) -> bool:
    """Return whether an earlier attempt of the refused call may have taken effect."""
    return error.metadata.get("repeated") == "true"


async def _id_of(calls: AdminCalls, name: str) -> bytes:
    """Return the id of the topic that has this name now. Raises UnknownTopicError."""
    (found,) = await describe_topics(calls, [name], deleted=False)
    return found.topic_id


def _topic_fields(name: str, topic_id: bytes) -> dict[str, Any]:
    """Name a topic by its id or its name. Raises TypeError, InvalidTopicNameError."""
    if not isinstance(topic_id, bytes):
        raise checks.wrong_type("topic_id", topic_id, "bytes")
    if topic_id and name == "":
        return {"topic_id": topic_id}
    return {"name": checks.topic_name(name), "topic_id": topic_id}


def _segment_fields(topic: str, partition: int, segment_id: int) -> dict[str, Any]:
    """Name a segment of a partition. Raises TypeError, InvalidRequestError."""
    return {
        "topic": checks.topic_name(topic),
        "partition": checks.partition_number(partition),
        "segment_id": checks.whole("segment_id", segment_id, 1, checks.UINT64_MAX),
    }


async def roll_topic(calls: AdminCalls, name: str) -> RollResult:
    """As ``Admin.roll_topic``."""
    request = admin_pb2.RollTopicRequest(name=checks.topic_name(name))
    answer = await calls.call("RollTopic", request, admin_pb2.RollTopicResponse)
    found = (convert.error_from_proto(error) for error in answer.errors)
    return RollResult(answer.rolled, tuple(error for error in found if error is not None))
