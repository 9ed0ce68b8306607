"""As many rolls are under way as go well: no more than are done in two looks, or than the most."""

import pytest

from icecore.model import SegmentId
from icecore_coordinator.work.segments.rolls import ROLLS_MAX, ROLLS_MIN, RollPace
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock

PATIENCE_MS = 5_000.0
LOOK_MS = 1_000.0


class Cluster:
    """Rolls so many segments between two looks, in the order in which it was asked."""

    def __init__(self, rolls_per_look: int) -> None:
        self.clock = FakeClock()
        self.pace = RollPace(self.clock, PATIENCE_MS)
        self.rolls_per_look = rolls_per_look
        self.under_way: list[SegmentId] = []
        self.asked = 0

    def look(self) -> int:
        """Return how many were asked for at this look."""
        count = self.pace.room(self.under_way.__contains__)
        for _ in range(count):
            self.asked += 1
            self.pace.ask(SegmentId(self.asked))
            self.under_way.append(SegmentId(self.asked))
        self.most = len(self.under_way)
        del self.under_way[: self.rolls_per_look]
        self.clock.now += LOOK_MS
        return count


def test_a_cluster_that_does_all_is_asked_for_twice_as_many_each_time() -> None:
    cluster = Cluster(1_000)
    assert [cluster.look() for _ in range(6)] == [4, 8, 16, 16, 16, 16]


@pytest.mark.parametrize("rolls_per_look", [2, 3, 5, 7])
def test_a_slow_one_is_asked_for_what_it_does(rolls_per_look: int) -> None:
    cluster = Cluster(rolls_per_look)
    for _ in range(10):
        cluster.look()
    for _ in range(20):
        assert cluster.look() <= 2 * rolls_per_look
        assert cluster.most <= max(ROLLS_MIN, 2 * rolls_per_look)
    assert cluster.asked >= 25 * min(rolls_per_look, ROLLS_MAX)


def test_one_that_does_nothing_is_asked_again_for_a_few_once_patience_ends() -> None:
    cluster = Cluster(0)
    assert [cluster.look() for _ in range(12)] == [4, 0, 0, 0, 0, 4, 0, 0, 0, 0, 4, 0]


def test_one_that_gets_slow_is_asked_for_no_more_until_it_has_caught_up() -> None:
    cluster = Cluster(1_000)
    for _ in range(5):
        cluster.look()
    cluster.rolls_per_look = 2
    assert [cluster.look() for _ in range(5)] == [16, 0, 0, 0, 0]
    for _ in range(20):
        cluster.look()
        assert cluster.most <= ROLLS_MAX


def test_whoever_looks_knows_whether_to_look_again_soon() -> None:
    cluster = Cluster(1_000)
    assert not cluster.pace.is_under_way
    cluster.look()
    assert cluster.pace.is_under_way
    assert cluster.pace.room(cluster.under_way.__contains__) > 0
    assert not cluster.pace.is_under_way
