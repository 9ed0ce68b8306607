"""Entries of the inverted index as arrays: which hash occurs in which record. Pure.

An entry is a pair: a hash (``icecore/codec/hashes.py``) and an *ordinal*, an offset counted from
the base of the segment. Sorted entries are in order of hash, then ordinal, without duplicates.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from icecore.codec.columns import Int64s, UInt64s

UInt32s = npt.NDArray[np.uint32]

ORDINALS_MAX: Final = 1 << 32
"""A segment with more records has a gap behind them."""

_FEW: Final = 512
"""Fewer are sorted as fast by comparing."""
_MENDED_MAX: Final = 1000


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
    """In order, each once. Fastest where ordinals of one hash ascend already, as they do in entries
    of batches, and of runs, that follow each other."""
    order = _order(entries.hashes)
    hashes, ordinals = entries.hashes[order], entries.ordinals[order]
    is_same = hashes[1:] == hashes[:-1]
    if not is_same.any():
        return Entries(hashes, ordinals)
    steps = ordinals[1:].astype(np.int64) - ordinals[:-1]
    if (steps[is_same] < 0).any():
        order = np.lexsort((entries.ordinals, entries.hashes))
        hashes, ordinals = entries.hashes[order], entries.ordinals[order]
        steps = ordinals[1:].astype(np.int64) - ordinals[:-1]
    is_repeated = is_same & (steps == 0)
    if is_repeated.any():
        is_new = np.append(True, ~is_repeated)
        hashes, ordinals = hashes[is_new], ordinals[is_new]
    return Entries(hashes, ordinals)


def _order(hashes: UInt64s) -> Int64s:
    """Return where the hashes go to be in order; equal ones stay as they are.

    By their upper halves, in two passes for which numpy counts instead of comparing: that takes a
    fifth of the time. The few whose upper halves alone are equal are put in order afterwards.
    """
    if len(hashes) < _FEW:
        return hashes.argsort(kind="stable")
    quarters = np.ascontiguousarray(hashes, "<u8").view("<u2")
    order = quarters[2::4].argsort(kind="stable")
    order = order[quarters[3::4][order].argsort(kind="stable")]
    found = hashes[order]
    wrong = np.flatnonzero(found[1:] < found[:-1])
    if len(wrong) > _MENDED_MAX:
        return hashes.argsort(kind="stable")
    uppers = found >> np.uint64(32)
    for upper in np.unique(uppers[wrong]):
        low, high = uppers.searchsorted(upper, "left"), uppers.searchsorted(upper, "right")
        part = order[low:high]
        order[low:high] = part[hashes[part].argsort(kind="stable")]
    return order


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
    # Most have no wanted hash, and a table of the upper 16 bits says so.
    may_be = np.zeros(1 << 16, np.bool_)
    may_be[wanted >> np.uint64(48)] = True
    at = np.flatnonzero(may_be[np.ascontiguousarray(entries.hashes, "<u8").view("<u2")[3::4]])
    at = at[np.isin(entries.hashes[at], wanted)]
    return find_sorted(sorted_entries(Entries(entries.hashes[at], entries.ordinals[at])), wanted)
