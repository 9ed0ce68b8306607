"""Finds a small part of a failing schedule that still fails (delta debugging, ddmin).

Each try is one run of the seed with some of its faults, so the number of tries is bounded and the
result is small, not proved smallest.
"""

from collections.abc import Callable, Sequence

RUNS_MAX = 40


def shrink(
    numbers: Sequence[int], fails: Callable[[Sequence[int]], bool], runs_max: int = RUNS_MAX
) -> list[int]:
    """A subset of ``numbers`` that fails as well.

    Args:
        numbers: Faults of a schedule that fails.
        fails: Runs the seed with these faults only.
        runs_max: At most so many calls of ``fails``.
    """
    left = list(numbers)
    parts = 2
    runs = 0
    while len(left) > 1:
        size = -(-len(left) // parts)
        chunks = [left[at : at + size] for at in range(0, len(left), size)]
        rests = [[each for each in left if each not in chunk] for chunk in chunks]
        for smaller in [*chunks, *rests] if parts > 2 else chunks:
            if runs == runs_max:
                return left
            runs += 1
            if fails(smaller):
                parts = 2 if len(smaller) == size else max(parts - 1, 2)
                left = smaller
                break
        else:
            if parts >= len(left):
                return left
            parts = min(len(left), parts * 2)
    return left
