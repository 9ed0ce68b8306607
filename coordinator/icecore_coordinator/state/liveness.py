"""The nodes that are up at the moment, as their sessions know it. Pure, and nothing of it is
stored.

A decision that depends on it takes it beside the committed state, so a reader sees which decisions
would come out differently after a restart. Only ``NodeSessions`` writes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from icecore.model import NodeId, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The status of one node."""

    state: NodeState = NodeState.DOWN
    """UP also while a node that was not heard of yet is given a lease."""
    is_connected: bool = False
    is_clock_off: bool = False
    """Its wall clock is far from ours."""
    store_id: bytes = b""
    """Identity of the object store that it may use; empty = none, or one without an id."""
    store_problem: str = ""
    """Why it may not use its object store, until a person acts."""
    up_since_ms: float | None = None
    """When its session began, on the monotonic clock; None while this process has seen none."""
    down_since_ms: float | None = None
    """When it was found to be down; None while it is up, and while it never was."""


_UNHEARD_OF = NodeStatus()


class Liveness:
    """The status of every node; a node that nobody has heard of is DOWN."""

    def __init__(self) -> None:
        self.is_settling = False
        """Whether nodes that are missing may just not have had the time to come back."""
        self._nodes: dict[NodeId, NodeStatus] = {}

    def of(self, node_id: NodeId) -> NodeStatus:
        """Return the status of this node; a node without reports is DOWN."""
        return self._nodes.get(node_id, _UNHEARD_OF)

    def note(self, node_id: NodeId, **changes: Any) -> None:
        """Change fields of a node's status."""
        self._nodes[node_id] = replace(self.of(node_id), **changes)

    def forget(self, node_id: NodeId) -> None:
        """There is no such node any more."""
        self._nodes.pop(node_id, None)

    def __iter__(self) -> Iterator[NodeId]:
        """Node ids that anything is known of, in order."""
        return iter(sorted(self._nodes))

    def state_of(self, node_id: NodeId) -> NodeState:
        """DOWN for nodes nobody knows."""
        return self.of(node_id).state

    def is_live(self, node_id: NodeId) -> bool:
        """Return whether the node is not known to be down."""
        return self.of(node_id).state != NodeState.DOWN

    def down_ms(self, node_id: NodeId, now_ms: float) -> float | None:
        """Return how long the node has been down; None while it is up, and while it never was.

        Args:
            node_id: Which.
            now_ms: By the monotonic clock.
        """
        since_ms = self.of(node_id).down_since_ms
        return None if since_ms is None else now_ms - since_ms

    def is_eligible(self, node_id: NodeId) -> bool:
        """Return whether new replicas may be put there now."""
        status = self.of(node_id)
        return status.is_connected and status.state == NodeState.UP
