"""Entries are put in order as comparing them one by one would, however many hashes are alike."""

import random

import numpy as np
import pytest

from icecore_node.storage.index.entries import (
    Entries,
    find_unsorted,
    sorted_entries,
    wanted_hashes,
)

COUNT = 5000


def in_order(hashes: list[int], ordinals: list[int]) -> list[tuple[int, int]]:
    made = sorted_entries(Entries(np.array(hashes, "<u8"), np.array(ordinals, "<u4")))
    return list(zip(made.hashes.tolist(), made.ordinals.tolist(), strict=True))


@pytest.mark.parametrize("is_ascending", [True, False], ids=["ascending", "any order"])
@pytest.mark.parametrize(
    ("uppers", "lowers"),
    [
        (1 << 32, 1 << 32),  # all differ
        (COUNT, 1 << 32),  # some differ in their lower halves only
        (20, 1 << 32),  # so many do that they are not put right one by one
        (1 << 32, 1),
        (3, 2),  # few hashes, each many times
        (1, 1),
    ],
)
def test_entries_in_order(uppers: int, lowers: int, is_ascending: bool) -> None:
    rng = random.Random(uppers ^ lowers)
    high = [rng.randrange(1 << 32) for _ in range(min(uppers, COUNT))]
    low = [rng.randrange(1 << 32) for _ in range(min(lowers, COUNT))]
    hashes = [rng.choice(high) << 32 | rng.choice(low) for _ in range(COUNT)]
    ordinals = [rng.randrange(COUNT) for _ in range(COUNT)]
    if is_ascending:
        ordinals.sort()
    assert in_order(hashes, ordinals) == sorted(set(zip(hashes, ordinals, strict=True)))


def test_runs_behind_each_other_with_the_largest_numbers() -> None:
    hashes = [0, 1, (1 << 64) - 1] * 400
    ordinals = [(1 << 32) - 1 - at for at in range(len(hashes))]
    assert in_order(hashes, ordinals) == sorted(zip(hashes, ordinals, strict=True))


def test_wanted_hashes_ascend_and_come_once() -> None:
    assert wanted_hashes([(1 << 64) - 1, 0, 5, 0]).tolist() == [0, 5, (1 << 64) - 1]
    assert wanted_hashes([]).dtype == np.uint64


@pytest.mark.parametrize("wanted_count", [1, 2, 500])
def test_hashes_are_found_among_unsorted_ones(wanted_count: int) -> None:
    rng = random.Random(wanted_count)
    known = [rng.randrange(1 << 64) for _ in range(300)]
    known += [each ^ 1 for each in known[:50]]  # alike in all bits but the last
    hashes = [rng.choice(known) for _ in range(COUNT)]
    entries = Entries(np.array(hashes, "<u8"), np.arange(COUNT, dtype="<u4"))
    some = {rng.choice(known) for _ in range(wanted_count)} | {rng.randrange(1 << 64)}
    wanted = wanted_hashes(some if wanted_count > 1 else [known[0]])
    found = [each.tolist() for each in find_unsorted(entries, wanted)]
    assert found == [
        [at for at, each in enumerate(hashes) if each == one] for one in wanted.tolist()
    ]
