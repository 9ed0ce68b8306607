"""Which runs to merge, so that a look-up touches few and little is written twice. Pure.

A run has a *level*: how often its oldest entries were written again. When there is one run too
many, the newest ones are merged back to the first whose level is below its older neighbour's, and
the result is one level higher. Sizes of equal runs then follow the combinatorial number system: k
runs and level a hold C(k + a, k) of them, and nothing that keeps k runs writes less (Mathieu,
Staelin, Young, Yousefi: Bigtable Merge Compaction, 2014).
"""

from collections.abc import Sequence
from typing import Final

RUNS_MAX: Final = 8
"""More than these are merged: with the recent entries a look-up touches at most nine places."""


def to_merge(levels: Sequence[int], runs_max: int = RUNS_MAX) -> int | None:
    """The first of the runs to merge with all newer ones; None while there are few.

    The merged run has the level of that first one, plus one.

    Args:
        levels: Of each run, in the order of their offsets; 0 for one that was never merged.
        runs_max: How many may stay.
    """
    if len(levels) <= runs_max:
        return None
    start = len(levels) - 2
    while start > 0 and levels[start] >= levels[start - 1]:
        start -= 1
    return start
