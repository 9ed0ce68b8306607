"""Looking hashes up in the covers of one log: candidates, gaps, and where to stop.

Covers are asked one after the other from the end at which the asker wants to begin, until one of
the hashes has as many candidates as are enough. What was searched then ends with the last of
those, so that a hash with millions of records takes no more memory than a rare one, and whoever
goes on from there misses nothing.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from icecore.codec.columns import Int64s, UInt64s
from icecore_node.storage.engine import Candidates, OffsetRange
from icecore_node.storage.index.coverage import Cover, gaps_between
from icecore_node.storage.index.entries import UInt32s, wanted_hashes
from icecore_node.storage.index.posting_blocks import DamagedIndexError


class IndexSearch:
    """One look-up.

    Attributes:
        damaged: Covers that turned out to be so; they are gaps.
    """

    def __init__(self, base_offset: int, hashes: Sequence[int], asked: OffsetRange) -> None:
        self.damaged: list[Cover] = []
        self._base = base_offset
        self._asked = asked
        self._wanted, self._slots = _sorted_once(tuple(hashes))
        self._found: list[list[UInt32s]] = [[] for _ in hashes]
        self._counts = [0] * len(hashes)
        self._read = 0

    def run(self, covers: Sequence[Cover], limit: int, *, newest_first: bool) -> Candidates:
        """Over covers in the order of their offsets."""
        start, end = self._asked
        ends = [min(cover.end_offset, end) for cover in covers]  # once: some of them grow
        used: list[Cover] = []
        order = range(len(covers))
        for at in reversed(order) if newest_first else order:
            cover, low = covers[at], max(covers[at].from_offset, start)
            if low >= ends[at]:
                continue
            if self._look(cover, low, ends[at]):
                used.append(cover)
            if max(self._counts, default=0) >= limit:
                start, end = self._cut(limit, newest_first=newest_first)
                break
        return self._candidates((start, end), used if not newest_first else used[::-1])

    def _look(self, cover: Cover, low: int, high: int) -> bool:
        """Add what one cover has from an offset to another; False when it is damaged."""
        try:
            per_hash, read = cover.find(self._wanted)
        except DamagedIndexError:
            self.damaged.append(cover)
            return False
        self._read += read
        first, last = low - self._base, high - 1 - self._base
        is_inside = len(per_hash) >= _MANY and _are_within(per_hash, first, last)
        for slot, at in enumerate(self._slots):
            ordinals = per_hash[at]
            if len(ordinals) == 0:
                continue
            if not is_inside and (ordinals[0] < first or ordinals[-1] > last):
                ordinals = ordinals[(ordinals >= first) & (ordinals <= last)]
            self._found[slot].append(ordinals)
            self._counts[slot] += len(ordinals)
        return True

    def _cut(self, limit: int, *, newest_first: bool) -> OffsetRange:
        """Up to where the first of the hashes has enough."""
        start, end = self._asked
        for slot in range(len(self._found)):
            if self._counts[slot] < limit:
                continue
            offsets = self._offsets(slot)
            if len(offsets) < limit:
                continue  # some came twice
            if newest_first:
                start = max(start, int(offsets[-limit]))
            else:
                end = min(end, int(offsets[limit - 1]) + 1)
        return start, end

    def _candidates(self, searched: OffsetRange, used: Sequence[Cover]) -> Candidates:
        columns = self._all_offsets()
        if searched != self._asked:
            columns = [offsets[slice(*offsets.searchsorted(searched))] for offsets in columns]
        gaps = tuple(gaps_between(used, searched))
        return Candidates(searched, tuple(columns), gaps, self._read)

    def _all_offsets(self) -> list[Int64s]:
        """``_offsets`` of all hashes, most of which have one part: these in a few calls."""
        single = [slot for slot, parts in enumerate(self._found) if len(parts) == 1]
        if len(single) < _MANY:
            return [self._offsets(slot) for slot in range(len(self._found))]
        parts = [self._found[slot][0] for slot in single]
        ends = np.cumsum([len(part) for part in parts])
        flat = np.concatenate(parts).astype(np.int64) + self._base
        falls = np.flatnonzero(flat[1:] <= flat[:-1]) + 1
        if not np.isin(falls, ends).all():  # within one of them
            return [self._offsets(slot) for slot in range(len(self._found))]
        spans = pairwise([0, *ends.tolist()])
        columns = {slot: flat[low:high] for slot, (low, high) in zip(single, spans, strict=True)}
        every = range(len(self._found))
        return [columns[slot] if slot in columns else self._offsets(slot) for slot in every]

    def _offsets(self, slot: int) -> Int64s:
        """Return the offsets found so far for one hash, ascending, each once."""
        parts = self._found[slot]
        if not parts:
            return _NO_OFFSETS
        ordinals = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if len(ordinals) > 1 and (ordinals[1:] <= ordinals[:-1]).any():
            ordinals = np.unique(ordinals)
        offsets: Int64s = ordinals.astype(np.int64) + self._base
        return offsets


@lru_cache(8)
def _sorted_once(hashes: tuple[int, ...]) -> tuple[UInt64s, Sequence[int]]:
    """These hashes ascending, and for each of them its place there: many logs are asked for the
    same."""
    wanted = wanted_hashes(hashes)
    wanted.flags.writeable = False
    return wanted, wanted.searchsorted(np.fromiter(hashes, np.uint64)).tolist()


_MANY: Final = 16
"""From so many on, one look at all of them is faster than one at each."""


def _are_within(lists: Sequence[UInt32s], first: int, last: int) -> bool:
    flat = np.concatenate(lists)
    return not len(flat) or bool(first <= flat.min() and flat.max() <= last)


_NO_OFFSETS: Final = np.empty(0, np.int64)
