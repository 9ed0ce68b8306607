"""Which seal comes next: what readers wait for, then the others, recoveries before them."""

import pytest

from icecore.model import SegmentId
from icecore_node.identity.readers import PartitionKey
from icecore_node.registry.seal_order import (
    CALM_MS,
    CROWD_MIN,
    LOOK_MS,
    PUT_OFF_MS_MAX,
    SealOrder,
)

NOW_MS = 5_000.0
WAITED_FOR: set[PartitionKey] = set()


def key_of(number: int) -> PartitionKey:
    return b"topic", number


@pytest.fixture
def order() -> SealOrder[int]:
    WAITED_FOR.clear()
    return SealOrder[int](WAITED_FOR.__contains__)


def put(order: SealOrder[int], count: int) -> None:
    for number in range(count):
        order.put(SegmentId(number), key_of(number), number, NOW_MS)


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


def test_what_a_reader_waits_for_does_not(order: SealOrder[int]) -> None:
    order.note_fence(NOW_MS)
    WAITED_FOR.add(key_of(3))
    put(order, CROWD_MIN + 2)
    assert taken(order, NOW_MS) == [3], "he waited already"
    WAITED_FOR.add(key_of(7))
    assert taken(order, NOW_MS + LOOK_MS - 1) == []
    assert taken(order, NOW_MS + LOOK_MS) == [7], "he came since"
    assert len(order) == CROWD_MIN


def test_who_a_reader_waits_for_goes_before_the_others(order: SealOrder[int]) -> None:
    put(order, 3)
    WAITED_FOR.add(key_of(2))
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
