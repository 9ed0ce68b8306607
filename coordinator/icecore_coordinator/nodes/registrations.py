"""The last Register of each node, in memory until the node's first heartbeat and after it.

Anybody can register, and a node has no record before it has proved that it is one (R107). So those
that have not yet are kept in a bounded number: the oldest of them makes room, and registers again
if it was a node.
"""

from collections.abc import Sized
from typing import Generic, Protocol, TypeVar

from icecore.model import NodeId

UNPROVED_MAX = 1_000
UNPROVED_SEGMENTS_MAX = 1_000_000
"""Segments in all their inventories together. The newest one may have more by itself."""


class WithInventory(Protocol):
    """A registration, with the segments that its node holds."""

    @property
    def held(self) -> Sized: ...


R = TypeVar("R", bound=WithInventory)


class Registrations(Generic[R]):
    """All by node, those of nodes without a record apart."""

    def __init__(self) -> None:
        self._known: dict[NodeId, R] = {}
        self._unproved: dict[NodeId, R] = {}
        """The oldest first."""
        self._segments = 0
        """In all that are not proved."""

    def of(self, node_id: NodeId) -> R | None:
        """Return the last one; None when there was none, or it had to make room."""
        return self._unproved.get(node_id) or self._known.get(node_id)

    def note(self, node_id: NodeId, registered: R, *, is_proved: bool) -> None:
        """A node got an incarnation; ``is_proved`` = it has a record."""
        self.forget(node_id)
        if is_proved:
            self._known[node_id] = registered
            return
        self._unproved[node_id] = registered
        self._segments += len(registered.held)
        while len(self._unproved) > 1 and (
            len(self._unproved) > UNPROVED_MAX or self._segments > UNPROVED_SEGMENTS_MAX
        ):
            self.forget(next(iter(self._unproved)))

    def note_proved(self, node_id: NodeId) -> None:
        """The node has a record from now on."""
        registered = self._unproved.get(node_id)
        if registered is not None:
            self.note(node_id, registered, is_proved=True)

    def forget(self, node_id: NodeId) -> None:
        """There is no such node any more, or it has to register again."""
        self._known.pop(node_id, None)
        unproved = self._unproved.pop(node_id, None)
        self._segments -= len(unproved.held) if unproved is not None else 0
