"""All limits of a cluster that may fill up: how much of each is used, and what makes room.

Pure. Whoever compares with a limit takes it from here, so that the table is complete. An operator
is warned from ``WARN_SHARE`` on, while there is time to act.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from icecore.model import SEGMENT_ID_MAX
from icecore_coordinator.state.cluster_state import ClusterState, live_topics, next_of

NODES_MAX: Final = 1_000
PRODUCER_NAMES_MAX: Final = 50_000
"""Every node knows the epochs of all of them."""
POSITION_NAMES_MAX: Final = 10_000
POSITIONS_MAX: Final = 100_000
"""The sum over all names; each takes a few hundred bytes of the coordinator's memory. Saves that
share a transaction are counted afterwards, so there may be a few thousand more."""
HOLDS_MAX: Final = 32
"""Bound of one topic: they are in its record."""
WARN_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a cluster."""

    name: str
    """Metrics have it as a label, too."""
    most: int
    used: Callable[[ClusterState], int]
    way_out: str
    """Tells an operator what makes room."""


@dataclass(frozen=True, slots=True)
class UsedLimit:
    """The used part of a limit."""

    limit: Limit
    used: int

    @property
    def is_nearly_full(self) -> bool:
        """Return whether an operator should act."""
        return self.used >= WARN_SHARE * self.limit.most


def _holds(state: ClusterState) -> int:
    """Return the holds of the topic that has most."""
    now_ms = state.counted_ms
    counts = (sum(each.until_ms > now_ms for each in t.holds) for t in live_topics(state))
    return max(counts, default=0)


LIMITS: Final[tuple[Limit, ...]] = (
    Limit(
        "nodes",
        NODES_MAX,
        lambda state: len(state.nodes),
        "icecore node remove takes out a node that is gone for good",
    ),
    Limit(
        "producer_names",
        PRODUCER_NAMES_MAX,
        lambda state: len(state.producers),
        "icecore producer delete takes out a name that no program uses any more",
    ),
    Limit(
        "position_names",
        POSITION_NAMES_MAX,
        lambda state: len(state.positions.of_name),
        "icecore position delete takes out a name that nobody reads with any more",
    ),
    Limit(
        "positions",
        POSITIONS_MAX,
        lambda state: state.positions.count,
        "icecore position delete takes out a name that nobody reads with any more",
    ),
    Limit(
        "holds_of_a_topic",
        HOLDS_MAX,
        _holds,
        "end the Spark jobs that hold the topic; a hold ends by itself within a day",
    ),
    Limit(
        "segment_ids",
        SEGMENT_ID_MAX,
        lambda state: next_of(state, "segment_id").next_value - 1,
        "nothing makes room: create a new cluster, and move the topics there",
    ),
)


def limits_in_use(state: ClusterState) -> Iterable[UsedLimit]:
    """Return each limit with how much of it is used, in the order of the table."""
    return [UsedLimit(each, each.used(state)) for each in LIMITS]
