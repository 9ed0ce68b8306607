"""Polls that wait at nodes, and who is freed from one when its leader was replaced.

A leader that is cut off hears neither of records nor of its end, so that a poll there lasts as long
as it may. Whoever learns of another leader meanwhile asks that one, and takes no answer of the old.
"""

from icecore.client.cluster.cluster_view import ClusterView
from icecore.client.consume.fetch_slots import LONG_POLL, FetchSlot
from icecore.client.consume.reader import Reader


class Asked:
    """One fetch that is under way.

    Args:
        slot: Its node and its kind.
        readers: In the order of the request.
    """

    __slots__ = ("_stamps", "readers", "slot")

    def __init__(self, slot: FetchSlot, readers: list[Reader]) -> None:
        self.slot = slot
        self.readers = readers
        self._stamps = [reader.stamp for reader in readers]

    def awaited(self) -> list[bool]:
        """Return, for each reader, whether the answer still counts for it."""
        return [
            stamp == reader.stamp and not reader.is_left
            for reader, stamp in zip(self.readers, self._stamps, strict=True)
        ]


class WaitingPolls:
    """The long polls of one consumer."""

    def __init__(self) -> None:
        self._polls: dict[Asked, None] = {}  # ordered: the same run each time
        self._seen: ClusterView | None = None
        """The newest view by which polls were freed."""

    def add(self, asked: Asked) -> None:
        """One begins, if it is long."""
        if asked.slot.kind == LONG_POLL:
            self._polls[asked] = None

    def remove(self, asked: Asked) -> None:
        """One has ended."""
        self._polls.pop(asked, None)

    def free_moved(self, view: ClusterView) -> None:
        """Free who waits at a node that leads its partition no more."""
        if view is self._seen:
            return
        self._seen = view
        for asked in self._polls:
            for reader, is_awaited in zip(asked.readers, asked.awaited(), strict=True):
                leader = view.leader(reader.topic, reader.partition)
                if is_awaited and not reader.node_id and leader not in (0, asked.slot.node_id):
                    reader.asked += 1
                    reader.is_busy = False
                    reader.empty_polls = 0
