"""Plan the offsets that a query reads, split into ranges: pure functions of a snapshot.

A snapshot is taken once per query, or once per micro-batch. What is read is decided by it alone, so
records that come later, segments that are sealed meanwhile and copies that move change nothing.
Ranges end where segments change between nodes and object storage: what is tiered can then be taken
by somebody who reads tables.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from icecore.errors import ConfigurationError, OffsetOutOfRangeError
from icecore.model import OffsetSpans, records_between
from icecore.spark.options import Places, Spans

RANGE_RECORDS_MAX: Final = 4 << 20
"""Maximum records of one range: a task that fails is done again."""
FILE_RECORDS_MAX: Final = 1 << 20
"""The same of a range that is read from objects, where it costs nothing to begin anywhere."""
_SNAP: Final = 4
"""A cut moves to the border of a segment that is nearer than this part of a range."""


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """Position of one segment."""

    segment_id: int
    base_offset: int
    end_offset: int
    """Exclusive; of the active segment what can be read of it."""
    is_tiered: bool
    length_bytes: int = 0
    """Size of its batches."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """Offsets and segments of one partition at one moment."""

    log_start_offset: int
    high_watermark: int
    segments: tuple[SegmentSpan, ...] = ()
    left_out: OffsetSpans = ()
    """Offsets that were never given out: nobody reads there."""

    def records(self, start: int, end: int) -> int:
        """Return how many records there can be from ``start`` to below ``end``."""
        return records_between(start, end, self.left_out)

    def spans(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the offsets from ``start`` to below ``end`` where records can be."""
        found = []
        for low, high in self.left_out:
            if start < low < end:
                found.append((start, low))
            if high > start:
                start = max(start, min(high, end)) if low < end else start
        if start < end:
            found.append((start, end))
        return found


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Offsets and segments of a topic at one moment."""

    topic: str
    topic_id: bytes
    partitions: Mapping[int, PartitionSnapshot]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition for one task."""

    partition: int
    start_offset: int
    end_offset: int
    segment_ids: tuple[int, ...] = ()
    is_tiered: bool = False
    """All of it lies in object storage, too."""

    def __len__(self) -> int:
        return self.end_offset - self.start_offset


def resolve(
    name: str,
    places: Places,
    partitions: Mapping[int, PartitionSnapshot],
    *,
    fail_on_data_loss: bool,
) -> dict[int, int]:
    """Offsets by partition of what an option says.

    Args:
        name: Of the option.
        places: What it says.
        partitions: What there is.
        fail_on_data_loss: Refuse an offset that is not there; else the nearest one is taken.

    Raises:
        ConfigurationError: It names other partitions than the topic has.
        OffsetOutOfRangeError: An offset is not in the log.
    """
    if not isinstance(places, str) and places.keys() != partitions.keys():
        raise ConfigurationError(
            f"{name} names partitions {_numbers(places)}; the topic has {_numbers(partitions)}"
        )
    found: dict[int, int] = {}
    for number, partition in partitions.items():
        place = places if isinstance(places, str) else places[number]
        low, high = partition.log_start_offset, partition.high_watermark
        if isinstance(place, str):
            found[number] = low if place == "earliest" else high
            continue
        if fail_on_data_loss and not low <= place <= high:
            raise OffsetOutOfRangeError(
                f"{name}: offset {place} of partition {number} is outside of [{low}, {high}], what "
                "the log holds; with failOnDataLoss=false (of a job: --allow-data-loss) what is "
                "left is read",
                log_start_offset=low,
                high_watermark=high,
            )
        found[number] = min(max(place, low), high)
    return found


def _numbers(partitions: Mapping[int, object]) -> str:
    shown = [str(number) for number in sorted(partitions)]
    return ", ".join(shown if len(shown) <= 20 else [*shown[:20], "…"])


