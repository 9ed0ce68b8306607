"""The nodes that are asked to work on object storage."""

from icecore.model import NodeState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.work.remote.tier_nodes import tier_nodes
from tests.support.cluster_states import commit, started

OURS, OTHER = b"a" * 16, b"b" * 16


def test_who_has_another_store_is_asked_for_nothing() -> None:
    """It says itself which store it has, so what it would do there can't count (R95)."""
    state, live = started(), Liveness()
    for node in state.nodes.values():
        live.note(node.node_id, state=NodeState.UP, store_id=OTHER if node.node_id == 2 else OURS)
        commit(state, Change((updated(node, tier_url="file:///bucket"),)))
    assert sorted(tier_nodes(state, live, b"key")) == [1, 2, 3], "the cluster has no store yet"
    assert state.cluster is not None
    commit(state, Change((updated(state.cluster, store_id=OURS),)))
    assert sorted(tier_nodes(state, live, b"key")) == [1, 3]
    live.note(3, state=NodeState.DOWN)
    assert tier_nodes(state, live, b"key") == [1]
