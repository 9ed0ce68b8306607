"""What to read of a log to find records, and in which order; and which logs hold a range.

Pure. Hits of an index are read one by one, gaps of it as a whole; both in the order of the answer,
so that whoever has enough stops early.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from icecore.codec.columns import Int64s
from icecore.model import NO_SEGMENT, SegmentId
from icecore_node.replica.life import Life
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import Candidates, OffsetRange

# --- within one log -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """Everything in a range is to be looked at."""

    from_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Look:
    """These offsets are, ascending, and nothing between them."""

    offsets: Int64s


Read: TypeAlias = Scan | Look
Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Of each inner tuple of hashes, a wanted record has at least one."""


def hashes_of(groups: Groups) -> list[int]:
    """Each once, in an order that ``offsets_of`` knows."""
    return list(dict.fromkeys(each for group in groups for each in group))


def knows_all(found: Candidates, groups: Groups) -> bool:
    """Whether the index has a hash of each group at all."""
    known = {each for each, at in zip(hashes_of(groups), found.offsets, strict=True) if len(at)}
    return all(not known.isdisjoint(group) for group in groups)


def offsets_of(found: Candidates, groups: Groups) -> Int64s:
    """Of the records that may have a hash of every group."""
    places = {each: at for at, each in enumerate(hashes_of(groups))}
    wanted: Int64s | None = None
    for group in groups:
        lists = [found.offsets[places[each]] for each in group]
        union = lists[0] if len(lists) == 1 else np.unique(np.concatenate(lists))
        wanted = union if wanted is None else np.intersect1d(wanted, union, assume_unique=True)
    assert wanted is not None, "no hashes to look for"
    return wanted


def reads_of(found: Candidates, groups: Groups, *, newest_first: bool) -> list[Read]:
    """What to read so that nothing in the searched range is missed, in the order of the answer."""
    wanted = offsets_of(found, groups)
    reads: list[Read] = []
    at, end = found.searched
    for low, high in (*found.gaps, (end, end)):
        first, stop = np.searchsorted(wanted, [at, low]).tolist()
        if first < stop:
            reads.append(Look(wanted[first:stop]))
        if low < high:
            reads.append(Scan(low, high))
        at = high
    return reads[::-1] if newest_first else reads


# --- which logs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range that one replica holds, or nobody here."""

    replica: Replica | None
    from_offset: int
    end_offset: int
    segment_id: SegmentId = NO_SEGMENT
    """Of one that is elsewhere, if it was named."""


def pieces(
    replicas: Sequence[Replica], asked: OffsetRange, *, newest_first: bool
) -> Iterator[Piece]:
    """The whole range in order, each offset once. Replicas follow each other by base offset; where
    two overlap, the newer one counts.

    Made as they are asked for: a partition may have ten thousand, and a page looks at a few.
    """
    return _down(replicas, asked) if newest_first else _up(replicas, asked)


def _up(replicas: Sequence[Replica], asked: OffsetRange) -> Iterator[Piece]:
    at, high = asked
    for number in range(max(0, bisect_right(replicas, at, key=_base) - 1), len(replicas)):
        low, end = _held(replicas, number, high)
        if low >= high:
            break
        low = max(low, at)
        if low < end:
            if at < low:
                yield Piece(None, at, low)
            yield Piece(replicas[number], low, end)
            at = end
    if at < high:
        yield Piece(None, at, high)


def _down(replicas: Sequence[Replica], asked: OffsetRange) -> Iterator[Piece]:
    low, at = asked
    for number in range(bisect_left(replicas, at, key=_base) - 1, -1, -1):
        start, end = _held(replicas, number, at)
        if end <= low:
            if _base(replicas[number]) < low:
                break
            continue
        start = max(start, low)
        if start < end:
            if end < at:
                yield Piece(None, end, at)
            yield Piece(replicas[number], start, end)
            at = start
    if low < at:
        yield Piece(None, low, at)


def _base(replica: Replica) -> int:
    return replica.base_offset


def _held(replicas: Sequence[Replica], number: int, high: int) -> OffsetRange:
    """Of what lies below ``high``, the part of one replica. One that is damaged stands for all that
    its segment holds."""
    replica = replicas[number]
    if number + 1 < len(replicas):
        high = min(high, replicas[number + 1].base_offset)
    if replica.life is Life.GONE:
        return replica.base_offset, replica.base_offset
    if replica.sealed_end_offset is not None:
        return replica.base_offset, min(high, replica.sealed_end_offset)
    end = replica.high_watermark if replica.life.is_intact else high
    return replica.base_offset, min(high, end)
