"""Entries of the inverted index as arrays: which hash occurs in which record. Pure.

An entry is a pair: a hash (``icecore/codec/hashes.py``) and an *ordinal*, an offset counted from
the base of the segment. Sorted entries are in order of hash, then ordinal, without duplicates.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from icecore.codec.columns import UInt64s

UInt32s = npt.NDArray[np.uint32]

ORDINALS_MAX: Final = 1 << 32
"""A segment with more records has a gap behind them."""


class Entries(NamedTuple):
    """Two arrays of the same length."""

    hashes: UInt64s
    ordinals: UInt32s


NO_ENTRIES: Final = Entries(np.empty(0, "<u8"), np.empty(0, "<u4"))


def joined(parts: Sequence[Entries]) -> Entries:
    """All of them, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_ENTRIES
    return Entries(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.ordinals for part in parts]),
    )


def sorted_entries(entries: Entries) -> Entries:
    """In order, each once. Takes n log n; numpy releases the GIL for most of it."""
    hashes, ordinals = entries
    order = np.lexsort((ordinals, hashes))
    hashes, ordinals = hashes[order], ordinals[order]
    if len(hashes) > 1:
        is_new = np.ones(len(hashes), np.bool_)
        np.logical_or(hashes[1:] != hashes[:-1], ordinals[1:] != ordinals[:-1], out=is_new[1:])
        if not is_new.all():
            hashes, ordinals = hashes[is_new], ordinals[is_new]
    return Entries(hashes, ordinals)


def wanted_hashes(hashes: Iterable[int]) -> UInt64s:
    """As ``find`` functions take them: ascending, each once."""
    return np.array(sorted(set(hashes)), np.uint64)


def find_sorted(entries: Entries, wanted: UInt64s) -> list[UInt32s]:
    """For each wanted hash its ordinals, ascending, in sorted entries."""
    starts = entries.hashes.searchsorted(wanted, "left").tolist()
    ends = entries.hashes.searchsorted(wanted, "right").tolist()
    return [entries.ordinals[start:end] for start, end in zip(starts, ends, strict=True)]


def find_unsorted(entries: Entries, wanted: UInt64s) -> list[UInt32s]:
    """The same in entries whose ordinals ascend and whose hashes are in no order."""
    if len(wanted) == 1:
        return [entries.ordinals[np.flatnonzero(entries.hashes == wanted[0])]]
    at = np.flatnonzero(np.isin(entries.hashes, wanted))
    return find_sorted(sorted_entries(Entries(entries.hashes[at], entries.ordinals[at])), wanted)
