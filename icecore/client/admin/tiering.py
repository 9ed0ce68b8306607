"""Object storage for Admin: describes progress, imports existing copies, plans and does merges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icecore.client.types import PublishedCopy, TopicTiering
from icecore.errors import InvalidRequestError
from icecore.model import Segment
from icecore.v1 import admin_pb2, coordinator_pb2

SEGMENTS_PER_CALL = 1000
MERGED_BYTES_MAX = 64 << 30

_NUMBERS = (
    "waiting_segments",
    "uploading_segments",
    "published_segments",
    "remote_only_segments",
    "unswept_attempts",
    "local_bytes",
    "remote_bytes",
    "lag_ms",
    "stale_tables",
)


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


def tiering_of(message: admin_pb2.TopicTiering) -> TopicTiering:
    """One topic."""
    return TopicTiering(
        name=message.name,
        topic_id=message.topic_id,
        is_on=message.on,
        last_error=message.last_error,
        last_error_ms=message.last_error_ms,
        copies=tuple(
            PublishedCopy(
                each.segment_id,
                each.generation,
                each.base_offset,
                each.attempt,
                each.manifest_sha256,
                each.partition,
                each.end_offset,
                each.records,
            )
            for each in message.copies
        ),
        **{name: getattr(message, name) for name in _NUMBERS},
    )


def merge_plan(message: admin_pb2.PlanMergesResponse) -> MergePlan:
    """Convert the coordinator's answer into a merge plan."""
    return MergePlan(
        message.topic_id,
        tuple(
            MergeGroup(each.partition, tuple(each.segment_ids), each.length_bytes, each.records)
            for each in message.groups
        ),
        message.more,
    )


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
        copy=coordinator_pb2.TieredCopy(
            attempt=planned["attempt"],
            manifest_sha256=bytes.fromhex(planned["manifest_sha256"]),
            content_digest=bytes.fromhex(planned["content_digest"]),
            length_bytes=planned["length_bytes"],
            records=planned["records"],
            format=planned["tier_format"],
        ),
    )
