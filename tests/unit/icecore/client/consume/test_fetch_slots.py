"""Slots of fetches: kinds do not wait for each other, and polls become longer up to a limit."""

import pytest

from icecore.client.consume.fetch_slots import (
    LONG_POLL,
    POLL,
    READ,
    SHORT_WAIT_MS,
    SLOTS,
    FetchSlot,
    FetchSlots,
)

LIMIT_MS = 30_000


@pytest.mark.parametrize(
    ("empty_polls", "expected"),
    [
        (None, FetchSlot(1, READ, SHORT_WAIT_MS)),
        (0, FetchSlot(1, POLL, SHORT_WAIT_MS)),
        (1, FetchSlot(1, LONG_POLL, 2 * SHORT_WAIT_MS)),
        (5, FetchSlot(1, LONG_POLL, 32 * SHORT_WAIT_MS)),
        (6, FetchSlot(1, LONG_POLL, LIMIT_MS)),
        (10_000, FetchSlot(1, LONG_POLL, LIMIT_MS)),
    ],
)
def test_the_more_polls_brought_nothing_the_longer_is_the_next(
    empty_polls: int | None, expected: FetchSlot
) -> None:
    assert FetchSlots(LIMIT_MS).take(1, empty_polls) == expected


@pytest.mark.parametrize("limit_ms", [0, 50, SHORT_WAIT_MS])
def test_a_low_limit_holds_for_all(limit_ms: int) -> None:
    slots = FetchSlots(limit_ms)
    for empty_polls in (None, 0, 3, 10_000):
        slot = slots.take(1, empty_polls)
        assert slot is not None and slot.wait_ms == limit_ms and slot.kind != LONG_POLL


def test_no_kind_and_no_node_takes_the_places_of_another() -> None:
    slots = FetchSlots(LIMIT_MS)
    for node_id in (1, 2):
        assert [bool(slots.take(node_id, None)) for _ in range(3)] == [True] * 2 + [False]
        taken = [slots.take(node_id, 9) for _ in range(SLOTS[LONG_POLL] + SLOTS[POLL])]
        kinds = [slot.kind for slot in taken if slot is not None]
        assert kinds == [LONG_POLL] * SLOTS[LONG_POLL] + [POLL] * SLOTS[POLL]
        assert slots.take(node_id, 9) is None and slots.take(node_id, 0) is None


def test_a_place_that_was_left_is_free() -> None:
    slots = FetchSlots(LIMIT_MS)
    taken = [slot for _ in range(SLOTS[READ]) if (slot := slots.take(1, None))]
    slots.leave(taken[0])
    assert slots.take(1, None) == taken[0]
    assert slots.take(1, None) is None
