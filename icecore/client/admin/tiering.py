"""Object storage for Admin: describes progress, imports existing copies, plans and does merges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from icecore.client import checks
from icecore.client.admin.descriptions import topic_from_proto
from icecore.client.admin.topic_settings import settings_of_plan, settings_to_proto
from icecore.client.cluster.connection import AdminCalls
from icecore.client.types import ClusterTiering, TopicDescription, TopicTiering
from icecore.errors import InvalidRequestError
from icecore.model import Segment
from icecore.rpc import convert
from icecore.rpc.messages import value_of
from icecore.tier_records import topic_folder
from icecore.topic_settings import TopicSettings
from icecore.v1 import admin_pb2, coordinator_pb2

STORE_ID_BYTES: Final = 16
SEGMENTS_PER_CALL = 1000
MERGED_BYTES_MAX = 64 << 30


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Segments of one partition that a single merged segment could replace."""

    partition: int
    segment_ids: tuple[int, ...]
    """In the order of their offsets."""
    length_bytes: int
    """Size of their objects."""
    records: int


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The segments of a topic that can be merged."""

    topic_id: bytes
    groups: tuple[MergeGroup, ...]
    """Sorted by partition and offset."""
    has_more: bool
    """The topic has more groups: plan again when these are merged."""


@dataclass(frozen=True, slots=True)
class MergedSegment:
    """The segment that replaced a group of small segments."""

    segment: Segment
    length_bytes: int
    """Size of its objects."""
    records: int


async def describe_tiering(
    calls: AdminCalls, topics: Sequence[str], *, with_copies: bool
) -> ClusterTiering:
    """As ``Admin.describe_tiering``."""
    request = admin_pb2.DescribeTieringRequest(
        topics=checks.names("topics", topics), with_copies=checks.flag("with_copies", with_copies)
    )
    answer = await calls.call("DescribeTiering", request, admin_pb2.DescribeTieringResponse)
    found = tuple(_tiering_of(each, answer) for each in answer.topics)
    return value_of(ClusterTiering, answer, topics=found)


def _table_of(topic: admin_pb2.TopicTiering, answer: admin_pb2.DescribeTieringResponse) -> str:
    """Return the URL of a topic's folder: in the store that the cluster uses, or will use."""
    urls = [answer.tier_url] if answer.tier_url else [*answer.tier_urls]
    is_there = topic.on or bool(topic.published_segments)
    return f"{urls[0].rstrip('/')}/{topic_folder(topic.topic_id)}" if is_there and urls else ""


def _tiering_of(
    message: admin_pb2.TopicTiering, answer: admin_pb2.DescribeTieringResponse
) -> TopicTiering:
    """One topic."""
    return value_of(TopicTiering, message, table=_table_of(message, answer))


async def plan_merges(calls: AdminCalls, topic: str, target_bytes: int) -> MergePlan:
    """As ``Admin.plan_merges``."""
    request = admin_pb2.PlanMergesRequest(
        topic=checks.topic_name(topic),
        target_bytes=checks.whole("target_bytes", target_bytes, 1, MERGED_BYTES_MAX),
    )
    message = await calls.call("PlanMerges", request, admin_pb2.PlanMergesResponse)
    return value_of(MergePlan, message, has_more=message.more)


async def merge_segments(
    calls: AdminCalls, topic: str, segment_ids: Sequence[int]
) -> MergedSegment:
    """As ``Admin.merge_segments``."""
    request = admin_pb2.MergeSegmentsRequest(
        topic=checks.topic_name(topic), segment_ids=checks.segment_ids("segment_ids", segment_ids)
    )
    answer = await calls.call("MergeSegments", request, admin_pb2.MergeSegmentsResponse)
    return value_of(MergedSegment, answer, segment=convert.segment_from_proto(answer.segment))


async def forget_store(calls: AdminCalls, store_id: bytes) -> None:
    """As ``Admin.forget_store``."""
    if not isinstance(store_id, bytes) or len(store_id) != STORE_ID_BYTES:
        raise checks.wrong_type("store_id", store_id, f"{STORE_ID_BYTES} bytes")
    request = admin_pb2.ForgetStoreRequest(store_id=store_id)
    await calls.call("ForgetStore", request, admin_pb2.ForgetStoreResponse)


