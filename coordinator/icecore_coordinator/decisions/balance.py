"""Decision which open segments would be better off with another leader or on other nodes. Pure.

A roll is how a partition moves: its successor opens where the placement says. So the question is
only which rolls would help, and each segment is placed as its roll would place it, on loads that
the moves before it have changed. Moves so come to an end: placement changes nodes only where that
spreads copies or lowers the sum of squared loads, and leaders only where it lowers that of leads.

Limits: a segment without records is left alone, for only recovery could replace it, and nobody
gains by that. Sealed segments do not move: any replica serves them, and retention lets them go.
Linear in the open segments; ``placement`` says how one is placed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from icecore.model import Segment, SegmentId, SegmentState
from icecore_coordinator.decisions.placement import Placer
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    Placement,
    drained_nodes,
    eligible_nodes,
)
from icecore_coordinator.state.liveness import Liveness

MOVES_MAX: Final = 1_000
"""Most moves that are told at once."""


@dataclass(frozen=True, slots=True)
class Move:
    """A segment that is to roll, and where its successor would open."""

    segment: Segment
    placement: Placement


def moves(
    state: ClusterState, live: Liveness, has_records: Callable[[SegmentId], bool], count_max: int
) -> list[Move]:
    """Choose the rolls that even out leaders and replicas, in the order of partitions.

    Args:
        state: The cluster.
        live: Who is up.
        has_records: Whether a segment has any, as far as is known.
        count_max: Most moves to choose.
    """
    return list(islice(_moves(state, live, has_records), count_max))


def _moves(
    state: ClusterState, live: Liveness, has_records: Callable[[SegmentId], bool]
) -> Iterator[Move]:
    placer = Placer(state, live)
    replicas_max = len(eligible_nodes(state, live))
    for segment_id in sorted(state.unsealed):
        segment = state.segments[segment_id].segment
        if segment.state != SegmentState.ACTIVE or not has_records(segment_id):
            continue
        if len(segment.replicas) > replicas_max or not state.leader_is_live(segment, live):
            continue
        found = placer.place(
            len(segment.replicas), replicas=segment.replicas, leader=segment.leader
        )
        if found.leader != segment.leader or set(found.nodes) != set(segment.replicas):
            yield Move(segment, found)


def is_calm(state: ClusterState, live: Liveness) -> bool:
    """Return whether every node may take segments, so that a move is not undone by a return."""
    is_everyone = len(eligible_nodes(state, live)) == len(state.nodes)
    return is_everyone and not drained_nodes(state)
