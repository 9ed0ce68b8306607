"""Looks at the disk now and then: a node takes no new replicas, and follows no more, in time.

This happens in time, and not in the middle of an append. On a full disk the node follows no more,
so that no leader waits for it; segments led there go on until they are rolled. A nearly full disk
gets no new replicas while another one has room, and the coordinator is asked to roll the segments
that grow there. When the roomiest of all is nearly full, the node is READ_ONLY: it gets no new
replicas at all, and its active segments roll onto other nodes. The limits of the levels are in
``storage/disk_levels.py``. Segments of other leaders that fill the memory here are rolled likewise.
"""

import asyncio
import logging

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.identity.node_report import NodeReport
from icecore_node.registry.space import FollowerSpace
from icecore_node.storage.disk_levels import DiskLevel, disk_level
from icecore_node.storage.port import DiskSpace

_log = logging.getLogger(__name__)


class DiskWatch:
    """Looks at the disks now and then, and acts when the level of one has changed."""

    def __init__(self, context: NodeContext, report: NodeReport, space: FollowerSpace) -> None:
        self._context = context
        self._report = report
        self._space = space
        self._limits = context.settings.disk_limits
        self._levels: dict[str, DiskLevel] = {}

    async def run(self) -> None:
        """Check the disks at intervals until cancelled."""
        while True:
            try:
                usage = await self._context.executor.run(self._context.disks.usage)
            except IcecoreError as error:
                event(_log, logging.WARNING, "disk_space_unknown", error=error)
            else:
                await self._act([each for each in usage if not each.problem])
            await asyncio.sleep(self._context.settings.timing.disk_look_ms / 1000)

    async def _act(self, usage: list[DiskSpace]) -> None:
        levels = {each.name: self._level(each) for each in usage}
        self._levels = levels
        lowest = min(levels.values())
        self._report.read_only = lowest >= DiskLevel.READ_ONLY
        self._report.is_full = lowest is DiskLevel.FULL
        crowded = {name for name, level in levels.items() if level > DiskLevel.ROOMY}
        on_disks = [] if self._report.read_only else self._space.growing_on(crowded)
        self._report.crowded = [*on_disks, *self._space.growing_in_memory()]
        full = {name for name, level in levels.items() if level is DiskLevel.FULL}
        await self._space.pause_following_on(full)

    def _level(self, disk: DiskSpace) -> DiskLevel:
        before = self._levels.get(disk.name, DiskLevel.ROOMY)
        level = disk_level(disk.used_bytes, disk.free_bytes, self._limits, before)
        if level is not before:
            event(
                _log,
                logging.WARNING,
                "disk_level",
                disk=disk.path,
                level=level,
                used_bytes=disk.used_bytes,
                free_bytes=disk.free_bytes,
            )
        return level