async def import_tiered(
    calls: AdminCalls, plan: Mapping[str, Any], settings: TopicSettings
) -> TopicDescription:
    """As ``Admin.import_tiered``."""
    for request in import_requests(plan, settings_to_proto(settings, {})):
        answer = await calls.call("ImportTiered", request, admin_pb2.ImportTieredResponse)
    return topic_from_proto(answer.topic)


def import_requests(
    plan: Mapping[str, Any], settings: admin_pb2.TopicSettings
) -> list[admin_pb2.ImportTieredRequest]:
    """One call after the other for a topic.

    Args:
        plan: As ``icecore tier restore --dry-run`` shows it.
        settings: Of the topic, with its partitions.

    Raises:
        InvalidRequestError: It is no such plan.
    """
    try:
        return _requests(plan, settings)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise InvalidRequestError(
            "plan is one topic of what `icecore tier restore --dry-run --json` shows: "
            f"{type(error).__name__} {error}"
        ) from error


def bucket_parts(topics: Sequence[Mapping[str, Any]]) -> list[admin_pb2.BucketPart]:
    """Return what a bucket has, in parts; one without a topic where there is none.

    Args:
        topics: As ``icecore cluster adopt`` has read them.

    Raises:
        InvalidRequestError: They are no such topics.
    """
    if isinstance(topics, str | bytes | Mapping) or not isinstance(topics, Sequence):
        raise checks.wrong_type("bucket", topics, "a list of topics")
    try:
        return [each for topic in topics for each in _parts_of(topic)] or [admin_pb2.BucketPart()]
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise InvalidRequestError(
            "bucket is the list of topics that `icecore tier restore --dry-run --json` shows: "
            f"{type(error).__name__} {error}"
        ) from error


def _parts_of(topic: Mapping[str, Any]) -> list[admin_pb2.BucketPart]:
    settings = settings_of_plan(topic) or TopicSettings(tier="on")
    count = max(topic["partitions"], settings.partitions or 1)
    stored = settings_to_proto(replace(settings, partitions=count), {})
    is_deleted = bool(topic.get("is_deleted"))
    return [
        admin_pb2.BucketPart(topic=request, deleted=is_deleted)
        for request in import_requests(topic, stored)
    ]


def _requests(
    plan: Mapping[str, Any], settings: admin_pb2.TopicSettings
) -> list[admin_pb2.ImportTieredRequest]:
    segments: Sequence[Mapping[str, Any]] = plan["segments"]
    starts = range(0, max(1, len(segments)), SEGMENTS_PER_CALL)
    return [
        admin_pb2.ImportTieredRequest(
            name=plan["topic"],
            topic_id=bytes.fromhex(plan["topic_id"]),
            settings=settings,
            segment_ids_max=plan["segment_ids_max"],
            attempts_max=plan["attempts_max"],
            segments=map(_segment, segments[start : start + SEGMENTS_PER_CALL]),
            last=start == starts[-1],
            table_revisions=plan["table_revisions"],
            partition_counts=plan.get("partition_counts", ()),
            log_starts=plan.get("log_starts", ()),
        )
        for start in starts
    ]


def _segment(planned: Mapping[str, Any]) -> admin_pb2.ImportedSegment:
    return admin_pb2.ImportedSegment(
        segment_id=planned["segment_id"],
        partition=planned["partition"],
        generation=planned["generation"],
        epoch=planned["epoch"],
        base_offset=planned["base_offset"],
        end_offset=planned["end_offset"],
        seal_digest=bytes.fromhex(planned["seal_digest"]),
        full_digest=bytes.fromhex(planned["full_digest"]),
        max_append_timestamp_ms=planned["max_append_timestamp_ms"],
        indexed_headers=planned.get("indexed_headers", ()),
        copy=coordinator_pb2.TierCopy(
            attempt=planned["attempt"],
            manifest_sha256=bytes.fromhex(planned["manifest_sha256"]),
            content_digest=bytes.fromhex(planned["content_digest"]),
            length_bytes=planned["length_bytes"],
            records=planned["records"],
            tier_format=planned["tier_format"],
        ),
    )
