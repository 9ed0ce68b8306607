"""Reacts to a broken heartbeat stream: it tries to connect to the node until that is back or gone.

A node that refuses connections has died, and its segments need a recovery now. A node that accepts
them, or a host that is silent, gets the time that ``NodeSessions`` gives it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from icecore.model import NodeId
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.nodes.node_sessions import NodeSessions, Session

KNOCK_EVERY_S: Final = 0.05
KNOCK_WITHIN_S: Final = 0.25

Spawn = Callable[[Coroutine[Any, Any, None], str], None]
"""Starts a task that ends with the coordinator, by its name."""


class BrokenStreams:
    """Ends sessions, and finds out what became of their nodes.

    Args:
        sessions: Told of both.
        calls: Knocks.
        spawn: For the time that a node has to come back.
    """

    def __init__(self, sessions: NodeSessions, calls: NodeCalls, spawn: Spawn) -> None:
        self._sessions = sessions
        self._calls = calls
        self._spawn = spawn
        self._knocking: set[NodeId] = set()

    def ended(self, session: Session) -> None:
        """The stream of a session ended, for whatever reason."""
        self._sessions.disconnected(session)
        node_id = session.node_id
        if self._sessions.is_missing(node_id) and node_id not in self._knocking:
            self._knocking.add(node_id)
            self._spawn(self._knock(node_id), "knock")

    async def _knock(self, node_id: NodeId) -> None:
        try:
            while self._sessions.is_missing(node_id):
                if await self._calls.refuses(node_id, KNOCK_WITHIN_S):
                    self._sessions.note_gone(node_id)
                    return
                await asyncio.sleep(KNOCK_EVERY_S)
        finally:
            self._knocking.discard(node_id)
