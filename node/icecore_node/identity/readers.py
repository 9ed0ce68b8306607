"""Readers that wait for new data of a partition, and the calls that wake them.

Whatever may give a reader more, or another answer, wakes its partition: a watermark that moved, a
replica that begins or ends to serve, a topic that is deleted. A woken reader looks again by itself.
"""

from collections.abc import Callable
from typing import TypeAlias

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""


class Readers:
    """All waiting readers of a node. Loop only."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionKey, dict[object, Callable[[], None]]] = {}
        self.on_read: Callable[[PartitionKey], None] = _nothing
        """Called with the partition of every request, whether the reader then waits or not."""

    def watch(self, key: PartitionKey, reader: object, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever something happens to the partition."""
        self._waiting.setdefault(key, {})[reader] = wake

    def leave(self, key: PartitionKey, reader: object) -> None:
        """Watch no longer."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(reader, None)
            if not waiting:
                del self._waiting[key]

    def are_at(self, key: PartitionKey) -> bool:
        """Return whether any reader waits for this partition."""
        return key in self._waiting

    def wake(self, key: PartitionKey) -> None:
        """Something that readers may wait for happened."""
        for wake in list(self._waiting.get(key, {}).values()):
            wake()

    def wake_all(self) -> None:
        """Wake all waiting readers."""
        for key in list(self._waiting):
            self.wake(key)


def _nothing(_: PartitionKey) -> None:
    """Do nothing: the default of ``Readers.on_read``."""
