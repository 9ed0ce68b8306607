"""Shrinking a schedule finds what matters in it."""

from collections.abc import Sequence

import pytest

from tests.simulation.shrink import shrink


@pytest.mark.parametrize("guilty", [{3}, {0, 19}, {4, 5, 11}, set(range(8))])
def test_what_matters_is_left(guilty: set[int]) -> None:
    def fails(numbers: Sequence[int]) -> bool:
        return guilty <= set(numbers)

    assert set(shrink(range(20), fails, runs_max=1000)) == guilty


def test_the_number_of_runs_is_bounded() -> None:
    tried: list[Sequence[int]] = []

    def fails(numbers: Sequence[int]) -> bool:
        tried.append(numbers)
        return {1, 8, 15} <= set(numbers)

    assert {1, 8, 15} <= set(shrink(range(20), fails, runs_max=7))
    assert len(tried) == 7
