"""Choice of the nodes that work on object storage, and the last errors of that work.

The choice is by rendezvous hashing: the same node is asked while it is up, and has its earlier
reads in its cache. A node that failed is left alone for a while, if there is another one. Errors
are kept for operators, by topic. They are not stored: an error that persists occurs again.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from icecore.model import NodeId
from icecore.rpc.ports import Clock
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness

# --- nodes ----------------------------------------------------------------------------------------

READERS_MAX = 3
FAILURE_KEEP_MS = 120_000.0
"""Longer than any table or sweep waits: so whatever failed is tried by another node."""


class TierNodes:
    """Keeps who failed, and when.

    Args:
        state: The cluster.
        live: Who is up.
        clock: The time.
    """

    def __init__(self, state: ClusterState, live: Liveness, clock: Clock) -> None:
        self._state = state
        self._live = live
        self._clock = clock
        self._failed_ms: dict[NodeId, float] = {}

    def for_key(self, key: bytes) -> NodeId | None:
        """Return the node to ask: the best one that has not failed lately, else the one that failed
        longest ago. None = no node with an object store is up."""
        since_ms = self._clock.monotonic_ms() - FAILURE_KEEP_MS
        self._failed_ms = {k: at_ms for k, at_ms in self._failed_ms.items() if at_ms > since_ms}
        nodes = tier_nodes(self._state, self._live, key)
        return min(nodes, key=lambda each: self._failed_ms.get(each, since_ms), default=None)

    def note(self, node_id: NodeId, *, is_done: bool) -> None:
        """It has answered, or could not."""
        self._failed_ms.pop(node_id, None)
        if not is_done:
            self._failed_ms[node_id] = self._clock.monotonic_ms()


def tier_nodes(state: ClusterState, live: Liveness, key: bytes) -> list[NodeId]:
    """Live nodes with an object store, the best one for this key first."""
    able = [each for each in state.tiers.nodes if has_store(state, live, each)]
    return sorted(able, key=lambda each: _rank(each, key))


def has_store(state: ClusterState, live: Liveness, node_id: NodeId) -> bool:
    """Return whether a node is up and may use the cluster's object store, as far as it says."""
    used_id = state.tiers.store_id
    is_ours = not used_id or live.of(node_id).store_id == used_id
    return is_ours and live.is_live(node_id)


def readers_of(state: ClusterState, live: Liveness, segment_id: int) -> list[NodeId]:
    """Return the nodes that should read a segment of which no node has a copy, the best one
    first."""
    return tier_nodes(state, live, segment_id.to_bytes(8, "big"))[:READERS_MAX]


def best_of(nodes: Sequence[NodeId], key: bytes) -> NodeId | None:
    """Return the best of these nodes for this key; None = there is none."""
    return min(nodes, key=lambda each: _rank(each, key), default=None)


def _rank(node_id: NodeId, key: bytes) -> bytes:
    return blake2b(node_id.to_bytes(8, "big") + key, digest_size=8).digest()


# --- errors ---------------------------------------------------------------------------------------

WHY_MAX: Final = 500
TOPICS_MAX: Final = 10_000
UPLOAD: Final = "upload"
TABLE: Final = "table"
SWEEP: Final = "sweep"
MERGE: Final = "merge"
VERIFY: Final = "verify"


class TieringErrors:
    """By topic and kind of work: the last error and when it was, until the same succeeds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[bytes, dict[str, tuple[str, int]]] = {}

    def note(self, topic_id: bytes, why: str, kind: str = UPLOAD) -> None:
        """Something failed."""
        if topic_id not in self._found and len(self._found) >= TOPICS_MAX:
            return
        of_topic = self._found.setdefault(topic_id, {})
        of_topic.pop(kind, None)
        text = why if kind == UPLOAD else f"{kind}: {why}"
        of_topic[kind] = (text[:WHY_MAX], self._clock.now_ms())

    def forget(self, topic_id: bytes, kind: str = UPLOAD) -> None:
        """The same goes well now."""
        of_topic = self._found.get(topic_id, {})
        of_topic.pop(kind, None)
        if not of_topic:
            self._found.pop(topic_id, None)

    def of(self, topic_id: bytes) -> tuple[str, int]:
        """(why, when by the wall clock) of the newest; empty when nothing is wrong."""
        return next(reversed(self._found.get(topic_id, {}).values()), ("", 0))
