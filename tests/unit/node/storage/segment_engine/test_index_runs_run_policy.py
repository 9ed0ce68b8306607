"""Few runs stay, and an entry is written again a few times only."""

from math import comb

import pytest

from icecore_node.storage.segment_engine.index_runs import RUNS_MAX, to_merge


def grow(count: int, runs_max: int) -> tuple[list[int], int, int]:
    """Sizes of the runs in the end, the most there ever were, units written."""
    sizes: list[int] = []
    levels: list[int] = []
    written = most = 0
    for _ in range(count):
        sizes.append(1)
        levels.append(0)
        written += 1
        while (start := to_merge(levels, runs_max)) is not None:
            sizes[start:] = [sum(sizes[start:])]
            levels[start:] = [levels[start] + 1]
            written += sizes[-1]
        most = max(most, len(sizes))
        assert levels == sorted(levels, reverse=True)
    return sizes, most, written


@pytest.mark.parametrize("count", [1, 8, 9, 10, 45, 46, 500])
def test_nothing_is_lost_and_few_runs_stay(count: int) -> None:
    sizes, most, _ = grow(count, RUNS_MAX)
    assert sum(sizes) == count
    assert most <= RUNS_MAX


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_sizes_follow_the_combinatorial_number_system(level: int) -> None:
    """For k runs and level a there are C(k + a, k) units, and the next one begins level a + 1."""
    count = comb(4 + level, 4)
    sizes, _, _ = grow(count, 4)
    assert sizes == [count]


def test_write_amplification() -> None:
    """With runs of 256 Ki entries these are segments of one, four, ten, 40, 100 and 400 million
    records."""
    assert grow(4, RUNS_MAX)[2] / 4 == 1.0
    assert grow(16, RUNS_MAX)[2] / 16 < 1.6
    assert grow(40, RUNS_MAX)[2] / 40 < 2.0
    assert grow(160, RUNS_MAX)[2] / 160 < 3.0
    assert grow(400, RUNS_MAX)[2] / 400 < 3.9
    assert grow(1600, RUNS_MAX)[2] / 1600 < 5.5


def test_few_runs_are_left_alone() -> None:
    assert to_merge([0] * RUNS_MAX) is None
    assert to_merge([]) is None
    assert to_merge([0] * (RUNS_MAX + 1)) == 0
    assert to_merge([3, 1, 1, 0, 0, 0], 5) == 3
    assert to_merge([1, 1, 1], 2) == 0
