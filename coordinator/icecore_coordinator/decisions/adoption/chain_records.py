"""Records of segments that are put together anew, from what nodes and object storage tell. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from icecore.model import NO_NODE, NodeId, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.decisions.adoption.told import Evidence, ToldReplica
from icecore_coordinator.decisions.remote.imported import ImportedSegment
from icecore_coordinator.state.cluster_state import without_repeats
from icecore_coordinator.state.records import SegmentRecord

VERSION_LEAP: Final = 1 << 20
"""Records go so far above what any node has heard. A node that is silent may have heard more."""


def whole_copies(
    copies: Iterable[ToldReplica], end_offset: int, digest: bytes
) -> tuple[NodeId, ...]:
    """Nodes with a copy that has exactly this content."""
    return tuple(
        sorted(
            each.node_id
            for each in copies
            if each.is_intact and (each.durable_end_offset, each.digest) == (end_offset, digest)
        )
    )


def holders_of(record: SegmentRecord, copies: Iterable[ToldReplica]) -> tuple[NodeId, ...]:
    return without_repeats([*record.holders, *(each.node_id for each in copies)])


def leapt(
    record: SegmentRecord,
    told: Evidence | None,
    changes: dict[str, object],
    **record_changes: object,
) -> SegmentRecord:
    """The record with a version that is above all that were heard."""
    heard = [each.record.version for each in told.copies if each.record] if told else []
    version = max(record.version, *heard, 0) + VERSION_LEAP
    segment = record.segment.changed(**{**changes, "version": version})
    return replace(record, segment=segment, **record_changes)  # type: ignore[arg-type]


def sealed_by_copy(
    each: ImportedSegment,
    known: SegmentRecord | None,
    told: Evidence | None,
    settings: SegmentSettings,
    counted_ms: int,
) -> SegmentRecord:
    """Return the record of a segment whose copy in object storage says where it ends.

    Args:
        each: The copy, with the topic's name.
        known: The segment in old metadata.
        told: Its copies on nodes. Those with its content count.
        settings: Of the topic.
        counted_ms: Time that coordinators have counted until now.
    """
    segment, copies = each.segment, told.copies if told is not None else []
    heard = told.record if told is not None else None
    of_topic = replace(settings, indexed_headers=segment.settings.indexed_headers)
    before = known or SegmentRecord(
        replace(segment, settings=heard.settings if heard is not None else of_topic, version=0),
        since_ms=max(1, counted_ms),
    )
    replicas = whole_copies(copies, segment.end_offset, segment.seal_digest)
    lengths = [copy.length_bytes for copy in copies if copy.node_id in replicas]
    return leapt(
        before,
        told,
        {
            "state": SegmentState.SEALED,
            "base_offset": segment.base_offset,
            "end_offset": segment.end_offset,
            "seal_digest": segment.seal_digest,
            "full_digest": segment.full_digest,
            "length_bytes": max(lengths, default=0)
            or before.segment.length_bytes
            or each.copy.length_bytes,
            "replicas": replicas,
            "isr": (),
            "surplus": (),
            "leader": NO_NODE,
            "is_tiered": True,
        },
        holders=holders_of(before, copies) if replicas else (),
        max_append_timestamp_ms=max(before.max_append_timestamp_ms, each.max_append_timestamp_ms),
    )
