"""A node reports and acts as one disk fills, or all of them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.model import SegmentId
from icecore_node.identity.node_report import NodeReport
from icecore_node.maintenance.disk_watermarks import DiskWatch
from icecore_node.registry.space import FollowerSpace
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.port import DiskSpace
from icecore_node.timing import NodeTiming

LIMITS = DiskLimits(90.0, 95.0, 1 << 50)


class Space:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.full: set[str] = set()
        self.asked: list[set[str]] = []
        self.in_memory: list[SegmentId] = []

    def growing_on(self, disks: set[str]) -> list[SegmentId]:
        self.asked.append(disks)
        return [SegmentId(7)] if disks else []

    def growing_in_memory(self) -> list[SegmentId]:
        return self.in_memory

    async def pause_following_on(self, disks: set[str]) -> None:
        self.full = disks


def percents(*used: int) -> list[DiskSpace]:
    return [DiskSpace(str(at), "", percent, 100 - percent) for at, percent in enumerate(used)]


@pytest.mark.parametrize(
    ("used", "read_only", "crowded", "full"),
    [
        ((10, 10), False, [], set()),
        ((91, 10), False, [7], set()),
        ((96, 10), False, [7], {"0"}),
        ((91, 92), True, [], set()),
        ((96, 92), True, [], {"0"}),
        ((96, 97), True, [], {"0", "1"}),
        ((89,), False, [], set()),
        ((96,), True, [], {"0"}),
    ],
)
async def test_the_roomiest_disk_speaks_for_the_node_and_each_for_itself(
    used: tuple[int, ...], read_only: bool, crowded: list[int], full: set[str]
) -> None:
    space, report = Space(), NodeReport()
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(disk_limits=LIMITS, timing=NodeTiming())
    )
    watch = DiskWatch(context, report, cast(FollowerSpace, space))
    await watch._act(percents(*used))
    assert (report.read_only, report.crowded, space.full) == (read_only, crowded, full)
    assert report.is_full == (len(full) == len(used))
    await watch._act(percents(*[max(each - 1, 0) for each in used]))  # not left at once
    assert (report.read_only, report.crowded, space.full) == (read_only, crowded, full)
    await watch._act(percents(*[10 for _ in used]))
    assert (report.read_only, report.crowded, space.full) == (False, [], set())
    assert not report.is_full


@pytest.mark.parametrize(("used", "crowded"), [(10, [8]), (91, [8]), (96, [8])])
async def test_what_fills_memory_is_told_however_full_disks_are(
    used: int, crowded: list[int]
) -> None:
    space, report = Space(), NodeReport()
    space.in_memory = [SegmentId(8)]
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(disk_limits=LIMITS, timing=NodeTiming())
    )
    watch = DiskWatch(context, report, cast(FollowerSpace, space))
    await watch._act(percents(used))
    assert report.crowded == crowded
