"""Pure functions that divide a read: Spark takes a part from object storage, nodes serve the rest.

Every offset belongs to one side. A copy counts for Spark when its Parquet object has a row for each
of its offsets; what is left is read through nodes, from wherever the records are by then. So what
is sealed, copied, retired or dropped after the plan moves no border.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icecore.spark.options import Spans, Tiered
from icecore.spark.plan import OffsetRange, PartitionSnapshot, SegmentSpan, Snapshot
from icecore.tier_records import rows_key

if TYPE_CHECKING:
    from icecore.client.types import PublishedCopy


@dataclass(frozen=True, slots=True)
class TieredFile:
    """A Parquet object, and the offsets of it that are wanted: all, or some."""

    key: str
    partition: int
    start_offset: int
    end_offset: int
    base_offset: int
    """The first row has it; each further row has the next offset."""
    rows: int

    @property
    def is_whole(self) -> bool:
        """Return whether all of it is wanted."""
        return self.end_offset - self.start_offset == self.rows


@dataclass(frozen=True, slots=True)
class Division:
    """Division of a read: files that Spark opens, and ranges that nodes serve."""

    files: tuple[TieredFile, ...]
    rest: Spans


def divided(
    topic_id: bytes,
    copies: "Iterable[PublishedCopy]",
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> Division:
    """Take what there is a table for, and leave the rest.

    Args:
        topic_id: Of the topic.
        copies: Published at one moment.
        starts: By partition, where the read begins,
        ends: and where it ends.
    """
    files: list[TieredFile] = []
    rest: dict[int, list[tuple[int, int]]] = {}
    at = dict(starts)
    for copy in sorted(copies, key=lambda each: (each.partition, each.base_offset)):
        number = copy.partition
        if number not in starts or copy.records != copy.end_offset - copy.base_offset:
            continue
        low, high = max(copy.base_offset, at[number]), min(copy.end_offset, ends[number])
        if low >= high:
            continue
        if at[number] < low:
            rest.setdefault(number, []).append((at[number], low))
        key = _key(topic_id, copy)
        files.append(TieredFile(key, number, low, high, copy.base_offset, copy.records))
        at[number] = high
    for number in sorted(starts):
        if at[number] < ends[number]:
            rest.setdefault(number, []).append((at[number], ends[number]))
    return Division(tuple(files), rest)


def _key(topic_id: bytes, copy: "PublishedCopy") -> str:
    return rows_key(
        topic_id,
        copy.partition,
        copy.base_offset,
        copy.segment_id,
        copy.generation,
        copy.attempt,
    )


def by_files(tiered: Tiered, keys: Sequence[bytes], tags: Sequence[str]) -> bool:
    """Return whether the data source opens objects itself. For records with certain keys or tags
    it asks nodes, which have an index of each segment, unless ``tiered`` is ``files``."""
    if tiered == "files-or-nodes":
        return not keys and not tags
    return tiered == "files"


def bordered(snapshot: Snapshot, files: Iterable[TieredFile]) -> Snapshot:
    """The snapshot with these files for its segments, so that ranges end where files do."""
    spans: dict[int, list[SegmentSpan]] = {}
    for each in files:
        span = SegmentSpan(0, each.start_offset, each.end_offset, is_tiered=True)
        spans.setdefault(each.partition, []).append(span)
    partitions: dict[int, PartitionSnapshot] = {
        number: replace(each, segments=tuple(spans.get(number, ())))
        for number, each in snapshot.partitions.items()
    }
    return replace(snapshot, partitions=partitions)


def placed(
    planned: Iterable[OffsetRange], files: Sequence[TieredFile]
) -> Iterator[tuple[OffsetRange, tuple[TieredFile, ...]]]:
    """Each range with the files that have all of it, each cut to it; without any, where some of its
    records are in none of them.

    Args:
        planned: By partition and offset, as ``plan.ranges_within`` makes them.
        files: As ``divided`` has them, in the same order.
    """
    at = 0
    for each in planned:
        start = (each.partition, each.start_offset)
        while at < len(files) and (files[at].partition, files[at].end_offset) <= start:
            at += 1
        yield each, _covering(each, files, at)


def _covering(
    wanted: OffsetRange, files: Sequence[TieredFile], first: int
) -> tuple[TieredFile, ...]:
    found: list[TieredFile] = []
    low = wanted.start_offset
    for index in range(first, len(files)):
        file = files[index]
        if low >= wanted.end_offset:
            break
        if file.partition != wanted.partition or file.start_offset > low:
            return ()
        high = min(file.end_offset, wanted.end_offset)
        found.append(replace(file, start_offset=low, end_offset=high))
        low = high
    return tuple(found) if low >= wanted.end_offset else ()
