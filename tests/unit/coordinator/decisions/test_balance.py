"""Rolls even out leaders and replicas, and come to an end."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from icecore.model import NodeState, SegmentState
from icecore_coordinator.decisions.balance import Move, is_calm, moves
from icecore_coordinator.decisions.placement import IMBALANCE, SLACK
from icecore_coordinator.state.records import Change, updated, updated_segment
from tests.support.cluster_states import Cluster
from tests.unit.coordinator.decisions.test_placement import cluster, with_segments

NODES = (1, 2, 3)


def lopsided(count: int = 12) -> Cluster:
    """Node 1 leads everything."""
    return with_segments(cluster(["", "", ""]), [(NODES, 1)] * count)


def planned(state: Cluster, count_max: int = 1_000) -> list[Move]:
    return moves(state, state.live, lambda _: True, count_max)


def carry_out(state: Cluster, chosen: list[Move]) -> None:
    """As rolls would: the successor has the place."""
    for each in chosen:
        nodes = each.placement.nodes
        record = state.segments[each.segment.segment_id]
        fields = {"leader": each.placement.leader, "replicas": nodes, "isr": nodes}
        state.apply(Change((updated_segment(record, fields, holders=nodes),)))


def loads(state: Cluster) -> tuple[Counter[int], Counter[int]]:
    """Leads and replicas by node."""
    leads: Counter[int] = Counter(dict.fromkeys(state.nodes, 0))
    replicas: Counter[int] = Counter(dict.fromkeys(state.nodes, 0))
    for segment_id in state.unsealed:
        segment = state.segments[segment_id].segment
        leads[segment.leader] += 1
        replicas.update(segment.replicas)
    return leads, replicas


def test_leaders_become_even_and_then_nothing_moves() -> None:
    state = lopsided()
    carry_out(state, planned(state))
    leads, replicas = loads(state)
    assert max(leads.values()) <= min(leads.values()) + SLACK
    assert set(replicas.values()) == {12}
    assert planned(state) == []


def test_a_few_at_a_time_come_to_the_same() -> None:
    state, steps = lopsided(), 0
    while chosen := planned(state, 2):
        assert len(chosen) <= 2
        carry_out(state, chosen)
        steps += 1
        assert steps < 12
    leads, _ = loads(state)
    assert max(leads.values()) <= min(leads.values()) + SLACK


@given(
    st.lists(
        st.lists(st.integers(1, 5), min_size=2, max_size=3, unique=True), min_size=1, max_size=60
    )
)
def test_it_ends_even_wherever_it_begins(placed: list[list[int]]) -> None:
    state = with_segments(cluster([""] * 5), [(tuple(each), each[0]) for each in placed])
    for _ in range(len(placed) + 1):
        if not (chosen := planned(state)):
            break
        carry_out(state, chosen)
    assert planned(state) == []
    _, replicas = loads(state)
    least = min(replicas.values())
    assert max(replicas.values()) <= max(least + SLACK, least * (1 + IMBALANCE))


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(["", "x", "y"])),
        min_size=3,
        max_size=6,
    ),
    st.lists(
        st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True), min_size=1, max_size=40
    ),
    st.sampled_from([1, 2, 1_000]),
)
def test_it_ends_on_any_racks_and_hosts(
    places: list[tuple[str, str]], placed: list[list[int]], at_once: int
) -> None:
    """A node that is alone in its rack carries more than all others, whatever moves."""
    state = on_places(places, placed)
    moved = 0
    while chosen := planned(state, at_once):
        carry_out(state, chosen)
        moved += len(chosen)
        assert moved < 5 * len(placed) + 20


def test_a_crowded_rack_moves_nothing_to_and_fro() -> None:
    """Node 4 is on all segments, for nobody else is in its rack. Nodes 1 to 3 share the rest as
    evenly as twenty can be shared."""
    others = [number % 3 + 1 for number in range(20)]
    state = on_places([("a", ""), ("a", ""), ("a", ""), ("b", "")], [[each, 4] for each in others])
    carry_out(state, planned(state))
    assert planned(state, 1) == []


def test_a_node_without_rack_is_a_rack_of_its_own() -> None:
    state = on_places([("a", ""), ("", ""), ("a", ""), ("", "")], [[1, 3, 2]])
    assert sorted(planned(state)[0].placement.nodes) in ([1, 2, 4], [2, 3, 4])


def on_places(places: list[tuple[str, str]], placed: list[list[int]]) -> Cluster:
    """Nodes with these racks and hosts, and segments on those that there are."""
    state = cluster([rack for rack, _ in places])
    for node, (_, host) in zip(list(state.nodes.values()), places, strict=True):
        state.apply(Change((updated(node, host=host),)))
    there = [[each for each in nodes if each <= len(places)] for nodes in placed]
    return with_segments(state, [(tuple(each), each[0]) for each in there if each])


def test_a_new_node_gets_its_share() -> None:
    state = with_segments(cluster([""] * 4), [(NODES, number % 3 + 1) for number in range(12)])
    carry_out(state, planned(state))
    leads, replicas = loads(state)
    assert leads[4] >= 1
    assert replicas[4] >= 7


def test_an_even_cluster_is_left_alone() -> None:
    state = with_segments(cluster(["", "", ""]), [(NODES, number % 3 + 1) for number in range(12)])
    assert planned(state) == []


def test_what_can_not_roll_is_left_alone() -> None:
    state = lopsided()
    assert moves(state, state.live, lambda _: False, 1_000) == []
    recovering = updated_segment(state.segments[1], {"state": SegmentState.RECOVERING})
    state.apply(Change((recovering,)))
    assert 1 not in [each.segment.segment_id for each in planned(state)]
    state.live.note(1, state=NodeState.DOWN, is_connected=False)
    assert planned(state) == []


def test_no_move_has_fewer_copies() -> None:
    state = lopsided()
    state.live.note(3, state=NodeState.READ_ONLY, is_connected=True)
    for each in planned(state):
        assert len(each.placement.nodes) == 3


def test_it_is_calm_while_every_node_may_take_segments() -> None:
    state = lopsided()
    assert is_calm(state, state.live)
    state.live.note(2, state=NodeState.READ_ONLY, is_connected=True)
    assert not is_calm(state, state.live)
    state.live.note(2, state=NodeState.UP, is_connected=True)
    state.apply(Change((updated(state.nodes[2], is_drained=True),)))
    assert not is_calm(state, state.live)
