"""Fetches of a consumer that a node has at a time, and the time it may hold each back.

Reads of what is there, polls of who is at the end, and long polls have slots of their own: an
answer that is due never waits behind one that comes only with the next record. A poll that brings
nothing makes the next one longer, so that a consumer without data costs next to nothing.
"""

from collections import Counter
from typing import Final, NamedTuple

READ, POLL, LONG_POLL = "read", "poll", "long poll"
SLOTS: Final = {READ: 2, POLL: 4, LONG_POLL: 2}
"""Per node. More than one of a kind, for partitions that turn up while the first one waits."""
SHORT_WAIT_MS: Final = 500
"""Wait of reads, and of polls of a partition that just had data or was just sought. A fetch waits
at most this long for a slot."""
_DOUBLINGS_MAX: Final = 10


class FetchSlot(NamedTuple):
    """The slot of one fetch."""

    node_id: int
    kind: str
    wait_ms: int
    """How long the node may wait for data."""


class FetchSlots:
    """The slots for fetches of one consumer.

    Args:
        max_wait_ms: Of the longest poll.
    """

    def __init__(self, max_wait_ms: int) -> None:
        self._max_wait_ms = max_wait_ms
        self._taken: Counter[tuple[int, str]] = Counter()

    def take(self, node_id: int, empty_polls: int | None) -> FetchSlot | None:
        """A slot for a fetch, None while there is none.

        Args:
            node_id: Who is asked.
            empty_polls: How many in a row brought nothing; None for a read of what is there.
        """
        short_ms = min(SHORT_WAIT_MS, self._max_wait_ms)
        if empty_polls is None:
            return self._take(FetchSlot(node_id, READ, short_ms))
        wait_ms = min(short_ms << min(empty_polls, _DOUBLINGS_MAX), self._max_wait_ms)
        if wait_ms > short_ms and (found := self._take(FetchSlot(node_id, LONG_POLL, wait_ms))):
            return found
        return self._take(FetchSlot(node_id, POLL, short_ms))

    def _take(self, slot: FetchSlot) -> FetchSlot | None:
        kind = (slot.node_id, slot.kind)
        if self._taken[kind] >= SLOTS[slot.kind]:
            return None
        self._taken[kind] += 1
        return slot

    def leave(self, slot: FetchSlot) -> None:
        """The fetch has ended."""
        self._taken[slot.node_id, slot.kind] -= 1
