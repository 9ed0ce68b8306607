"""Which part of a read is taken from object storage by Spark itself, and which from nodes: pure.

Every offset belongs to one side. A copy counts for Spark when its Parquet object has a row for each
of its offsets; what is left is read by the data source, from wherever the records are by then. So
what is sealed, copied, retired or dropped after the plan moves no border.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icecore.client.types import PublishedCopy
from icecore.spark.options import Spans
from icecore.tier_records import rows_key


@dataclass(frozen=True, slots=True)
class TieredFile:
    """A Parquet object, and the offsets of it that are wanted: all, or some."""

    key: str
    partition: int
    start_offset: int
    end_offset: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Division:
    """Division of a read: files that Spark opens, and ranges that nodes serve."""

    files: tuple[TieredFile, ...]
    rest: Spans


def divided(
    topic_id: bytes,
    copies: Iterable[PublishedCopy],
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
        is_whole = (low, high) == (copy.base_offset, copy.end_offset)
        files.append(TieredFile(_key(topic_id, copy), number, low, high, is_whole))
        at[number] = high
    for number in sorted(starts):
        if at[number] < ends[number]:
            rest.setdefault(number, []).append((at[number], ends[number]))
    return Division(tuple(files), rest)


def _key(topic_id: bytes, copy: PublishedCopy) -> str:
    return rows_key(
        topic_id,
        copy.partition,
        copy.base_offset,
        copy.segment_id,
        copy.generation,
        copy.attempt,
    )
