"""State that a server of the native transport keeps for each of its connections."""

import asyncio
from collections import Counter, deque

from icecore.rpc.native.call_limit import ConnectionCalls
from icecore.rpc.native.stream import NativeStream
from icecore.rpc.ports import Admitted


class Peer:
    """One connection.

    Args:
        host: Where it comes from.
        accepted_s: When, by the loop.
        calls: Counts those that run.
    """

    __slots__ = (
        "accepted_s",
        "admitted",
        "calls",
        "host",
        "reads",
        "receiving_bytes",
        "stream",
        "task",
        "unsent",
    )

    def __init__(self, host: str, accepted_s: float, calls: ConnectionCalls) -> None:
        self.host = host
        self.accepted_s = accepted_s
        self.calls = calls
        self.reads: set[asyncio.Task[None]] = set()
        """Handlers that stop with the connection."""
        self.admitted: deque[Admitted] = deque()
        """Calls whose large bodies are on their way, in the order of these."""
        self.receiving_bytes = 0
        self.stream: NativeStream | None = None
        self.task: asyncio.Task[None] | None = None
        self.unsent: Counter[str] = Counter()
        """Bytes of answers that wait, by method."""
