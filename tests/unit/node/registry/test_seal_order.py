"""The order of seals: segments that are read come first, then the others, after recoveries."""

import pytest

from icecore_node.identity.readers import PartitionKey
from icecore_node.registry.seal_order import (
    CALM_MS,
    CROWD_MIN,
    PUT_OFF_MS_MAX,
    SealOrder,
)

NOW_MS = 5_000.0
READ: set[PartitionKey] = set()


def key_of(number: int) -> PartitionKey:
    return b"topic", number


@pytest.fixture
def order() -> SealOrder[int]:
    READ.clear()
    return SealOrder[int](READ.__contains__)


def put(order: SealOrder[int], count: int) -> None:
    for number in range(count):
        order.put(key_of(number), number, NOW_MS)


def taken(order: SealOrder[int], now_ms: float) -> list[int]:
    found = []
    while (seal := order.next(now_ms)) is not None:
        found.append(seal)
    return found


def test_first_come_first(order: SealOrder[int]) -> None:
    put(order, CROWD_MIN + 1)
    assert taken(order, NOW_MS) == [*range(CROWD_MIN + 1)]
    assert not order and order.next(NOW_MS) is None


def test_a_few_go_on_beside_a_recovery(order: SealOrder[int]) -> None:
    order.note_fence(NOW_MS)
    put(order, CROWD_MIN - 1)
    assert len(taken(order, NOW_MS)) == CROWD_MIN - 1


def test_a_crowd_waits_until_no_fence_has_come_for_a_while(order: SealOrder[int]) -> None:
    order.note_fence(NOW_MS)
    put(order, CROWD_MIN)
    assert taken(order, NOW_MS + CALM_MS - 1) == [] and len(order) == CROWD_MIN
    order.note_fence(NOW_MS + 10)
    assert taken(order, NOW_MS + CALM_MS) == []
    assert len(taken(order, NOW_MS + 10 + CALM_MS)) == CROWD_MIN


def test_what_is_read_does_not(order: SealOrder[int]) -> None:
    order.note_fence(NOW_MS)
    READ.add(key_of(3))
    put(order, CROWD_MIN + 2)
    assert taken(order, NOW_MS) == [3], "he read it already"
    order.want(key_of(7))
    order.want(key_of(7))
    assert taken(order, NOW_MS) == [7], "he came since"
    order.want(key_of(10_000))
    assert len(order) == CROWD_MIN and taken(order, NOW_MS) == []


def test_all_of_a_partition_is_wanted_in_its_order(order: SealOrder[int]) -> None:
    order.note_fence(NOW_MS)
    put(order, CROWD_MIN + 1)
    order.put(key_of(5), 500, NOW_MS)
    order.want(key_of(5))
    assert taken(order, NOW_MS) == [5, 500]
    assert len(order) == CROWD_MIN


def test_what_is_read_goes_before_the_others(order: SealOrder[int]) -> None:
    put(order, 3)
    order.want(key_of(2))
    assert taken(order, NOW_MS) == [2, 0, 1]


def test_nobody_puts_them_off_for_ever(order: SealOrder[int]) -> None:
    put(order, CROWD_MIN)
    at_ms = NOW_MS
    while at_ms < NOW_MS + PUT_OFF_MS_MAX:
        order.note_fence(at_ms)
        assert order.next(at_ms) is None
        at_ms += CALM_MS / 2
    order.note_fence(at_ms)
    assert order.next(at_ms) == 0
