"""Looks at the disk now and then: a node takes no new replicas, and follows no more, in time.

The levels are those of ``storage/disk_levels.py``. From READ_ONLY on it gets no new replicas,
and its active segments roll onto other nodes. A FULL one stops following, so that nobody waits for
it; what it leads goes on until it is rolled.
"""

import asyncio
import logging

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.identity.beat_news import BeatNews
from icecore_node.registry.space import FollowerSpace
from icecore_node.storage.disk_levels import DiskLevel, disk_level

_log = logging.getLogger(__name__)

LOOK_S = 1.0


class DiskWatch:
    """Looks at the disk now and then, and acts when its level has changed."""

    def __init__(self, context: NodeContext, news: BeatNews, space: FollowerSpace) -> None:
        self._context = context
        self._news = news
        self._space = space
        self._limits = context.settings.disk_limits
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
