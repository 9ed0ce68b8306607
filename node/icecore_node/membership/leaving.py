"""A clean leave: the node goes on serving until others do without it (R37 to R39)."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from icecore.model import NodeState, SegmentState
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.membership.heartbeats import Heartbeats
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import ReplicaTable

_log = logging.getLogger(__name__)


class Leaving:
    """The way out of one node."""

    def __init__(
        self,
        context: NodeContext,
        heartbeats: Heartbeats,
        table: ReplicaTable,
        leaders: Leaders,
        ended: "asyncio.Future[None]",
    ) -> None:
        """
        Args:
            context: The node.
            heartbeats: Say that it leaves, and hear when it may.
            table: All replicas.
            leaders: All leaders.
            ended: Done when the node can't go on: then there is nothing to wait for.
        """
        self._context = context
        self._heartbeats = heartbeats
        self._table = table
        self._leaders = leaders
        self._ended = ended

    async def leave(self) -> None:
        """Go on serving until others do without us, for ``leave_wait_ms`` at most.

        First leadership moves, then leaders take us out of their in-sync sets: so no producer waits
        for us after we are gone. Returns soon when no other node is up, or the coordinator is not
        connected.
        """
        context, heartbeats = self._context, self._heartbeats
        began_ms = context.clock.monotonic_ms()
        heartbeats.announce()
        await self._wait_while(lambda: not heartbeats.may_leave, context.settings.leave_wait_ms)
        if not self._others_stay():
            event(_log, logging.INFO, "nobody_takes_over", leads=len(self._leaders.all()))
            return
        heartbeats.announce(leaving=True)
        # Leaders need a few round trips to the coordinator.
        await self._wait_while(self._is_waited_for, context.settings.timing.shrink_wait_ms)
        event(
            _log,
            logging.INFO,
            "handed_over",
            leads=len(self._leaders.all()),
            took_ms=round(context.clock.monotonic_ms() - began_ms),
        )

    async def _wait_while(self, is_waiting: Callable[[], bool], at_most_ms: float) -> None:
        """Look again whenever the coordinator was heard; only it changes what we wait for."""
        heard = self._heartbeats.heard
        self._ended.add_done_callback(lambda _: heard.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_ms / 1000):
                while is_waiting() and self._others_stay():
                    heard.clear()
                    await heard.wait()

    def _others_stay(self) -> bool:
        """Return whether another node is up to take over, and the coordinator is connected to
        arrange that."""
        context = self._context
        return (
            not self._ended.done()
            and self._heartbeats.is_connected
            and any(
                peer.state is NodeState.UP and node_id != context.identity.node_id
                for node_id, peer in context.peers.nodes.items()
            )
        )

    def _is_waited_for(self) -> bool:
        """Return whether this node is still in the in-sync set of an ACTIVE segment."""
        return any(
            replica.segment is not None
            and replica.segment.state is SegmentState.ACTIVE
            and self._context.identity.node_id in replica.segment.isr
            for replica in self._table
        )
