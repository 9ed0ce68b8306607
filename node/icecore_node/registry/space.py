"""Followers that ran out of disk space or memory: they follow again when there is room.

Before that, what is not durable is cut off: a follower begins at a durable end (R11).
"""

import asyncio
import logging
from collections.abc import Callable, Set

from icecore.errors import SHORTAGES, IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.topic_settings import MEMORY_ENGINE
from icecore_node.context import NodeContext
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.damage import Damage
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.replication.follower import Follower
from icecore_node.replication.leader import Leader
from icecore_node.storage.memory_engine.memory_budget import is_tight

_log = logging.getLogger(__name__)


class FollowerSpace:
    """Loop only."""

    def __init__(
        self,
        context: NodeContext,
        table: ReplicaTable,
        orders: Orders,
        damage: Damage,
        give_role: Callable[[Replica], None],
    ) -> None:
        """
        Args:
            context: The node.
            table: All replicas.
            orders: Lets one task at a time work on a segment.
            damage: Told of logs that can't be settled.
            give_role: Gives a replica the role that its newest record says.
        """
        self._context = context
        self._table = table
        self._orders = orders
        self._damage = damage
        self._give_role = give_role
        self._waiting: set[asyncio.Task[None]] = set()
        self._full_disks: Set[str] = frozenset()
        """Full disks, on which no segment is followed."""

    def follow_again(self, replica: Replica) -> None:
        """A follower ran out of something: cut what is not durable, rejoin when there is room."""
        task = self._context.tasks.start(self._follow_again(replica))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _follow_again(self, replica: Replica) -> None:
        role = replica.role
        while replica.life.is_idle or (role is not None and replica.role is role):
            await asyncio.sleep(self._context.settings.timing.space_retry_ms / 1000)
            if not await self._has_room(replica):
                continue
            async with self._orders.alone(replica.segment_id):
                if not (replica.life.is_idle or (role is not None and replica.role is role)):
                    return
                replica.end_role("room again")
                role = None
                if not await self._settle(replica):
                    continue
                self._give_role(replica)
            event(_log, logging.INFO, "following_again", segment_id=replica.segment_id)
            return

    async def _has_room(self, replica: Replica) -> bool:
        """Return whether the replica's disk or memory has room for logs to grow. False while the
        free space is unknown."""
        context, segment_id = self._context, replica.segment_id
        if _is_in_memory(replica):
            return not is_tight(context.disks.memory)
        try:
            usage = await context.executor.run(context.disks.usage)
        except IcecoreError as error:
            event(_log, logging.WARNING, "disk_space_unknown", error=error)
            return False
        disk = context.disks.on(segment_id)
        free_bytes = sum(each.free_bytes for each in usage if each.name == disk)
        return free_bytes >= 2 * context.settings.preallocate_bytes

    def may_follow(self, segment_id: SegmentId) -> bool:
        """Return whether the segment's disk has room, so that the segment may be followed."""
        return not self._full_disks or self._context.disks.on(segment_id) not in self._full_disks

    def growing_on(self, disks: Set[str]) -> list[SegmentId]:
        """Return the segments led or followed on these disks whose log is not empty: an empty one
        can't be sealed."""
        return [
            replica.segment_id
            for replica in self._table
            if disks and isinstance(replica.role, Leader | Follower)
            if replica.log.tail.end_offset > replica.base_offset
            if self._context.disks.on(replica.segment_id) in disks
        ]

    def growing_in_memory(self) -> list[SegmentId]:
        """Return segments in memory led by other nodes, once memory here is nearly full. Their
        leaders may have much room and seal only when asked. Segments led here are left to
        ``memory_room.py``."""
        if not is_tight(self._context.disks.memory):
            return []
        return [
            replica.segment_id
            for replica in self._table
            if _is_in_memory(replica) and not isinstance(replica.role, Leader)
            if not replica.sealed and replica.log.tail.end_offset > replica.base_offset
        ]

    async def pause_following_on(self, full_disks: Set[str]) -> None:
        """Stop following on these disks until the next call, and tell the leaders at once. Follow
        again on disks that are not full any more."""
        freed = self._full_disks - full_disks
        self._full_disks = full_disks | freed
        for replica in self._table if full_disks else ():
            if isinstance(replica.role, Follower) and not self.may_follow(replica.segment_id):
                replica.role.give_up("the disk is full")
                replica.end_role("the disk is full")
        if freed:
            await self._resume_following(freed)

    async def _resume_following(self, freed: Set[str]) -> None:
        """Follow again what the coordinator says, on disks where that was paused."""
        on = self._context.disks.on
        waiting = [
            each
            for each in self._table
            if each.life.is_idle and each.base_offset >= 0 and on(each.segment_id) in freed
        ]
        for replica in waiting:
            async with self._orders.alone(replica.segment_id):
                if replica.life.is_idle and not await self._settle(replica):
                    self.follow_again(replica)
        self._full_disks -= freed
        for replica in waiting:
            self._give_role(replica)

    async def _settle(self, replica: Replica) -> bool:
        """Settle the log. Return False during a shortage (R52), and when it can never be settled:
        then the replica becomes UNKNOWN. The caller works on the segment alone."""
        try:
            await replica.log.settle()
        except SHORTAGES as error:
            event(
                _log, logging.WARNING, "not_settled_yet", segment_id=replica.segment_id, error=error
            )
            return False
        except IcecoreError as error:
            self._damage.condemn(replica, f"not usable after a failed append: {error}")
            return False
        return True

    def close(self) -> None:
        """Cancel all waits to follow again."""
        for task in list(self._waiting):
            task.cancel()


def _is_in_memory(replica: Replica) -> bool:
    """Return whether the replica's topic keeps active logs in memory."""
    record = replica.segment
    return record is not None and record.settings.engine == MEMORY_ENGINE
