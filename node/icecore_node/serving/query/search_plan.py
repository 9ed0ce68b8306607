"""The reads of a log that find wanted records, and their order.

Pure. Hits of an index are read one by one, gaps of it as a whole; both in the order of the answer,
so that a caller with enough records stops early.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from icecore.codec.columns import Int64s
from icecore_node.storage.engine import Candidates, OffsetRange


@dataclass(frozen=True, slots=True)
class Scan:
    """Read everything in a range."""

    from_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Look:
    """Read these offsets, ascending, and nothing between them."""

    offsets: Int64s


Read: TypeAlias = Scan | Look
Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Groups of hashes: a wanted record has at least one hash of each inner tuple."""


@lru_cache(8)
def hashes_of(groups: Groups) -> tuple[int, ...]:
    """Return each hash once, in an order that ``offsets_of`` knows. Cached: it is called several
    times for each log searched."""
    return tuple(dict.fromkeys(each for group in groups for each in group))


def knows_all(found: Candidates, groups: Groups) -> bool:
    """Return whether the index has an entry for at least one hash of each group."""
    known = {each for each, at in zip(hashes_of(groups), found.offsets, strict=True) if len(at)}
    return all(not known.isdisjoint(group) for group in groups)


def offsets_of(found: Candidates, groups: Groups) -> Int64s:
    """Return the offsets of records that may have a hash of every group."""
    places = {each: at for at, each in enumerate(hashes_of(groups))}
    wanted: Int64s | None = None
    for group in groups:
        lists = [found.offsets[places[each]] for each in group]
        union = lists[0] if len(lists) == 1 else _united(lists)
        wanted = union if wanted is None else np.intersect1d(wanted, union, assume_unique=True)
    assert wanted is not None, "no hashes to look for"
    return wanted


def _united(lists: Sequence[Int64s]) -> Int64s:
    """Merge lists of offsets, ascending and each once. A few thousand are sorted faster than
    hashed."""
    every = np.sort(np.concatenate(lists))
    is_new = np.ones(len(every), np.bool_)
    np.not_equal(every[1:], every[:-1], out=is_new[1:])
    return every[is_new]


def outside_of(
    reads: Sequence[Read], quiet: Sequence[OffsetRange], *, newest_first: bool
) -> list[Read]:
    """Return the reads outside quiet ranges, which hold no wanted record. The ranges are ascending
    and apart."""
    left: list[Read] = []
    for each in reads:
        match each:
            case Look(offsets):
                for low, high in quiet:
                    offsets = offsets[(offsets < low) | (offsets >= high)]
                left += [Look(offsets)] if len(offsets) else []
            case Scan(at, end):
                scans = [Scan(*edges) for edges in _apart(at, end, quiet)]
                left += reversed(scans) if newest_first else scans
    return left


def _apart(at: int, end: int, quiet: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    for low, high in (*quiet, (end, end)):
        if at < min(low, end):
            yield at, min(low, end)
        at = max(at, high)


def reads_of(found: Candidates, groups: Groups, *, newest_first: bool) -> list[Read]:
    """Return the reads that cover every wanted record in the searched range, in the order of the
    answer."""
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
