"""The word of a bucket for metadata that are adopted: what of topics lies in object storage. Pure.

A published copy proves a seal, as a sealed copy on a node does: its manifest has the end of the
segment and the digest of its records. Where no node has the segment any more, the copy is all that
is left of it. Nodes win where both contradict each other, and a person is told. A segment whose
offsets lie in other published segments was merged into these, or is a remainder. What a table does
not name any more, at the start of a log, was deleted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from icecore.model import SegmentId, SegmentState
from icecore.tier_records import TierRecord, TierState, TierTopicRecord
from icecore_coordinator.decisions.adoption.told import Evidence, Finding, names_of
from icecore_coordinator.decisions.remote.imported import (
    ImportedSegment,
    ImportedTopic,
    check_segment,
    published_record,
)
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import PartitionKey, SegmentRecord

Copies: TypeAlias = Mapping[SegmentId, ImportedSegment]


@dataclass(frozen=True, slots=True)
class ToldTopicCopies:
    """A topic as its bucket has it."""

    topic: ImportedTopic
    segments: tuple[ImportedSegment, ...]
    table_revisions: tuple[int, ...] = ()
    """By partition: what its table was last brought to. It takes no lower one."""
    segment_ids_max: int = 0
    """The highest id that any object in the bucket has."""
    attempts_max: int = 0
    is_deleted: bool = False
    """The bucket says that it is deleted."""

    @property
    def topic_id(self) -> bytes:
        return self.topic.topic_id

    @property
    def name(self) -> str:
        return f"{self.topic.name!r} ({self.topic_id.hex()})"


def check_copies(bucket: Iterable[ToldTopicCopies]) -> None:
    """Raises InvalidRequestError: something there is no segment with a copy."""
    for told in bucket:
        for each in told.segments:
            check_segment(told.topic.partitions, each)


def coming_back(
    state: ClusterState, held: Iterable[bytes], bucket: Sequence[ToldTopicCopies]
) -> tuple[dict[bytes, ToldTopicCopies], list[Finding]]:
    """Return the topics that come back with what the bucket has of them, and what a person must
    know.

    Args:
        state: Old metadata.
        held: Topics of which nodes have segments.
        bucket: All topics of the bucket.
    """
    found, findings, on_nodes = dict[bytes, ToldTopicCopies](), list[Finding](), {*held}
    for each in bucket:
        known = state.topics.get(each.topic_id)
        if each.is_deleted and known is None and each.topic_id not in on_nodes:
            why = "object storage says that it is deleted, and no node has it: it stays away"
            findings.append(Finding(f"{each.name}: {why}", each.topic.name))
            continue
        found[each.topic_id] = each
        if each.is_deleted and (known is None or known.is_live):
            why = (
                "object storage says that it is deleted, and nodes have segments of it: it is back."
                f" Delete it again: icecore topic delete {each.topic.name}"
            )
            findings.append(Finding(f"{each.name}: {why}", each.topic.name))
        elif known is None and each.topic_id not in on_nodes:
            why = (
                "no node has a segment of it: it comes back from object storage alone, and goes on "
                "2^32 offsets above"
            )
            findings.append(Finding(f"{each.name}: {why}", each.topic.name))
    return found, findings


def by_partition(
    state: ClusterState, bucket: Iterable[ToldTopicCopies]
) -> dict[PartitionKey, dict[SegmentId, ImportedSegment]]:
    """Return the copies that count. Metadata that deleted a segment know better than a table that
    was not brought up to date."""
    found: dict[PartitionKey, dict[SegmentId, ImportedSegment]] = {}
    for told in bucket:
        for each in told.segments:
            segment_id = each.segment.segment_id
            if segment_id in state.segments or segment_id not in state.deleted:
                key = (told.topic_id, each.segment.partition)
                found.setdefault(key, {})[segment_id] = each
    return found


# --- one partition --------------------------------------------------------------------------------


def contradiction(
    each: ImportedSegment, record: SegmentRecord | None, told: Evidence | None
) -> str:
    """Return how nodes or old metadata have another content of the segment; empty = they don't."""
    segment = each.segment
    mine = (segment.base_offset, segment.end_offset, segment.seal_digest)
    there = f"object storage has offsets {segment.base_offset} to {segment.end_offset} of it"
    for copy in told.sealed if told is not None else ():
        if (copy.base_offset, copy.durable_end_offset, copy.digest) != mine:
            return (
                f"{there}, and nodes {names_of(told.sealed if told else [])} have it sealed with "
                f"offsets {copy.base_offset} to {copy.durable_end_offset}, or with other records: "
                "these count, and are uploaded again"
            )
    known = record.segment if record is not None else None
    if known is None or known.state is not SegmentState.SEALED or not known.seal_digest:
        return ""
    if (known.base_offset, known.end_offset, known.seal_digest) != mine:
        return (
            f"{there}, and the metadata have it with offsets {known.base_offset} to "
            f"{known.end_offset}, or with other records: these count"
        )
    return ""


