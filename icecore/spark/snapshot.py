"""Asks a cluster for the snapshot of a topic that a query is planned from.

High watermarks are asked for before the segments, so that every record below them is in a segment
of the list, or in the active one that the list ends with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from icecore.blocking import Admin
from icecore.client.cluster.offsets import time_position
from icecore.client.types import OffsetResult, PublishedCopy
from icecore.errors import TopicRecreatedError, UnknownTopicError
from icecore.model import Segment, SegmentState
from icecore.spark.options import AsOf, Places, ReadOptions, Spans
from icecore.spark.plan import (
    PartitionSnapshot,
    SegmentSpan,
    Snapshot,
    resolve,
    spanned,
    within,
)
from icecore.spark.tiered import Division, divided

ADMIN_TIMEOUT_S = 20.0
"""Failover included."""


def take_snapshot(admin: Admin, topic: str, *, with_segments: bool = True) -> Snapshot:
    """The topic as it is now.

    Raises:
        UnknownTopicError: There is no such topic.
        TopicRecreatedError: It was made again while we asked.
        IcecoreError: The cluster did not answer in time.
    """
    try:
        ends = admin.list_offsets(topic, "latest")
        starts = admin.list_offsets(topic, "earliest", list(ends))
        (described,) = admin.describe_topics([topic])
        segments = admin.list_segments(topic) if with_segments else []
    except UnknownTopicError as error:  # by whichever call hears of it first
        raise UnknownTopicError(f"topic {topic} does not exist, or was deleted") from error
    _check_ids(topic, described.topic_id, [*ends.values(), *starts.values(), *segments])
    lengths = {each.partition: each.length_bytes for each in described.partitions}
    left_out = {each.partition: each.left_out for each in described.partitions}
    spans: dict[int, list[SegmentSpan]] = {}
    for each in segments:
        if each.partition in ends and each.base_offset >= 0:
            high_watermark = ends[each.partition].offset
            rest = lengths.get(each.partition, 0)  # in the end, of the one that is not sealed
            spans.setdefault(each.partition, []).append(_span(each, high_watermark, rest))
            lengths[each.partition] = max(0, rest - each.length_bytes)
    return Snapshot(
        topic,
        described.topic_id,
        {
            number: PartitionSnapshot(
                min(starts[number].offset, end.offset),
                end.offset,
                tuple(spans.get(number, ())),
                left_out.get(number, ()),
            )
            for number, end in ends.items()
        },
    )


def _check_ids(topic: str, topic_id: bytes, found: Sequence[OffsetResult | Segment]) -> None:
    """Refuse what was found of another topic of the name: offsets of one mean nothing in the
    next."""
    if any(each.topic_id != topic_id for each in found):
        raise TopicRecreatedError(f"topic {topic} was deleted and made again meanwhile")


def check_topic(options: ReadOptions, snapshot: Snapshot) -> None:
    """Refuse another topic than the one that is meant.

    Raises:
        TopicRecreatedError: It was made again.
    """
    if options.topic_id not in (b"", snapshot.topic_id):
        raise TopicRecreatedError(
            f"topic {options.topic} has the id {snapshot.topic_id.hex()}, and not "
            f"{options.topic_id.hex()}: it was made again"
        )


def held_snapshot(admin: Admin, topic: str, moment: AsOf) -> Snapshot:
    """The topic as it was at a moment that is still held.

    Raises:
        ConflictError: The hold has ended.
        UnknownTopicError: There is no such topic.
        TopicRecreatedError: It is another one by now.
        IcecoreError: The cluster did not answer in time.
    """
    held = admin.hold_snapshot(topic, 1, lease_id=moment.lease_id)  # shortens nothing
    if held.topic_id != moment.topic_id:
        raise TopicRecreatedError(f"topic {topic} was deleted and made again meanwhile")
    (described,) = admin.describe_topics([topic])
    left_out = {each.partition: each.left_out for each in described.partitions}
    partitions = {
        number: PartitionSnapshot(start, moment.ends[number], (), left_out.get(number, ()))
        for number, start in moment.starts.items()
    }
    return Snapshot(topic, moment.topic_id, partitions)


def _span(segment: Segment, high_watermark: int, rest_bytes: int) -> SegmentSpan:
    is_sealed = segment.state is SegmentState.SEALED
    return SegmentSpan(
        segment.segment_id,
        segment.base_offset,
        segment.end_offset if is_sealed else max(segment.base_offset, high_watermark),
        bool(segment.is_tiered),
        segment.length_bytes if is_sealed else rest_bytes,
    )


def offsets_of(admin: Admin, options: ReadOptions, snapshot: Snapshot, end: str) -> dict[int, int]:
    """The offsets at which a read begins, or ends: ``end`` is ``starting`` or ``ending``.

    Raises:
        ConfigurationError, OffsetOutOfRangeError: As ``plan.resolve``.
        IcecoreError: The cluster did not answer in time.
    """
    is_start = end == "starting"
    time_ms = options.starting_ms if is_start else options.ending_ms
    places: Places = options.starting if is_start else options.ending
    if time_ms is not None:
        places = offsets_since(admin, snapshot, time_ms)
    return resolve(
        f"{end}Offsets",
        places,
        snapshot.partitions,
        fail_on_data_loss=options.fail_on_data_loss and time_ms is None,
    )


def offsets_since(admin: Admin, snapshot: Snapshot, time_ms: int) -> dict[int, int]:
    """Return, by partition, the offset of the first record appended then or later. Where there is
    none, it is the end of the snapshot.

    Append times never go back within a partition (R51), so all that comes before was earlier.

    Raises:
        TopicRecreatedError: The topic is another one by now.
    """
    found = admin.list_offsets(snapshot.topic, time_position(time_ms), list(snapshot.partitions))
    _check_ids(snapshot.topic, snapshot.topic_id, [*found.values()])
    return {
        number: min(max(found[number].offset, partition.log_start_offset), partition.high_watermark)
        for number, partition in snapshot.partitions.items()
    }


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """All that a read is made of, as of one moment."""

    topic_id: bytes
    spans: Spans
    division: Division
    tier_url: str
    """As nodes name it."""


def plan_read(admin: Admin, options: ReadOptions, *, with_files: bool) -> PlannedRead:
    """Ask for offsets first and for copies then: a copy may end beyond what is read, and is cut.

    A copy that is published meanwhile changes nothing, and neither does one that is retired: its
    objects stay for a while, and what is not among the copies is read from nodes.

    Raises:
        ConfigurationError, OffsetOutOfRangeError: As ``plan.resolve``.
        TopicRecreatedError: It was made again while we asked, or is not the one that is meant.
        IcecoreError: There is no such topic, or the cluster did not answer in time.
    """
    snapshot = snapshot_to_read(admin, options)
    check_topic(options, snapshot)
    starts = offsets_of(admin, options, snapshot, "starting")
    ends = offsets_of(admin, options, snapshot, "ending")
    tier_url, copies = copies_of(admin, snapshot) if with_files else ("", ())
    filled = {number: end for number, end in ends.items() if starts[number] < end}
    spans = within(snapshot, None, {number: starts[number] for number in filled}, filled)
    division = divided(snapshot.topic_id, copies, starts, ends)
    rest = within(snapshot, division.rest, starts, ends)
    return PlannedRead(snapshot.topic_id, spans, replace(division, rest=rest), tier_url)


def snapshot_to_read(
    admin: Admin, options: ReadOptions, *, with_segments: bool = False
) -> Snapshot:
    """Return the snapshot that the options mean. Ranges that were planned before are taken as they
    are: readers find out whether their records are still there.

    Raises:
        ConflictError: The moment is not held any more.
        TopicRecreatedError: The topic is another one by now.
        IcecoreError: There is no such topic, or the cluster did not answer in time.
    """
    if options.offset_ranges is not None:
        return Snapshot(options.topic, options.topic_id, spanned(options.offset_ranges))
    if options.as_of is not None:
        return held_snapshot(admin, options.topic, options.as_of)
    snapshot = take_snapshot(admin, options.topic, with_segments=with_segments)
    check_topic(options, snapshot)
    return snapshot


def copies_of(admin: Admin, snapshot: Snapshot) -> tuple[str, tuple[PublishedCopy, ...]]:
    """The prefix of the cluster, and what is published of the topic by now.

    Raises:
        TopicRecreatedError: The topic is another one by now.
        IcecoreError: The cluster did not answer in time.
    """
    tiering = admin.describe_tiering([snapshot.topic], with_copies=True)
    (found,) = tiering.topics
    if found.topic_id != snapshot.topic_id:
        raise TopicRecreatedError(f"topic {snapshot.topic} was made again meanwhile")
    return tiering.tier_url, found.copies