def ranges(
    snapshot: Snapshot,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    min_partitions: int = 0,
) -> list[OffsetRange]:
    """All offsets from ``starts`` to ``ends`` where records can be, each in exactly one range, by
    partition and offset.

    There are at least ``min_partitions`` of them, if there are as many records, and at least one
    per partition that has some.
    """
    return ranges_within(snapshot, within(snapshot, None, starts, ends), min_partitions)


def ranges_within(
    snapshot: Snapshot,
    spans: Spans,
    min_partitions: int = 0,
    tiered_max: int = RANGE_RECORDS_MAX,
) -> list[OffsetRange]:
    """The same of several spans of each partition, between which others read. A range that is
    tiered has at most ``tiered_max`` records."""
    filled = {
        number: [(start, end) for start, end in spans[number] if start < end]
        for number in sorted(spans)
    }
    total = sum(end - start for each in filled.values() for start, end in each)
    if not total:
        return []
    wanted = max(min_partitions, sum(bool(each) for each in filled.values()))
    length = min(max(1, total // wanted), RANGE_RECORDS_MAX)
    return [
        each
        for number, found in filled.items()
        for start, end in found
        for each in _of_partition(
            snapshot.partitions[number], number, start, end, (length, min(length, tiered_max))
        )
    ]


def spanned(spans: Spans) -> dict[int, PartitionSnapshot]:
    """Partitions that have just these offsets, as far as anybody is to know."""
    return {
        number: PartitionSnapshot(each[0][0], each[-1][1]) for number, each in spans.items() if each
    }


def within(
    snapshot: Snapshot, spans: Spans | None, starts: Mapping[int, int], ends: Mapping[int, int]
) -> Spans:
    """Cut the spans to the range from ``starts`` to ``ends``, and to where records can be; None =
    the whole range."""
    if spans is None:
        spans = {number: [(start, ends[number])] for number, start in starts.items()}
    partitions = snapshot.partitions
    return {
        number: [
            span
            for low, high in each
            for span in partitions[number].spans(max(low, starts[number]), min(high, ends[number]))
        ]
        for number, each in spans.items()
        if number in starts
    }


def _of_partition(
    partition: PartitionSnapshot, number: int, start: int, end: int, lengths: tuple[int, int]
) -> Iterator[OffsetRange]:
    """Ranges of up to the first length, or of up to the second one where they are tiered."""
    segments = partition.segments
    bases = [each.base_offset for each in segments]
    for first, stop, is_tiered in _runs(segments, start, end):
        for low, high in pairwise(_cuts(first, stop, lengths[is_tiered], bases)):
            near = segments[max(0, bisect_right(bases, low) - 1) : bisect_left(bases, high)]
            held = tuple(each.segment_id for each in near if each.end_offset > low)
            yield OffsetRange(number, low, high, held, is_tiered)


def _runs(segments: Sequence[SegmentSpan], start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Parts of ``[start, end)`` that are tiered as a whole, or not; gaps are not."""
    marks: list[tuple[int, int, bool]] = []
    at = start
    for each in segments:
        low, high = max(each.base_offset, at), min(each.end_offset, end)
        if low >= high:
            continue
        if low > at:
            marks.append((at, low, False))
        marks.append((low, high, each.is_tiered))
        at = high
    if at < end:
        marks.append((at, end, False))
    first = 0
    for index, (_, stop, is_tiered) in enumerate(marks):
        if index + 1 == len(marks) or marks[index + 1][2] != is_tiered:
            yield marks[first][0], stop, is_tiered
            first = index + 1


def _cuts(start: int, end: int, length: int, borders: Sequence[int]) -> list[int]:
    """Return the cuts, both ends included: evenly spaced, or at a segment's border where one is
    near."""
    count = -(-(end - start) // length)
    cuts = [start]
    for index in range(1, count):
        even = start + (end - start) * index // count
        at = bisect_left(borders, even)
        for border in borders[max(0, at - 1) : at + 1]:
            if abs(border - even) * _SNAP < length and cuts[-1] < border < end:
                even = border
        cuts.append(even)
    return [*cuts, end]
