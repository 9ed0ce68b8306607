"""Every order in which a log start, deletions, a reader and a repair can meet; and the mutants."""

import pytest

from icecore_coordinator.decisions import retention
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, drop
from tests.model.retention import KEY, TAIL, Rules, State, explore


def expired_goes(state: ClusterState) -> Change:
    """Deletion records before the log start has moved."""
    start = retention.verdict(state, KEY, retention.TailNews()).start_offset
    return drop(retention.below_start(state, KEY, start), 0)


def all_expired_goes(state: ClusterState) -> Change:
    """Once all sealed segments may go, the tail goes with them."""
    start = state.partitions[KEY].log_start_offset
    return drop(state.segments_in(KEY) if start == TAIL else [], 0)


def test_production_is_right_in_all_of_them() -> None:
    states, wrong = explore(Rules())
    assert not wrong
    assert states > 100


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Rules(delete=expired_goes), "the stored start is"),
        (Rules(delete=all_expired_goes), "segment 2 goes"),
        (Rules(may_recycle=lambda *_: True), "bytes of another segment"),
        (Rules(may_read=lambda *_: True), "is not told"),
        (Rules(add_holder=lambda *_: Change()), "nobody was told"),
    ],
)
def test_a_mistake_shows(rules: Rules, expected: str) -> None:
    assert expected in explore(rules)[1]


def test_it_begins_whole() -> None:
    assert State().start == 0 and not State().gone
