"""Decisions about a topic that is made of copies in object storage. Pure.

While it is imported nobody sees the topic, nothing expires, and its name is free. Every step may be
repeated: what is there already and the same changes nothing. The last one proves that each
partition is whole before it gets its record, so a topic comes back with all that was named or not
at all. Only then its prefix in object storage is its own: an import that is given up is discarded,
and the sweeper never knows of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from icecore.errors import ConflictError, InvalidRequestError, TopicExistsError
from icecore.model import (
    OFFSETS_LEFT_OUT,
    SEGMENT_ID_MAX,
    Epoch,
    SegmentId,
    SegmentState,
    check_topic_name,
)
from icecore.tier_records import TierRecord, TierTopicRecord
from icecore.topic_settings import (
    SETTINGS,
)
from icecore_coordinator.decisions import topic_changes
from icecore_coordinator.decisions.remote.imported import (
    OFFSET_MAX,
    ImportedSegment,
    ImportedTopic,
    check_segment,
    published_record,
)
from icecore_coordinator.decisions.remote.tiering import COUNTER, SEGMENT_IDS
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    check_free,
    next_of,
    next_revision,
)
from icecore_coordinator.state.left_out import base_behind, skipped_segment
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    CounterRecord,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
    updated,
)

COUNTED_MAX = (SEGMENT_ID_MAX + 1) // 2
"""A bucket may raise counters so far: as many numbers are left then."""
SEGMENTS_PER_CHANGE = RECORDS_PER_CHANGE // 2
"""Each has two records."""
TOPIC_ID_BYTES = 16


def is_imported(state: ClusterState, topic: ImportedTopic) -> bool:
    """Return whether the topic is there for everybody to see, as it was imported.

    Raises TopicExistsError: one with this id is there, and is another one.
    """
    found = state.topics.get(topic.topic_id)
    if found is None or not found.is_live:
        return False
    if (found.name, found.partitions) != (topic.name, topic.partitions):
        raise TopicExistsError(
            f"topic {topic.topic_id.hex()} exists as {found.name!r} with {found.partitions} "
            "partitions: a restore does not change a topic",
            topic=found.name,
        )
    return True


def begin_import(state: ClusterState, topic: ImportedTopic, nodes: int) -> Change:
    """A topic that nobody sees yet; nothing where that was done before.

    Args:
        state: The cluster.
        topic: What comes back.
        nodes: How many are up.

    Raises:
        TopicExistsError: its name is taken, or its id by another topic.
        ConflictError: an import of it is being discarded.
        InvalidRequestError: see the checks.
    """
    if len(topic.topic_id) != TOPIC_ID_BYTES:
        raise InvalidRequestError(f"the id of a topic has {TOPIC_ID_BYTES} bytes")
    if any(not 0 <= each < OFFSET_MAX for each in topic.log_starts):
        raise InvalidRequestError("a log starts at an offset that no partition can have")
    check_topic_name(topic.name)
    check_free(state, topic.name)
    found = state.topics.get(topic.topic_id)
    if found is not None:
        _check_same(found, topic)
        return Change()
    SETTINGS["partitions"].check(topic.partitions)
    topic_changes.check_settings(topic.settings, nodes)
    SETTINGS["delete_grace_ms"].check(topic.delete_grace_ms)
    topic_changes.check_retention(topic.retention, topic.settings)
    # Whether a node has the store does not matter yet: it may have been refused until now.
    topic_changes.check_tiering(state, replace(topic.tiering, is_on=False), topic.retention)
    hidden = TopicRecord(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=topic.partitions,
        settings=topic.settings,
        is_deleted=True,
        delete_grace_ms=topic.delete_grace_ms,
        grace_left_ms=SETTINGS["delete_grace_ms"].high,
        partition_counts=topic.known_counts,
        retention=topic.retention,
        tiering=topic.tiering,
        version=1,
    )
    return Change((hidden,))


def _check_same(found: TopicRecord, topic: ImportedTopic) -> None:
    """Raises TopicExistsError, ConflictError: the topic that is there is no import that this one
    goes on with."""
    known = f"topic {found.topic_id.hex()} is here as {found.name!r}"
    if not found.is_import:
        advice = "a restore does not change a topic"
        if found.is_deleting:
            advice = "it was deleted for good, and its objects go with it"
        elif found.is_deleted:
            advice = "it was deleted; bring it back by `icecore topic undelete`"
        raise TopicExistsError(f"{known}: {advice}", topic=found.name)
    if found.is_deleting:
        raise ConflictError(f"{known}: its import is being discarded, repeat the restore later")
    if (found.name, found.partitions) != (topic.name, topic.partitions):
        raise TopicExistsError(
            f"{known}, being imported with {found.partitions} partitions: restore it so, or "
            f"discard the import by `icecore topic delete --now --topic-id {found.topic_id.hex()}`,"
            " which keeps its objects",
            topic=found.name,
        )


def show(state: ClusterState, topic_id: bytes) -> Change:
    """Everybody sees the topic from now on, and its prefix is its own; nothing where that is so.

    Raises:
        ConflictError: it is not being imported (any more).
        TopicExistsError: its name was taken meanwhile.
    """
    topic = _importing(state, topic_id)
    if topic.is_live:
        return Change()
    check_free(state, topic.name)
    shown = updated(topic, is_deleted=False, grace_left_ms=0)
    return Change((shown, *_of_topic(state, topic_id), *_to_tell(state, topic)))


def _to_tell(state: ClusterState, topic: TopicRecord) -> tuple[PartitionRecord, ...]:
    """Object storage has to hear of the topic from this cluster: what the earlier one stored may
    say that it is deleted. Copies make an order due anyway."""
    known = list(state.partitions_of(topic))
    if not known or any(each.table_revision < each.tier_revision for each in known):
        return ()
    return next_revision(state, known[0].partition_key)


def _importing(state: ClusterState, topic_id: bytes) -> TopicRecord:
    """The topic, being imported or shown. Raises ConflictError."""
    topic = state.topics.get(topic_id)
    if topic is None or topic.is_deleting or not (topic.is_import or topic.is_live):
        raise ConflictError(f"topic {topic_id.hex()} is not being imported: repeat the restore")
    return topic


def _of_topic(state: ClusterState, topic_id: bytes) -> tuple[TierTopicRecord, ...]:
    known = state.tiers.topics.get(topic_id)
    if known is None:
        return (TierTopicRecord(topic_id, version=1),)
    # An earlier topic with this id is still being swept, or to be marked as deleted.
    is_gone = known.is_swept or known.gone_version
    return (updated(known, is_swept=False, gone_version=0),) if is_gone else ()


def raise_counters(state: ClusterState, segment_ids_max: int, attempts_max: int) -> Change:
    """No later segment and no later upload gets a number that any object in the bucket has.

    Raises InvalidRequestError: a number leaves no room for others.
    """
    raised: list[CounterRecord] = []
    for name, highest in ((SEGMENT_IDS, segment_ids_max), (COUNTER, attempts_max)):
        if highest >= COUNTED_MAX:
            raise InvalidRequestError(
                f"{name} {highest}: nobody has counted so far, and too few numbers would be left. "
                "No cluster has named an object so: find it by `icecore tier verify`, and move it "
                "away"
            )
        counter = next_of(state, name)
        if counter.next_value <= highest:
            raised.append(updated(counter, next_value=highest + 1))
    return Change((*raised,))


def add_segments(
    state: ClusterState, topic_id: bytes, imported: Sequence[ImportedSegment]
) -> Change:
    """Records of at most ``SEGMENTS_PER_CHANGE`` segments and of their copies.

    Raises:
        ConflictError: an id is taken by another segment, or the topic is not being imported.
        InvalidRequestError: that is no sealed segment with a copy.
    """
    topic = _importing(state, topic_id)
    if topic.is_live:
        raise ConflictError(f"topic {topic_id.hex()} is not being imported: it is back")
    puts: list[SegmentRecord | TierRecord] = []
    for each in imported:
        _check(state, topic, each)
        known = state.segments.get(each.segment.segment_id)
        if known is None:
            puts += _records(state, topic, each)
        elif not _is_same(state, known, each):
            raise ConflictError(
                f"segment {each.segment.segment_id} exists, and is another one: restore topic "
                f"{topic.name!r} into an empty cluster"
            )
    return Change((*puts,))


def _check(state: ClusterState, topic: TopicRecord, each: ImportedSegment) -> None:
    check_segment(topic.partitions, each)
    segment_id = each.segment.segment_id
    counted = next_of(state, SEGMENT_IDS).next_value, next_of(state, COUNTER).next_value
    if not segment_id < counted[0] or not each.attempt < counted[1]:
        raise InvalidRequestError(
            f"segment {segment_id}, attempt {each.attempt}: a number is not below the counter in "
            "the restore plan"
        )
    if segment_id in state.deleted:
        raise ConflictError(f"segment {segment_id} was deleted in this cluster")


def _records(
    state: ClusterState, topic: TopicRecord, each: ImportedSegment
) -> tuple[SegmentRecord, TierRecord]:
    segment = replace(
        each.segment,
        topic_id=topic.topic_id,
        topic=topic.name,
        state=SegmentState.SEALED,
        settings=replace(topic.settings, indexed_headers=each.segment.settings.indexed_headers),
        length_bytes=each.copy.length_bytes,  # of objects: nobody knows that of the batches
        is_tiered=True,
        version=1,
    )
    record = SegmentRecord(
        segment,
        max_append_timestamp_ms=each.max_append_timestamp_ms,
        since_ms=state.counted_ms,
    )
    return record, published_record(segment, each, state.counted_ms)


def _is_same(state: ClusterState, known: SegmentRecord, each: ImportedSegment) -> bool:
    tier, one, other = (
        state.tiers.segments.get(each.segment.segment_id),
        known.segment,
        each.segment,
    )
    return (
        one.topic_id == other.topic_id
        and (one.partition, one.base_offset, one.end_offset)
        == (other.partition, other.base_offset, other.end_offset)
        and (one.seal_digest, one.full_digest) == (other.seal_digest, other.full_digest)
        and tier is not None
        and (tier.attempt, tier.copy) == (each.attempt, each.copy)
    )


def missing_records(
    state: ClusterState,
    topic_id: bytes,
    table_revisions: Sequence[int],
    log_starts: Sequence[int] = (),
) -> Change:
    """Records of the next partitions whose segments have all come, or that have none; nothing when
    all are there. Each goes on above all offsets that anybody may have read (R96).

    Args:
        state: The cluster.
        topic_id: Of the topic.
        table_revisions: By partition: what its table was last brought to. It takes no lower one.
        log_starts: By partition: where its log starts at least.

    Raises:
        ConflictError: it is not being imported (any more).
        InvalidRequestError: offsets of a partition are in no segment, or in two.
    """
    topic, counter = _importing(state, topic_id), next_of(state, SEGMENT_IDS)
    next_id, found = SegmentId(counter.next_value), list[PartitionRecord | SegmentRecord]()
    for number in range(topic.partitions):
        if len(found) >= RECORDS_PER_CHANGE:
            break
        if (topic_id, number) in state.partitions:
            continue
        ids = state.segments_of_partition.get((topic_id, number), {})
        segments = sorted((state.segments[each] for each in ids), key=_base_offset)
        known = table_revisions[number] if number < len(table_revisions) else 0
        start = log_starts[number] if number < len(log_starts) else 0
        if not segments:
            found.append(_empty_partition(topic_id, number, known, start))
            continue
        skipped = [
            skipped_segment(last, SegmentId(next_id + at), span, is_lost=False)
            for at, (last, span) in enumerate(_left_out(number, segments, start))
        ]
        next_id = SegmentId(next_id + len(skipped))
        found += [_partition(topic_id, number, [*segments, *skipped], known, start), *skipped]
    if not found:
        return Change()
    return Change((updated(counter, next_value=next_id), *found))


def _base_offset(record: SegmentRecord) -> int:
    return record.segment.base_offset


def _left_out(
    number: int, segments: Sequence[SegmentRecord], log_start: int
) -> Iterator[tuple[SegmentRecord, tuple[int, int]]]:
    """Yield what nothing is in, with the segment before it: what was left out before, and behind
    the last one what is now. A log that starts behind all of them was longer."""
    for last, after in zip_longest(segments, segments[1:]):
        end = last.segment.end_offset
        base = after.segment.base_offset if after is not None else base_behind(end, log_start)
        if base != end and base - end < OFFSETS_LEFT_OUT:
            raise InvalidRequestError(
                f"partition {number}: segments end at {end}, the next one begins at {base}"
            )
        if base != end:
            yield last, (end, base)


def _partition(
    topic_id: bytes,
    number: int,
    records: Sequence[SegmentRecord],
    table_revision: int,
    log_start: int,
) -> PartitionRecord:
    segments = [each.segment for each in records]
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        log_start_offset=max(log_start, segments[0].base_offset),
        next_base_offset=max(each.end_offset for each in segments),
        last_epoch=Epoch(max(each.epoch for each in segments)),
        tier_revision=table_revision + 1,
        table_revision=table_revision,
        version=1,
    )


def _empty_partition(
    topic_id: bytes, number: int, table_revision: int, log_start: int
) -> PartitionRecord:
    """Object storage has nothing of it: it was deleted, or never there. A table that there is takes
    only later revisions."""
    base = base_behind(0, log_start)
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        log_start_offset=base,
        next_base_offset=base,
        tier_revision=table_revision,
        table_revision=table_revision,
        version=1,
    )
