"""Levels of a disk: how full it is, and how much must be freed. Pure.

A node acts in time, and not in the middle of an append. From ``disk_reclaim_percent`` on it tells
the coordinator how much is to be freed, which topics that allow it give; from
``disk_read_only_percent`` on it is READ_ONLY, from ``disk_full_percent`` on FULL. A disk with
``disk_free_bytes_min`` free never counts as full, however large it is. A level is left only a
little below its limit, so that it does not alternate.
"""

from dataclasses import dataclass
from enum import IntEnum

BACK_PERCENT = 2.0
"""A level is left this far below its limit,"""
BACK_FREE = 1.1
"""or when this many times ``disk_free_bytes_min`` are free."""


class DiskLevel(IntEnum):
    """The level of a disk; the higher, the fuller."""

    ROOMY = 0
    READ_ONLY = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """The beginnings of the levels; percentages are of used and free bytes together."""

    read_only_percent: float = 90.0
    full_percent: float = 95.0
    free_bytes_min: int = 0
    """A disk with this much free is ROOMY; with 0 every disk is."""
    reclaim_percent: float = 100.0
    """From here on room is asked for."""


def disk_level(
    used_bytes: int, free_bytes: int, limits: DiskLimits, before: DiskLevel
) -> DiskLevel:
    """The level of a disk that was at ``before``."""
    percent = 100.0 * used_bytes / max(1, used_bytes + free_bytes)
    for level, from_percent in (
        (DiskLevel.FULL, limits.full_percent),
        (DiskLevel.READ_ONLY, limits.read_only_percent),
    ):
        is_there = before >= level
        least = from_percent - (BACK_PERCENT if is_there else 0.0)
        free_limit = limits.free_bytes_min * (BACK_FREE if is_there else 1.0)
        if percent >= least and free_bytes < free_limit:
            return level
    return DiskLevel.ROOMY


def reclaim_bytes(used_bytes: int, free_bytes: int, limits: DiskLimits, *, before: bool) -> int:
    """Return how much must be freed of a disk of which room was asked for ``before``, or not; 0 =
    none.

    It is as much as takes the disk a little below the limit, like every level is left.
    """
    whole_bytes = max(1, used_bytes + free_bytes)
    kept_percent = limits.reclaim_percent - BACK_PERCENT
    percent = 100.0 * used_bytes / whole_bytes
    free_limit = limits.free_bytes_min * (BACK_FREE if before else 1.0)
    if percent < (kept_percent if before else limits.reclaim_percent) or free_bytes >= free_limit:
        return 0
    too_many = used_bytes - whole_bytes * kept_percent / 100.0
    too_few = limits.free_bytes_min * BACK_FREE - free_bytes
    return max(1, int(min(too_many, too_few)))
