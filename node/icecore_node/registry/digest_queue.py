"""Sealed replicas that wait for their full digest to be computed and reported.

The queue lies between the events that make one due (a seal, a record, the start of the node) and
the ``DigestReporter``, which works it off.
"""

import asyncio
from collections import deque

from icecore_node.replica.replica import Replica


class DigestQueue:
    """Loop only."""

    def __init__(self) -> None:
        self._waiting: deque[Replica] = deque()
        self._diverged: dict[Replica, None] = {}
        self._wake = asyncio.Event()

    def put(self, replica: Replica) -> None:
        """Its bytes are final, and its digest is not known here, or not reported."""
        self._waiting.append(replica)
        self._wake.set()

    def put_again(self, replica: Replica) -> None:
        """The coordinator knows no full digest of this replica, or another one than ours."""
        if replica not in self._waiting and replica not in self._diverged:
            self.put(replica)

    def note_diverged(self, replica: Replica) -> bool:
        """Note that a replica's digest differs from the one that the other replicas agreed on.
        Return whether this is the first time: then it is read once more, and later not put here
        again."""
        is_new = replica not in self._diverged
        self._diverged[replica] = None
        return is_new

    async def wait(self) -> None:
        """Return when something was put here since the last ``take``."""
        await self._wake.wait()

    def take(self) -> deque[Replica]:
        """All that wait now, first come first."""
        self._wake.clear()
        waiting, self._waiting = self._waiting, deque()
        return waiting