def replaced_by_copies(
    published: Copies,
    records: Mapping[SegmentId, SegmentRecord],
    evidence: Mapping[SegmentId, Evidence],
) -> dict[SegmentId, str]:
    """Return the sealed segments that are part of the log no more, with what a person must know of
    each; empty = nothing. Their offsets lie in published segments of other ids, or in front of the
    first of these, and no node has them."""
    spans = _joined(published)
    found: dict[SegmentId, str] = {}
    for segment_id in sorted({*records, *evidence} - {*published}):
        span, holders = _sealed_span(records.get(segment_id), evidence.get(segment_id))
        if span is None or not spans:
            continue
        if any(first <= span[0] and span[1] <= end for first, end in spans):
            found[segment_id] = (
                f"its offsets {span[0]} to {span[1]} are in object storage as part of another "
                f"segment; nodes {holders} keep their copies"
                if holders
                else ""
            )
        elif not holders and span[1] <= spans[0][0] and _was_published(records.get(segment_id)):
            found[segment_id] = ""  # its copy was retired since: retention came so far
    return found


def _joined(published: Copies) -> list[tuple[int, int]]:
    """Return the spans of offsets that copies have without a hole."""
    spans: list[tuple[int, int]] = []
    for each in sorted(published.values(), key=lambda one: one.segment.base_offset):
        first, end = each.segment.base_offset, each.segment.end_offset
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((first, end))
    return spans


def _sealed_span(
    record: SegmentRecord | None, told: Evidence | None
) -> tuple[tuple[int, int] | None, str]:
    """Return the base and the end of a segment that is known to be sealed, and who holds it."""
    sealed = told.sealed if told is not None else []
    if sealed:
        return (sealed[0].base_offset, sealed[0].durable_end_offset), names_of(sealed)
    if record is not None and record.segment.state is SegmentState.SEALED:
        return (record.segment.base_offset, record.segment.end_offset), ""
    return None, ""


def _was_published(record: SegmentRecord | None) -> bool:
    return record is not None and record.segment.is_tiered


# --- records of copies ----------------------------------------------------------------------------


def copy_records(
    state: ClusterState, segments: Iterable[SegmentRecord], published: Copies
) -> list[TierRecord]:
    """Return the records of the copies of these segments: they are not uploaded again."""
    found = []
    for record in segments:
        each = published.get(record.segment.segment_id)
        if each is None or not record.segment.is_tiered:
            continue
        known = state.tiers.segments.get(record.segment.segment_id)
        is_known = known is not None and known.state is TierState.PUBLISHED
        if known is None or not is_known or known.attempt != each.attempt:
            found.append(published_record(record.segment, each, state.counted_ms, known))
    return found


def topic_records(state: ClusterState, topics: Iterable[ToldTopicCopies]) -> list[TierTopicRecord]:
    """Return the notes that something of these topics lies in object storage."""
    found = []
    for each in topics:
        known = state.tiers.topics.get(each.topic_id)
        if known is None:
            found.append(TierTopicRecord(each.topic_id, version=1))
        elif known.is_swept:
            found.append(replace(known, is_swept=False, version=known.version + 1))
    return found
