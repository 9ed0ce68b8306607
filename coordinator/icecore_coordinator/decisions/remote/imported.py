"""Topics and segments as a bucket has them: values for restores and for adoptions. Pure."""

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from icecore.errors import InvalidRequestError
from icecore.model import Segment
from icecore.tier_records import TierCopy, TierRecord, TierState
from icecore.topic_settings import (
    Retention,
    SegmentSettings,
    Tiering,
    check_indexed_headers,
)
from icecore_replication.digest import is_full_digest

OFFSET_MAX: Final = 1 << 62
_SHA256_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class ImportedTopic:
    """A topic that comes back from object storage, without its segments."""

    name: str
    topic_id: bytes
    partitions: int
    settings: SegmentSettings
    delete_grace_ms: int
    retention: Retention
    tiering: Tiering
    partition_counts: tuple[int, ...] = ()
    """All numbers of partitions that it has had, oldest first; empty = not known."""
    log_starts: tuple[int, ...] = ()
    """By partition: where its log starts at least; missing ones are 0. It starts where its first
    segment begins, if that is higher."""

    @property
    def known_counts(self) -> tuple[int, ...]:
        """As records have them. Where the history does not lead to the number of partitions, it
        begins with 0: look-ups ask all partitions."""
        counts = self.partition_counts
        is_known = counts[-1:] == (self.partitions,)
        is_known &= all(one < other for one, other in pairwise(counts))
        return counts if is_known else (0, self.partitions)


@dataclass(frozen=True, slots=True)
class ImportedSegment:
    """One of its segments, with its copy."""

    segment: Segment
    """SEALED, without replicas. Of its settings ``indexed_headers`` are its own; none means that
    look-ups read all of it, so none is always right."""
    max_append_timestamp_ms: int
    attempt: int
    copy: TierCopy


def check_segment(partitions: int, each: ImportedSegment) -> None:
    """Raises InvalidRequestError: that is no sealed segment of such a topic, with a copy."""
    segment, copy = each.segment, each.copy
    name = f"segment {segment.segment_id}"
    if not 0 <= segment.base_offset < segment.end_offset <= OFFSET_MAX:
        raise InvalidRequestError(f"{name} has no offsets")
    if not segment.partition < partitions:
        raise InvalidRequestError(f"{name} is of partition {segment.partition}, which is not there")
    if segment.segment_id <= 0 or each.attempt <= 0:
        raise InvalidRequestError(f"{name}, attempt {each.attempt}: numbers begin at 1")
    # A merged segment never had batches that a full digest could prove.
    is_proved = not segment.full_digest or is_full_digest(segment.full_digest)
    if not is_proved or len(copy.manifest_sha256) != _SHA256_BYTES:
        raise InvalidRequestError(f"{name} has no such full digest, or its manifest none")
    check_indexed_headers(segment.settings.indexed_headers)
    if not copy.content_digest or not copy.length_bytes:
        raise InvalidRequestError(f"the copy of {name} proves nothing")


def published_record(
    segment: Segment, each: ImportedSegment, counted_ms: int, known: TierRecord | None = None
) -> TierRecord:
    """Return the record of a copy that a bucket has.

    Args:
        segment: The segment as metadata have it.
        each: The copy.
        counted_ms: Time that coordinators have counted until now.
        known: What is stored of its copies: attempts that are to be swept stay.
    """
    return TierRecord(
        segment_id=segment.segment_id,
        topic_id=segment.topic_id,
        partition=segment.partition,
        generation=segment.generation,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        state=TierState.PUBLISHED,
        tier_format=each.copy.tier_format,
        attempt=each.attempt,
        copy=each.copy,
        closed_attempts=known.closed_attempts if known is not None else (),
        since_ms=counted_ms,
        version=known.version + 1 if known is not None else 1,
    )
