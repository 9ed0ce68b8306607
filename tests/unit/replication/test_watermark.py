"""Rules R4-R6: how far a write is acked and visible."""

import pytest

from icecore_replication.watermark import NO_QUORUM, all_end, high_watermark, quorum_end


@pytest.mark.parametrize(
    ("isr", "expected"), [((1,), 9), ((1, 2), 5), ((1, 2, 3), 2)], ids=["alone", "two", "all"]
)
def test_all_waits_for_the_slowest_member(isr: tuple[int, ...], expected: int) -> None:
    assert all_end({1: 9, 2: 5, 3: 2}, isr) == expected


@pytest.mark.parametrize(
    ("durable", "quorum", "leader_end", "expected"),
    [
        ({1: 9, 2: 5, 3: 2}, 2, 9, 5),
        ({1: 9, 2: 9, 3: 9}, 2, 9, 9),
        ({1: 9}, 1, 9, 9),
        ({1: 9, 2: 0, 3: 0}, 2, 9, 0),  # the set may be the leader alone: still two of three
        ({1: 5, 2: 4, 3: 3, 4: 2, 5: 1}, 3, 5, 3),
        ({1: 9, 2: 9}, 3, 9, NO_QUORUM),  # RF 5 opened on two nodes
        ({1: 2, 2: 9, 3: 9}, 2, 2, 2),  # R5: the leader's own disk is needed
    ],
)
def test_quorum_counts_all_replicas(
    durable: dict[int, int], quorum: int, leader_end: int, expected: int
) -> None:
    assert quorum_end(durable, tuple(durable), quorum, leader_end) == expected


@pytest.mark.parametrize(
    ("current", "isr_end", "majority", "committed", "min_insync_replicas", "expected"),
    [
        (3, 7, 5, 2, 2, 7),
        (3, 7, 5, 1, 2, 5),  # frozen: too few in sync
        (3, 4, 6, 2, 2, 6),
        (8, 4, 6, 2, 2, 8),  # never back
        (3, 7, NO_QUORUM, 2, 2, 7),
        (3, 7, NO_QUORUM, 1, 2, 3),
    ],
)
def test_high_watermark(
    current: int,
    isr_end: int,
    majority: int,
    committed: int,
    min_insync_replicas: int,
    expected: int,
) -> None:
    assert high_watermark(current, isr_end, majority, committed, min_insync_replicas) == expected
