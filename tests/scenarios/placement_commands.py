"""Commands of the stories about placement: which nodes keep a segment, and which of them leads it.

What is placed is there from then on: the next placement finds the nodes with that load.
"""

from icecore.model import NodeState, Segment, SegmentState
from icecore_coordinator.decisions.placement import Placer
from icecore_coordinator.state.cluster_state import ClusterState, Placement, load_of_nodes
from icecore_coordinator.state.records import Change, NodeRecord, SegmentRecord
from tests.scenarios.effect_lines import nodes as listed
from tests.scenarios.vocabulary import Vocabulary
from tests.support.cluster_states import Cluster

PLACEMENT = Vocabulary(Cluster)


@PLACEMENT.command
def nodes(cluster: Cluster, *, racks: tuple[str, ...] = (), count: int = 0) -> list[str]:
    """Begin, or add: so many nodes that are up, or one for each rack named."""
    first = len(cluster.nodes) + 1
    for number, rack in enumerate(racks or ("",) * count):
        node_id = first + number
        node = NodeRecord(
            node_id=node_id,
            disk_id=b"d",
            address=f"node-{node_id}:7401",
            rack=rack,
            issued_incarnation=1,
            incarnation=1,
            version=1,
        )
        cluster.apply(Change((node,)))
        cluster.live.note(node_id, state=NodeState.UP, is_connected=True)
    return []


@PLACEMENT.command
def node(
    cluster: Cluster, *, node: int, state: NodeState | None = None, clock_off: bool = False
) -> list[str]:
    """A node is in another state, or its wall clock is off."""
    if state is not None:
        cluster.live.note(node, state=state, is_connected=state is not NodeState.DOWN)
    cluster.live.note(node, is_clock_off=clock_off)
    return []


@PLACEMENT.command
def segments(cluster: Cluster, *, on: tuple[int, ...], leader: int, count: int = 1) -> list[str]:
    """Put ``count`` segments on these nodes."""
    for _ in range(count):
        _put(cluster, len(cluster.segments) + 1, Placement(on, leader))
    return []


@PLACEMENT.command
def place(cluster: Cluster, *, copies: int, least: int = 0, times: int = 1) -> list[str]:
    """Segments of new partitions; draining nodes are taken below ``least`` copies."""
    placer = Placer(cluster, cluster.live)
    lines = []
    for _ in range(times):
        segment_id = len(cluster.segments) + 1
        found = placer.place(copies, least=least)
        lines.append(f"segment {segment_id}: {_line(found)}")
        _put(cluster, segment_id, found)
    return lines


@PLACEMENT.command
def roll(cluster: Cluster, *, segment: int, least: int = 0) -> list[str]:
    """The successor of a segment takes its place."""
    old = cluster.segments[segment].segment
    found = Placer(cluster, cluster.live).place(
        len(old.replicas), replicas=old.replicas, leader=old.leader, least=least
    )
    stays = found == Placement(old.replicas, old.leader)
    _put(cluster, segment, found)
    return [f"segment {segment}: {'stays on' if stays else 'moves to'} {_line(found)}"]


@PLACEMENT.command
def loads(state: Cluster) -> list[str]:
    """Print the load of each node."""
    return [
        f"node {node_id}: replicas {load.replicas}, leads {load.leads}"
        for node_id, load in load_of_nodes(state).items()
    ]


def _line(found: Placement) -> str:
    return f"{listed(found.nodes)}, leader {found.leader}" if found.nodes else "nowhere"


def _put(state: ClusterState, segment_id: int, found: Placement) -> None:
    before = state.segments.get(segment_id)
    segment = Segment(
        segment_id=segment_id,
        topic_id=b"t" * 16,
        topic="flights",
        partition=segment_id,
        state=SegmentState.ACTIVE,
        epoch=1,
        leader=found.leader,
        leader_incarnation=1,
        replicas=found.nodes,
        isr=found.nodes,
        version=before.version + 1 if before else 1,
    )
    state.apply(Change((SegmentRecord(segment, found.nodes),)))
