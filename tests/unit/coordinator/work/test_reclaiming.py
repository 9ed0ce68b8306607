"""The order in which segments go when a disk is nearly full (R75)."""

from icecore_coordinator.decisions.retention import Sacrifice
from icecore_coordinator.work.reclaiming import SACRIFICES_PER_LOOK, choose


def of(partition: int, *appended_ms: int) -> list[Sacrifice]:
    key = (b"t" * 16, partition)
    return [Sacrifice(key, 10 * (at + 1), 5, each) for at, each in enumerate(appended_ms)]


def test_the_oldest_records_of_all_partitions_go_first() -> None:
    chosen, found = choose([of(0, 3, 4), [], of(1, 1, 9)], 11)
    assert [each.appended_ms for each in chosen] == [1, 3, 4] and found == 15


def test_a_partition_goes_from_its_head_whatever_clocks_said() -> None:
    chosen, _ = choose([of(0, 100, 1), of(1, 50, 60)], 16)
    assert [each.appended_ms for each in chosen] == [50, 60, 100, 1]


def test_there_may_be_less_than_is_asked_for() -> None:
    assert choose([], 10) == ([], 0)
    assert choose([of(0, 1)], 10)[1] == 5
    many = [of(0, *range(2 * SACRIFICES_PER_LOOK))]
    assert len(choose(many, 10**9)[0]) == SACRIFICES_PER_LOOK
