"""Choose what a micro-batch takes: at most so many records, bytes, segments. Pure.

Limits are applied one after the other, each to what the one before has left. At least one record
of some partition is always admitted, or a query would wait for ever. Bytes are those of a topic's
batches as nodes keep them, spread evenly over the records of a segment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from icecore.model import offset_behind
from icecore.spark.plan import PartitionSnapshot, Snapshot


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one micro-batch; 0 = no limit."""

    records: int = 0
    size_bytes: int = 0
    segments: int = 0

    @property
    def look_at_segments(self) -> bool:
        """Return whether offsets alone do not decide."""
        return bool(self.size_bytes or self.segments)


def admitted(
    snapshot: Snapshot, starts: Mapping[int, int], ends: Mapping[int, int], limits: Limits
) -> dict[int, int]:
    """Ends that are within all limits."""
    found = dict(ends)
    if limits.segments:
        found = _by_segments(snapshot, starts, found, limits.segments)
    if limits.size_bytes:
        found = _by_bytes(snapshot, starts, found, limits.size_bytes)
    if limits.records:
        found = by_records(snapshot, starts, found, limits.records)
    return found


def by_records(
    snapshot: Snapshot, starts: Mapping[int, int], ends: Mapping[int, int], limit: int
) -> dict[int, int]:
    """At most ``limit`` records, shared out by how many each partition has.

    Every partition that has some gets at least one while there is room, so that none waits for
    ever behind larger ones. Offsets that were left out are no records.
    """
    partitions = snapshot.partitions
    waiting = {
        number: partitions[number].records(starts[number], ends[number]) for number in sorted(ends)
    }
    shares = _shared(waiting, limit)
    return {
        number: ends[number]
        if share == waiting[number]
        else offset_behind(starts[number], share, partitions[number].left_out)
        for number, share in shares.items()
    }


def _shared(waiting: Mapping[int, int], limit: int) -> dict[int, int]:
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {number: count * limit // total for number, count in waiting.items()}
    left = limit - sum(shares.values())
    # Those with the smallest share of what they have come first: their rest is the largest.
    for number in sorted(waiting, key=lambda each: (shares[each], each)):
        if left and shares[number] < waiting[number]:
            shares[number] += 1
            left -= 1
    return shares


def _by_segments(
    snapshot: Snapshot, starts: Mapping[int, int], ends: Mapping[int, int], limit: int
) -> dict[int, int]:
    """The oldest segments of all partitions: none is passed over for ever."""
    waiting = [
        (segment_id, number, end)
        for number in ends
        for segment_id, _, end, _ in _parts(
            snapshot.partitions[number], starts[number], ends[number]
        )
    ]
    found = dict(starts)
    for _, number, end in sorted(waiting)[:limit]:
        found[number] = max(found[number], end)
    return {number: found[number] for number in ends}


def _by_bytes(
    snapshot: Snapshot, starts: Mapping[int, int], ends: Mapping[int, int], limit: int
) -> dict[int, int]:
    parts = {
        number: list(_parts(snapshot.partitions[number], starts[number], end))
        for number, end in ends.items()
    }
    waiting = {number: sum(size for *_, size in each) for number, each in parts.items()}
    if sum(waiting.values()) <= limit:
        return dict(ends)
    shares = _shared(waiting, limit)
    found: dict[int, int] = {}
    for number, each in parts.items():
        at, left = starts[number], shares[number]
        for _, low, high, size in each:
            if size > left:
                at = low + (high - low) * left // size
                break
            at, left = high, left - size
        found[number] = at
    if all(found[number] == starts[number] for number in found):
        # One record is larger than the limit: that of the oldest segment goes alone.
        oldest = min((each[0][0], number) for number, each in parts.items() if each)[1]
        found[oldest] += 1
    return found


def _parts(
    partition: PartitionSnapshot, start: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """(segment, from, to, bytes) of what is wanted of each segment, without gaps between.

    What no segment has (it is gone) counts with the next one, or is a part of its own at the end.
    """
    at = start
    for each in partition.segments:
        high = min(each.end_offset, end)
        if high <= at:
            continue
        records = max(1, each.end_offset - each.base_offset)
        wanted = high - max(at, each.base_offset)
        if wanted <= 0:
            break
        yield each.segment_id, at, high, each.length_bytes * wanted // records
        at = high
    if at < end:
        last = partition.segments[-1].segment_id if partition.segments else 0
        yield last, at, end, 0
