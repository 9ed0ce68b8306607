"""Records of segments that nobody holds and readers skip: no offset is given out twice (R96).

Behind an end that nothing proves, and behind what a bucket gives back, somebody may have read
records that are gone. A partition goes on above all of these offsets. What lies between is sealed
segments without a copy: lost where records are known to have been there, else empty.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from icecore.model import OFFSETS_LEFT_OUT, Segment, SegmentId, SegmentState
from icecore_coordinator.state.records import Change, CounterRecord, SegmentRecord, updated


def base_behind(end_offset: int, seen_end_offset: int) -> int:
    """Return where a partition goes on behind an end that nothing proves: no offset is given out
    again that anybody may have read (R96).

    Args:
        end_offset: Of what is left.
        seen_end_offset: Readers are known to have come so far.
    """
    return max(end_offset, seen_end_offset) + OFFSETS_LEFT_OUT


def left_out(
    counter: CounterRecord, counted_ms: int, last: SegmentRecord, seen_end_offset: int
) -> Change:
    """Records of the offsets between the end of a sealed segment and ``base_behind``, for readers
    to skip: first the records that were seen and are lost, then offsets of which nobody knows.

    Args:
        counter: Of segment ids.
        counted_ms: Time that coordinators have counted until now.
        last: The last segment of which something is left. It may be empty, and not stored then.
        seen_end_offset: See ``base_behind``.
    """
    end_offset = max(last.segment.base_offset, last.segment.end_offset)
    seen_end_offset = max(end_offset, seen_end_offset)
    spans = [(end_offset, seen_end_offset, True)] if seen_end_offset > end_offset else []
    spans.append((seen_end_offset, base_behind(end_offset, seen_end_offset), False))
    skipped = [
        skipped_segment(last, SegmentId(counter.next_value + number), span, is_lost=is_lost)
        for number, (*span, is_lost) in enumerate(spans)
    ]
    counted = updated(counter, next_value=counter.next_value + len(skipped))
    return Change((counted, *(replace(each, since_ms=counted_ms) for each in skipped)))


def behind_left_out(segments: Iterable[SegmentRecord], offset: int) -> int:
    """Return the first offset from this one on that was not left out.

    Args:
        segments: Of the partition.
        offset: Any of it.
    """
    for record in segments:
        each = record.segment
        is_left_out = each.is_skipped and not each.is_lost
        if is_left_out and each.base_offset <= offset < each.end_offset:
            return each.end_offset
    return offset


def skipped_segment(
    last: SegmentRecord, segment_id: SegmentId, span: Sequence[int], *, is_lost: bool
) -> SegmentRecord:
    """The record of a segment that nobody holds.

    Args:
        last: The one before.
        segment_id: Its own.
        span: Its base and its end.
        is_lost: Whether there were records.
    """
    before = last.segment
    segment = Segment(
        segment_id=segment_id,
        topic_id=before.topic_id,
        topic=before.topic,
        partition=before.partition,
        state=SegmentState.SEALED,
        epoch=before.epoch,
        settings=before.settings,
        base_offset=span[0],
        end_offset=span[1],
        version=1,
        lossy=is_lost,
    )
    newest_ms = last.max_append_timestamp_ms
    return SegmentRecord(segment, max_append_timestamp_ms=newest_ms, since_ms=last.since_ms)
