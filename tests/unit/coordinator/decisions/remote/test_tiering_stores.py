"""Nodes with different object stores: the cluster uses the one that was used first."""

from icecore.errors import ConflictError
from icecore_coordinator.decisions.remote.tiering import begin, store_warnings
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.work.remote.tier_nodes import tier_nodes
from tests.support.cluster_states import Cluster, commit, records
from tests.support.tier_states import begun, sealed, tiered_topic
from tests.support.tier_world import TierWorld


def give(state: Cluster, node_id: int, url: str) -> None:
    """The node has come again with this object store."""
    commit(state, Change((updated(state.nodes[node_id], tier_url=url),)))


def asked(state: Cluster) -> list[int]:
    return sorted(tier_nodes(state, state.live, b"key"))


def test_the_first_one_that_is_used_stays() -> None:
    state = tiered_topic()
    give(state, 2, "s3://other")
    assert asked(state) == [1, 2, 3] and not store_warnings(state, state.live)
    begun(state, sealed(state), 2)
    assert state.cluster is not None and state.cluster.tier_url == "s3://other"
    assert asked(state) == [2]
    assert [each[:6] for each in store_warnings(state, state.live)] == ["node 1", "node 3"]
    give(state, 1, "s3://other")
    give(state, 3, "")
    assert asked(state) == [1, 2] and not store_warnings(state, state.live)


def test_a_node_with_another_one_can_not_begin() -> None:
    state = tiered_topic()
    begun(state, sealed(state), 1)
    give(state, 2, "s3://other")
    try:
        begin(state, sealed(state), 2)
    except ConflictError as error:
        assert "no object store" in error.message
    else:
        raise AssertionError("it began")


def test_the_next_coordinator_knows_it() -> None:
    state = tiered_topic()
    begun(state, sealed(state), 1)
    give(state, 2, "s3://other")
    found = ClusterState()
    found.load((type(each), encode(each), each.version) for each in reversed(records(state)))
    assert sorted(found.tiers.nodes) == [1, 3] and found.tiers.url == "s3://bucket"


def test_a_store_is_moved_when_the_last_node_has_the_new_one() -> None:
    state = tiered_topic()
    begun(state, sealed(state), 1)
    give(state, 1, "s3://other")
    give(state, 2, "s3://other")
    assert asked(state) == [3]
    give(state, 3, "s3://other")
    assert asked(state) == [1, 2, 3]
    [warning] = store_warnings(state, state.live)
    assert "s3://bucket before" in warning
    begun(state, sealed(state), 1)
    assert not store_warnings(state, state.live)


def test_a_store_that_is_known_by_its_identity_may_lie_elsewhere() -> None:
    state = tiered_topic()
    begun(state, sealed(state), 1)
    assert state.cluster is not None
    commit(state, Change((updated(state.cluster, store_id=b"s" * 16),)))
    for node_id in (1, 2, 3):
        give(state, node_id, "file:///moved")
        state.live.note(node_id, store_id=b"o" * 16)
    [warning] = store_warnings(state, state.live)
    assert "file:///moved" in warning
    for node_id in (1, 2, 3):
        state.live.note(node_id, store_id=b"s" * 16)
    assert not store_warnings(state, state.live)


def test_nobody_is_asked_while_none_has_it_and_they_differ() -> None:
    state = tiered_topic()
    begun(state, sealed(state), 1)
    for node_id in (1, 2, 3):
        give(state, node_id, f"s3://other{node_id}")
    assert asked(state) == [] and len(store_warnings(state, state.live)) == 3


async def test_a_person_is_told_once() -> None:
    world = TierWorld()
    sealed(world.state)
    give(world.state, 3, "s3://other")
    for _ in range(3):
        await world.uploads()
    assert len(world.alerts) == 1 and "node 3 has the object store s3://other" in world.alerts[0]
    assert world.alerts_that_hold() == world.alerts
    give(world.state, 3, "s3://bucket")
    assert world.alerts_that_hold() == []
