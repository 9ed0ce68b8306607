"""Properties of placement: where segments go, who leads, and that nothing moves without a gain."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from icecore.model import NodeState, Segment, SegmentState
from icecore_coordinator.decisions.placement import Placer
from icecore_coordinator.state.records import Change, NodeRecord, SegmentRecord
from tests.support.cluster_states import Cluster

MAX_LOAD = 12
ACTIVE = Segment(1, b"t" * 16, "t", 0, SegmentState.ACTIVE, 1, leader_incarnation=1, version=1)


def cluster(racks: list[str], states: list[NodeState] | None = None) -> Cluster:
    """Nodes 1, 2, … with these racks, all connected."""
    state = Cluster()
    for number, rack in enumerate(racks):
        node_id = number + 1
        node = NodeRecord(node_id, b"d", f"n{node_id}:1", rack, 1, 1, version=1)
        state.apply(Change((node,)))
        status = (states or [NodeState.UP] * len(racks))[number]
        state.live.note(node_id, state=status, is_connected=status != NodeState.DOWN)
    return state


def placer_on(state: Cluster) -> Placer:
    return Placer(state, state.live)


def with_segments(state: Cluster, placed: list[tuple[tuple[int, ...], int]]) -> Cluster:
    """Active segments on given nodes with given leaders."""
    for number, (nodes, leader) in enumerate(placed):
        segment = ACTIVE.changed(
            segment_id=number + 1, partition=number, leader=leader, replicas=nodes, isr=nodes
        )
        state.apply(Change((SegmentRecord(segment, nodes),)))
    return state


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 60))
def test_new_topics_spread_evenly(nodes: int, copies: int, partitions: int) -> None:
    placer = placer_on(cluster([""] * nodes))
    replicas: Counter[int] = Counter(dict.fromkeys(range(1, nodes + 1), 0))
    leads: Counter[int] = Counter(dict.fromkeys(range(1, nodes + 1), 0))
    for _ in range(partitions):
        place = placer.place(copies)
        assert len(set(place.nodes)) == len(place.nodes) == min(copies, nodes)
        assert place.leader in place.nodes
        replicas.update(place.nodes)
        leads[place.leader] += 1
    assert max(replicas.values()) - min(replicas.values()) <= 1
    assert max(leads.values()) - min(leads.values()) <= 1


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8),
    st.integers(1, 3),
    st.integers(1, 20),
)
def test_copies_share_a_rack_only_when_they_must(
    racks: list[str], copies: int, partitions: int
) -> None:
    placer = placer_on(cluster(racks))
    for _ in range(partitions):
        nodes = placer.place(copies).nodes
        used = {racks[node_id - 1] for node_id in nodes}
        assert len(used) == min(len(nodes), len(set(racks)))


@given(st.lists(st.sampled_from(list(NodeState)), min_size=1, max_size=8), st.integers(1, 4))
def test_only_eligible_nodes_are_used(states: list[NodeState], copies: int) -> None:
    up = [number + 1 for number, state in enumerate(states) if state == NodeState.UP]
    place = placer_on(cluster([""] * len(states), states)).place(copies, replicas=(1,), leader=1)
    assert set(place.nodes) <= set(up)
    assert len(place.nodes) == min(copies, len(up))
    assert place.leader in place.nodes or not up


def test_ordinary_roll_keeps_nodes_and_leader() -> None:
    state = cluster([""] * 4)
    state = with_segments(state, [((1, 2, 3), 2), ((2, 3, 4), 3), ((4, 1, 2), 1)])
    place = placer_on(state).place(3, replicas=(1, 2, 3), leader=2)
    assert (place.nodes, place.leader) == ((1, 2, 3), 2)


def test_roll_moves_to_an_empty_node_when_others_are_much_fuller() -> None:
    state = with_segments(cluster([""] * 4), [((1, 2, 3), 1)] * MAX_LOAD)
    place = placer_on(state).place(3, replicas=(1, 2, 3), leader=1)
    assert 4 in place.nodes
    assert place.leader != 1


def test_rolls_of_everything_end_balanced_and_then_stop_moving() -> None:
    placed: list[tuple[tuple[int, ...], int]] = [((1, 2, 3), 1)] * 24
    for _ in range(3):
        state = with_segments(cluster([""] * 4), placed)
        for index, (nodes, leader) in enumerate(placed):
            state = with_segments(cluster([""] * 4), placed)
            place = placer_on(state).place(3, replicas=nodes, leader=leader)
            placed[index] = (place.nodes, place.leader)
    loads = Counter(node_id for nodes, _ in placed for node_id in nodes)
    leads = Counter(leader for _, leader in placed)
    assert max(loads.values()) - min(loads.values()) <= 3
    assert max(leads.values()) - min(leads.values()) <= 3
    state = with_segments(cluster([""] * 4), placed)
    for nodes, leader in placed:
        place = placer_on(state).place(3, replicas=nodes, leader=leader)
        assert (place.nodes, place.leader) == (nodes, leader)
        state = with_segments(cluster([""] * 4), placed)


def test_nothing_eligible_is_an_empty_placement() -> None:
    place = placer_on(cluster(["", ""], [NodeState.DOWN, NodeState.DRAINING])).place(1)
    assert (place.nodes, place.leader) == ((), 0)


def test_node_whose_clock_is_off_leads_only_when_all_are() -> None:
    state = with_segments(cluster([""] * 3), [((1, 2, 3), 2)])
    state.live.note(2, is_clock_off=True)
    assert placer_on(state).place(3, replicas=(1, 2, 3), leader=2).leader == 1
    for node_id in state.nodes:
        state.live.note(node_id, is_clock_off=True)
    assert placer_on(state).place(3, replicas=(1, 2, 3), leader=2).leader == 2


def test_a_drained_node_is_taken_where_a_segment_could_not_open_without_it() -> None:
    state = cluster(["", "", ""])
    state.apply(Change((replace(state.nodes[2], is_drained=True),)))
    assert set(placer_on(state).place(3).nodes) == {1, 3}
    place = placer_on(state).place(3, replicas=(2, 1, 3), leader=2, least=3)
    assert set(place.nodes) == {1, 2, 3}
    assert place.leader != 2


# --- machines that run several nodes --------------------------------------------------------------


def on_hosts(*hosts: str) -> Cluster:
    state = cluster([""] * len(hosts))
    for node_id, host in enumerate(hosts, 1):
        state.apply(Change((replace(state.nodes[node_id], host=host),)))
    return state


def hosts_of(state: Cluster, nodes: Sequence[int]) -> set[str]:
    return {state.nodes[each].host for each in nodes}


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=8), st.integers(1, 4))
def test_copies_share_a_machine_only_where_there_are_too_few(hosts: list[str], count: int) -> None:
    state = on_hosts(*hosts)
    for _ in range(3):
        nodes = placer_on(state).place(count).nodes
        assert len(hosts_of(state, nodes)) == min(len(set(hosts)), len(nodes))
        assert len(nodes) == min(count, len(hosts))


def test_copies_on_one_machine_part_when_another_one_comes() -> None:
    state = on_hosts("a", "a", "a")
    assert set(placer_on(state).place(3, replicas=(1, 2, 3), leader=1).nodes) == {1, 2, 3}
    state = on_hosts("a", "a", "a", "b", "c")
    nodes = placer_on(state).place(3, replicas=(1, 2, 3), leader=1).nodes
    assert hosts_of(state, nodes) == {"a", "b", "c"}
    assert set(placer_on(state).place(3, replicas=nodes, leader=nodes[0]).nodes) == {*nodes}


def test_nodes_that_name_no_machine_are_machines_of_their_own() -> None:
    state = on_hosts("", "", "", "a")
    assert set(placer_on(state).place(3, replicas=(1, 2, 3), leader=1).nodes) == {1, 2, 3}
