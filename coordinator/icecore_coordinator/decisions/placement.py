"""Choice of the nodes that keep a partition's next segment, and of the node that leads it.

Goals: every node carries about as many unsealed replicas as any other, and leads about as many;
racks do not share the copies of one segment while there are enough racks, nor do machines (hosts),
which may run several nodes; a roll that gains
nothing moves nothing, because staying costs the followers nothing and moving costs them a cold
start.

Constraints: only nodes that are connected, UP, not draining and not read-only (draining ones may
follow where there are too few others to open a segment at all); never two copies on one node;
deterministic, as everything the coordinator decides; linear in the number of nodes, for one call
places thousands of partitions.

Algorithm: greedy, one partition after the other, on loads that are updated after each choice. Keep
the predecessor's nodes when all are eligible, enough, on as many racks and hosts as others would
be, and none carries 10 % (and at least two) more than the least loaded. Otherwise take the node
with the fewest copies already in its rack, then on its host, then the fewest replicas, then the
fewest leads (for the first one, the most for the others), then the lowest id, until there are
enough. Nodes that are no better than the predecessor's do not replace them: such are on more racks
or hosts, or carry less in sum. So each change of nodes lowers the cluster's sum of squared loads,
or spreads copies, and moves come to an end. The leader is the predecessor's leader under the same
conditions counted in leads, else the one with fewest leads. A node whose wall clock is off leads
nothing new while there are others: its append times would hold for everything after them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from icecore.model import NO_NODE, NodeId, NodeState
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    NodeLoad,
    Placement,
    drained_nodes,
    eligible_nodes,
    load_of_nodes,
)
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import NodeRecord

IMBALANCE = 0.10
"""Share above the least loaded node up to which nothing is moved."""
SLACK = 2
"""Replicas or leads more that never count as imbalance: small numbers are always uneven."""


def rack_of(node: NodeRecord) -> str:
    """Return the rack of a node; one without a name is a rack of its own."""
    return node.rack or f"node {node.node_id}"


def host_of(node: NodeRecord) -> str:
    """Return the machine of a node; one without a name is a machine of its own."""
    return node.host or f"node {node.node_id}"


class Placer:
    """Places any number of segments on one view of the cluster, keeping count as it goes."""

    def __init__(self, state: ClusterState, live: Liveness) -> None:
        eligible = eligible_nodes(state, live)
        loads = load_of_nodes(state)
        self._nodes: dict[NodeId, NodeRecord] = {each.node_id: each for each in eligible}
        self._loads: dict[NodeId, NodeLoad] = {each: loads[each] for each in self._nodes}
        self._domains_there = self._domains(self._nodes)
        self._clock_off = [each for each in self._nodes if live.of(each).is_clock_off]
        drained = drained_nodes(state)
        self._draining = [
            node_id
            for node_id in live
            if live.of(node_id).is_connected
            and (live.state_of(node_id) == NodeState.DRAINING or node_id in drained)
        ]

    def place(
        self,
        count: int,
        *,
        replicas: Sequence[NodeId] = (),
        leader: NodeId = NO_NODE,
        least: int = 0,
    ) -> Placement:
        """Nodes and leader for one segment.

        Args:
            count: How many nodes are wanted; fewer come back when fewer are eligible.
            replicas: Those of the predecessor, preferred while that is balanced. They still
                count as loaded with it, because the successor takes its place.
            leader: Of the predecessor.
            least: Below this count draining nodes are taken too, as followers of one that stays.
        """
        for node_id in replicas:
            self._add(node_id, -1, is_leader=node_id == leader)
        nodes = self._nodes_for(count, replicas)
        chosen = self._leader(nodes, leader)
        for node_id in nodes:
            self._add(node_id, 1, is_leader=node_id == chosen)
        if nodes and len(nodes) < least:
            nodes += self._draining[: least - len(nodes)]
        return Placement(tuple(nodes), chosen)

    def _nodes_for(self, count: int, replicas: Sequence[NodeId]) -> list[NodeId]:
        if len(replicas) != count or any(each not in self._loads for each in replicas):
            return self._choose(count)
        kept, is_even = self._domains(replicas), self._is_even(replicas)
        if is_even and kept == tuple(min(count, each) for each in self._domains_there):
            return list(replicas)  # no other choice would have more racks, or more hosts
        others = self._choose(count)
        spread = self._domains(others)
        is_lighter = self._load(others) < self._load(replicas)
        is_better = spread > kept or (spread == kept and not is_even and is_lighter)
        return others if is_better else list(replicas)

    def _is_even(self, nodes: Sequence[NodeId]) -> bool:
        least = min((load.replicas for load in self._loads.values()), default=0)
        return all(_is_balanced(self._loads[each].replicas, least) for each in nodes)

    def _load(self, nodes: Sequence[NodeId]) -> int:
        return sum(self._loads[each].replicas for each in nodes)

    def _domains(self, nodes: Iterable[NodeId]) -> tuple[int, ...]:
        """Count the racks of some nodes, and their hosts."""
        records = [self._nodes[each] for each in nodes]
        return len({*map(rack_of, records)}), len({*map(host_of, records)})

    def _choose(self, count: int) -> list[NodeId]:
        copies_in_rack: Counter[str] = Counter()
        copies_on_host: Counter[str] = Counter()
        left = dict(self._nodes)
        chosen: list[NodeId] = []
        while left and len(chosen) < count:
            # The first is likely to lead; nodes that lead little are kept for later segments.
            sign = 1 if not chosen else -1
            best = min(
                left.values(),
                key=lambda node: (
                    copies_in_rack[rack_of(node)],
                    copies_on_host[host_of(node)],
                    self._loads[node.node_id].replicas,
                    sign * self._loads[node.node_id].leads,
                    node.node_id,
                ),
            )
            chosen.append(best.node_id)
            copies_in_rack[rack_of(best)] += 1
            copies_on_host[host_of(best)] += 1
            del left[best.node_id]
        return chosen

    def _leader(self, nodes: Sequence[NodeId], previous: NodeId) -> NodeId:
        candidates = [each for each in nodes if each not in self._clock_off] or list(nodes)
        if not candidates:
            return NO_NODE
        fewest = min(candidates, key=lambda each: (self._loads[each].leads, each))
        keeps = previous in candidates and _is_balanced(
            self._loads[previous].leads, self._loads[fewest].leads
        )
        return previous if keeps else fewest

    def _add(self, node_id: NodeId, step: int, *, is_leader: bool) -> None:
        load = self._loads.get(node_id)
        if load is not None:
            load.replicas += step
            load.leads += step if is_leader else 0


def _is_balanced(load: int, least: int) -> bool:
    return load < least + SLACK or load <= least * (1 + IMBALANCE)
