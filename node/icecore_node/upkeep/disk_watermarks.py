"""What a node does as its disk fills: take no new replicas, then follow no more.

This happens in time, and not in the middle of an append. From ``disk_read_only_percent``
on the node is READ_ONLY: it gets no new replicas, and its active segments roll onto other nodes.
From ``disk_full_percent`` on it stops following, so that nobody waits for it; what it leads goes on
until it is rolled. A disk with ``disk_free_bytes_min`` free never counts as full, however large it
is. A node returns to a lower level only a little below the limit, so that it does not alternate.
"""

import asyncio
import logging
from dataclasses import dataclass
from enum import IntEnum

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.identity.beat_news import BeatNews
from icecore_node.registry.space import FollowerSpace

_log = logging.getLogger(__name__)

LOOK_S = 1.0
BACK_PERCENT = 2.0
"""A level is left this far below its limit,"""
BACK_FREE = 1.1
"""or when this many times ``disk_free_bytes_min`` are free."""


class DiskLevel(IntEnum):
    """How full a disk is; the higher, the fuller."""

    ROOMY = 0
    READ_ONLY = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Where the levels begin; percentages are of used and free bytes together."""

    read_only_percent: float
    full_percent: float
    free_bytes_min: int
    """A disk with this much free is ROOMY; with 0 every disk is."""


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


class DiskWatch:
    """Looks at the disk now and then, and acts when its level has changed."""

    def __init__(self, context: NodeContext, news: BeatNews, space: FollowerSpace) -> None:
        self._context = context
        self._news = news
        self._space = space
        settings = context.settings
        self._limits = DiskLimits(
            settings.disk_read_only_percent,
            settings.disk_full_percent,
            int(settings.disk_free_bytes_min),
        )
        self._level = DiskLevel.ROOMY

    async def run(self) -> None:
        """Until cancelled."""
        context = self._context
        while True:
            try:
                used_bytes, free_bytes = await context.executor.run(context.files.space)
            except IcecoreError as error:
                event(_log, logging.WARNING, "disk_space_unknown", error=error)
                await asyncio.sleep(LOOK_S)
                continue
            level = disk_level(used_bytes, free_bytes, self._limits, self._level)
            if level is not self._level:
                event(
                    _log,
                    logging.WARNING,
                    "disk_level",
                    level=level,
                    used_bytes=used_bytes,
                    free_bytes=free_bytes,
                )
                self._level = level
                self._news.read_only = level >= DiskLevel.READ_ONLY
                if level is DiskLevel.FULL:
                    self._space.pause_following()
            if level is not DiskLevel.FULL:
                await self._space.resume_following()
            await asyncio.sleep(LOOK_S)
