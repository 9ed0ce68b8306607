"""A disk counts as nearly full above one level, and no longer below another."""

import pytest

from icecore_node.storage.disk_levels import DiskLevel, DiskLimits, disk_level, reclaim_bytes

GIB = 1 << 30
LIMITS = DiskLimits(read_only_percent=90.0, full_percent=95.0, free_bytes_min=50 * GIB)
ROOMY, READ_ONLY, FULL = DiskLevel


def level(percent: float, size_gib: int, before: DiskLevel = ROOMY) -> DiskLevel:
    used = int(size_gib * GIB * percent / 100)
    return disk_level(used, size_gib * GIB - used, LIMITS, before)


@pytest.mark.parametrize(
    ("percent", "size_gib", "expected"),
    [
        (0.0, 100, ROOMY),
        (89.9, 100, ROOMY),
        (90.0, 100, READ_ONLY),
        (94.9, 100, READ_ONLY),
        (95.0, 100, FULL),
        (100.0, 100, FULL),
        (98.0, 10_000, ROOMY),  # 200 GiB are free
        (90.1, 499, READ_ONLY),
        (90.1, 510, ROOMY),
    ],
)
def test_both_share_and_free_space_count(
    percent: float, size_gib: int, expected: DiskLevel
) -> None:
    assert level(percent, size_gib) is expected


@pytest.mark.parametrize(
    ("before", "percent", "expected"),
    [
        (READ_ONLY, 88.5, READ_ONLY),
        (READ_ONLY, 87.5, ROOMY),
        (FULL, 94.0, FULL),
        (FULL, 92.5, READ_ONLY),
        (FULL, 88.5, READ_ONLY),
        (FULL, 87.5, ROOMY),
    ],
)
def test_the_way_back_starts_lower(before: DiskLevel, percent: float, expected: DiskLevel) -> None:
    assert level(percent, 100, before) is expected


def test_free_space_has_a_way_back_too() -> None:
    assert level(90.0, 510, READ_ONLY) is READ_ONLY  # 51 GiB
    assert level(90.0, 560, READ_ONLY) is ROOMY


def test_watermarks_can_be_switched_off() -> None:
    off = DiskLimits(90.0, 95.0, free_bytes_min=0)
    assert disk_level(100 * GIB, 0, off, ROOMY) is ROOMY


def test_a_disk_without_a_size_is_no_problem() -> None:
    assert disk_level(0, 0, LIMITS, ROOMY) is ROOMY


RECLAIM = DiskLimits(90.0, 95.0, free_bytes_min=50 * GIB, reclaim_percent=80.0)


@pytest.mark.parametrize(
    ("percent", "size_gib", "before", "expected_gib"),
    [
        (79.9, 100, False, 0),
        (80.0, 100, False, 2),  # down to 78 %
        (79.0, 100, True, 1),
        (77.9, 100, True, 0),
        (95.0, 100, False, 17),
        (85.0, 10_000, False, 0),  # 1,500 GiB are free
        (90.0, 490, False, 6),  # 55 GiB free are enough
        (89.5, 500, True, 2.5),
        (88.9, 500, True, 0),
    ],
)
def test_what_is_asked_for_takes_the_disk_a_little_below_the_limit(
    percent: float, size_gib: int, before: bool, expected_gib: float
) -> None:
    used = int(size_gib * GIB * percent / 100)
    wanted = reclaim_bytes(used, size_gib * GIB - used, RECLAIM, before=before)
    assert wanted == pytest.approx(expected_gib * GIB, abs=1 << 20)


def test_nothing_is_asked_for_where_watermarks_are_off() -> None:
    off = DiskLimits(90.0, 95.0, free_bytes_min=0, reclaim_percent=10.0)
    assert reclaim_bytes(100 * GIB, 0, off, before=True) == 0
