"""Decisions about merging: one large copy in object storage in place of several small ones. Pure.

What is merged are consecutive segments of a partition that lie in object storage alone. The merged
one is a sealed segment like any other, with an id and a copy of its own; it comes, and its sources
retire, in one change. So no moment has a record twice or not at all, and the objects of sources go
as those of deleted segments do: after the table, the holds and the readers' grace. An upload that
fails is closed, and nothing has happened but objects for the sweeper (docs/adr/0012).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from icecore.errors import ConflictError, InvalidRequestError
from icecore.model import FIRST_GENERATION, NO_INCARNATION, NodeId, SegmentId
from icecore.tier_records import TierCopy, TierRecord, TierState
from icecore.topic_settings import PARQUET_FORMAT
from icecore_coordinator.decisions.remote.tiering import (
    COUNTER,
    SEGMENT_IDS,
    Attempt,
    check_copy,
    current,
    drop_tiered,
    used_by,
)
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    ids_in,
    is_published,
    next_of,
)
from icecore_coordinator.state.records import Change, PartitionKey, SegmentRecord, updated

RECORDS_MAX = 4_000_000
"""Most records of a merged segment: the node that makes it holds all entries of its index in
memory."""
SEGMENTS_PER_TURN = 500
SOURCES_MAX = 45
"""Each has two records in the change that swaps, which has ``RECORDS_PER_CHANGE`` at most."""


@dataclass(frozen=True, slots=True)
class SmallSegments:
    """Segments that one could replace."""

    segment_ids: tuple[SegmentId, ...]
    length_bytes: int
    """Length of their copies together, in bytes."""
    records: int


def groups(state: ClusterState, key: PartitionKey, target_bytes: int) -> list[SmallSegments]:
    """Return groups that are worth merging in a partition, oldest first. A group has as many
    consecutive copies as stay within ``target_bytes`` together, two at least. The same state gives
    the same groups."""
    return [each for each in looking(state, key, target_bytes) if each is not None]


def looking(
    state: ClusterState, key: PartitionKey, target_bytes: int
) -> Iterator[SmallSegments | None]:
    """As ``groups``, with None now and then, where the state may change before it goes on: what is
    gone by then is in no group."""
    run: list[SegmentRecord] = []
    for number, segment_id in enumerate(list(ids_in(state, key)), 1):
        record = state.segments.get(segment_id)
        if run and (record is None or not _fits(state, run, record, target_bytes)):
            yield from _grouped(state, run)
            run = []
        is_small = record is not None and _length(state, record) < target_bytes
        if record is not None and is_small and _is_mergeable(state, record):
            run.append(record)
        if not number % SEGMENTS_PER_TURN:
            yield None
    yield from _grouped(state, run)


def _fits(
    state: ClusterState, run: Sequence[SegmentRecord], record: SegmentRecord, target_bytes: int
) -> bool:
    total = sum(_length(state, each) for each in run) + _length(state, record)
    ends = record.segment.end_offset - run[0].segment.base_offset
    is_room = len(run) < SOURCES_MAX and total <= target_bytes and ends <= RECORDS_MAX
    return is_room and _is_mergeable(state, record) and _follows(run[-1], record)


def _grouped(state: ClusterState, run: Sequence[SegmentRecord]) -> Iterator[SmallSegments]:
    if len(run) < 2 or not all(_is_mergeable(state, each) for each in run):
        return
    copies = [state.tiers.segments[each.segment.segment_id].copy for each in run]
    yield SmallSegments(
        tuple(each.segment.segment_id for each in run),
        sum(each.length_bytes for each in copies),
        sum(each.records for each in copies),
    )


def _length(state: ClusterState, record: SegmentRecord) -> int:
    """Return the length of the segment's copy in bytes; 0 = it has no copy."""
    tier = state.tiers.segments.get(record.segment.segment_id)
    return tier.copy.length_bytes if tier is not None else 0


def _is_mergeable(state: ClusterState, record: SegmentRecord) -> bool:
    """Return whether rows in object storage are all there is of it, and none of them is deleted:
    deleted rows leave the store with their segment, which a merge would keep for longer."""
    segment, topic = record.segment, state.topics.get(record.segment.topic_id)
    if topic is None or not topic.is_live or not is_published(state, record):
        return False
    tier = state.tiers.segments[segment.segment_id]
    is_whole = segment.is_remote_only and not segment.lossy
    has_rows = tier.copy.tier_format == PARQUET_FORMAT
    start = state.partitions[record.partition_key].log_start_offset
    return is_whole and has_rows and segment.base_offset >= start


def _follows(one: SegmentRecord, other: SegmentRecord) -> bool:
    """Return whether two segments can be one: no offset between them, the same partition and
    settings."""
    is_same = (one.partition_key, one.segment.settings) == (
        other.partition_key,
        other.segment.settings,
    )
    return is_same and one.segment.end_offset == other.segment.base_offset


