"""Followers and space: who ran out of it, or may not follow, follows again when there is room.

Before that, what is not durable is cut off: a follower begins at a durable end (R11).
"""

import asyncio
import logging
from collections.abc import Callable

from icecore.errors import SHORTAGES, IcecoreError
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.damage import Damage
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.roles.follower import Follower

_log = logging.getLogger(__name__)

RETRY_S = 1.0


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
            orders: Who works on which segment.
            damage: Told of logs that can't be settled.
            give_role: Gives a replica the role that its newest record says.
        """
        self._context = context
        self._table = table
        self._orders = orders
        self._damage = damage
        self._give_role = give_role
        self._waiting: set[asyncio.Task[None]] = set()
        self.is_paused = False
        """Nothing may be followed."""

    def follow_again(self, replica: Replica) -> None:
        """A follower ran out of something: cut what is not durable, rejoin when there is room."""
        task = self._context.tasks.start(self._follow_again(replica))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _follow_again(self, replica: Replica) -> None:
        role = replica.role
        while replica.life.is_idle or (role is not None and replica.role is role):
            await asyncio.sleep(RETRY_S)
            if not await self._has_room():
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

    async def _has_room(self) -> bool:
        """Whether the disk has room for logs to grow; False as well while that is unknown."""
        context = self._context
        try:
            _, free_bytes = await context.executor.run(context.files.space)
        except IcecoreError as error:
            event(_log, logging.WARNING, "disk_space_unknown", error=error)
            return False
        return free_bytes >= 2 * context.settings.preallocate_bytes

    def pause_following(self) -> None:
        """Follow nothing until told otherwise; leaders hear of it at once."""
        self.is_paused = True
        for replica in self._table:
            if isinstance(replica.role, Follower):
                replica.role.give_up("the disk is full")
                replica.end_role("the disk is full")

    async def resume_following(self) -> None:
        """Follow again what the coordinator says, if that was paused."""
        if not self.is_paused:
            return
        waiting = [each for each in self._table if each.life.is_idle and each.base_offset >= 0]
        for replica in waiting:
            async with self._orders.alone(replica.segment_id):
                if replica.life.is_idle and not await self._settle(replica):
                    self.follow_again(replica)
        self.is_paused = False
        for replica in waiting:
            self._give_role(replica)

    async def _settle(self, replica: Replica) -> bool:
        """As ``ReplicaLog.settle``; False while there is a shortage (R52), and for what can't ever
        be settled, which is UNKNOWN. The segment is held."""
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
        """Nobody follows again."""
        for task in list(self._waiting):
            task.cancel()