def begin_merge(state: ClusterState, segment_ids: Sequence[SegmentId], owner: NodeId) -> Change:
    """An upload of a segment to come, with numbers that nobody ever had.

    Args:
        state: The cluster.
        segment_ids: The sources, in the order of their offsets.
        owner: Which node is asked to make the copy.

    Raises:
        InvalidRequestError: these are too few, too many, or do not follow each other.
        ConflictError: they can't be merged (now), or the node has no object store.
    """
    sources = _sources(state, segment_ids)
    if owner not in state.tiers.nodes:
        raise ConflictError(f"node {owner} has no object store: ask one that has")
    busy = {each for tier in _mergers(state) for each in tier.sources}
    if taken := sorted(busy.intersection(segment_ids)):
        raise ConflictError(f"segments {taken} are being merged: wait until that has ended")
    attempts, ids = next_of(state, COUNTER), next_of(state, SEGMENT_IDS)
    first, last = sources[0].segment, sources[-1].segment
    begun = TierRecord(
        segment_id=SegmentId(ids.next_value),
        topic_id=first.topic_id,
        partition=first.partition,
        generation=FIRST_GENERATION,
        base_offset=first.base_offset,
        end_offset=last.end_offset,
        state=TierState.UPLOADING,
        tier_format=PARQUET_FORMAT,
        attempt=attempts.next_value,
        owner=owner,
        owner_incarnation=state.incarnation(owner),
        since_ms=state.counted_ms,
        sources=(*segment_ids,),
        version=1,
    )
    counted = [updated(each, next_value=each.next_value + 1) for each in (attempts, ids)]
    return Change((*counted, begun, *used_by(state, owner)))


def _mergers(state: ClusterState) -> list[TierRecord]:
    """Those under way."""
    under_way = (state.tiers.segments[each] for each in state.tiers.under_way)
    return [each for each in under_way if each.sources]


def _sources(state: ClusterState, segment_ids: Sequence[SegmentId]) -> list[SegmentRecord]:
    """Raises InvalidRequestError, ConflictError."""
    if not 2 <= len(segment_ids) <= SOURCES_MAX:
        raise InvalidRequestError(
            f"{len(segment_ids)} segments can't be merged: name 2 to {SOURCES_MAX}"
        )
    found: list[SegmentRecord] = []
    for each in segment_ids:
        record = state.segments.get(each)
        if record is None or not _is_mergeable(state, record):
            raise ConflictError(
                f"segment {each} can't be merged: it is gone, deleted in part, lossy, on nodes as "
                "well, or not in object storage as rows"
            )
        found.append(record)
    ends = found[-1].segment.end_offset - found[0].segment.base_offset
    if ends > RECORDS_MAX:
        raise InvalidRequestError(f"{ends} offsets are too many: {RECORDS_MAX} may be merged")
    for one, other in pairwise(found):
        if not _follows(one, other):
            raise InvalidRequestError(
                f"segment {other.segment.segment_id} does not follow segment "
                f"{one.segment.segment_id} with the same settings: merge segments of one partition "
                "in the order of their offsets"
            )
    return found


def publish_merge(
    state: ClusterState,
    upload: Attempt,
    copy: TierCopy,
    source_digests: Sequence[bytes],
    now_ms: int,
) -> Change:
    """The merged segment is there and its sources retire, in one change.

    Args:
        state: The cluster.
        upload: As it was begun.
        copy: What its owner has stored and proved.
        source_digests: Content digest of each source, computed from the merged object as it is
            stored.
        now_ms: Wall clock, kept in deletion records.

    Raises:
        ConflictError: the attempt was closed, its owner is another process, or a source is gone.
        InvalidRequestError: that is no copy of these segments.
    """
    tier = current(state, upload)
    if not tier.sources:
        raise ConflictError(f"attempt {tier.attempt} is an upload of one segment")
    sources = _sources(state, tier.sources)
    check_copy(tier, copy)
    copies = [state.tiers.segments[each].copy for each in tier.sources]
    if [each.content_digest for each in copies] != [*source_digests]:
        raise InvalidRequestError(f"attempt {tier.attempt} has other records than its sources")
    if sum(each.records for each in copies) != copy.records:
        raise InvalidRequestError(f"attempt {tier.attempt} has {copy.records} records, not all")
    stored = updated(
        tier,
        state=TierState.PUBLISHED,
        copy=copy,
        owner_incarnation=NO_INCARNATION,
        sources=(),
        since_ms=state.counted_ms,
    )
    # The revision that takes the sources out of the table is the one that takes this one in.
    merged = Change((_merged(sources, stored.segment_id), stored))
    return merged + drop_tiered(state, sources, now_ms)


def _merged(sources: Sequence[SegmentRecord], segment_id: SegmentId) -> SegmentRecord:
    """As old as its newest source, of which it has what is true at the end."""
    last = sources[-1]
    segment = last.segment.changed(
        segment_id=segment_id,
        generation=FIRST_GENERATION,
        base_offset=sources[0].segment.base_offset,
        length_bytes=sum(each.segment.length_bytes for each in sources),
        full_digest=b"",  # there are no batches any more that it could prove
        version=1,
    )
    newest_ms = max(each.max_append_timestamp_ms for each in sources)
    since_ms = max(each.since_ms for each in sources)
    return replace(
        last, segment=segment, max_append_timestamp_ms=newest_ms, since_ms=since_ms, holders=()
    )
