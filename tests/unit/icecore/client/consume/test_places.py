"""Places of fetches: kinds do not wait for each other, and polls become longer up to a limit."""

import pytest

from icecore.client.consume.places import (
    LONG_POLL,
    PLACES,
    POLL,
    READ,
    SHORT_WAIT_MS,
    FetchPlace,
    Places,
)

LIMIT_MS = 30_000


@pytest.mark.parametrize(
    ("empty_polls", "expected"),
    [
        (None, FetchPlace(1, READ, SHORT_WAIT_MS)),
        (0, FetchPlace(1, POLL, SHORT_WAIT_MS)),
        (1, FetchPlace(1, LONG_POLL, 2 * SHORT_WAIT_MS)),
        (5, FetchPlace(1, LONG_POLL, 32 * SHORT_WAIT_MS)),
        (6, FetchPlace(1, LONG_POLL, LIMIT_MS)),
        (10_000, FetchPlace(1, LONG_POLL, LIMIT_MS)),
    ],
)
def test_the_more_polls_brought_nothing_the_longer_is_the_next(
    empty_polls: int | None, expected: FetchPlace
) -> None:
    assert Places(LIMIT_MS).take(1, empty_polls) == expected


@pytest.mark.parametrize("limit_ms", [0, 50, SHORT_WAIT_MS])
def test_a_low_limit_holds_for_all(limit_ms: int) -> None:
    places = Places(limit_ms)
    for empty_polls in (None, 0, 3, 10_000):
        place = places.take(1, empty_polls)
        assert place is not None and place.wait_ms == limit_ms and place.kind != LONG_POLL


def test_no_kind_and_no_node_takes_the_places_of_another() -> None:
    places = Places(LIMIT_MS)
    for node_id in (1, 2):
        assert [bool(places.take(node_id, None)) for _ in range(3)] == [True] * 2 + [False]
        taken = [places.take(node_id, 9) for _ in range(PLACES[LONG_POLL] + PLACES[POLL])]
        kinds = [place.kind for place in taken if place is not None]
        assert kinds == [LONG_POLL] * PLACES[LONG_POLL] + [POLL] * PLACES[POLL]
        assert places.take(node_id, 9) is None and places.take(node_id, 0) is None


def test_a_place_that_was_left_is_free() -> None:
    places = Places(LIMIT_MS)
    taken = [place for _ in range(PLACES[READ]) if (place := places.take(1, None))]
    places.leave(taken[0])
    assert places.take(1, None) == taken[0]
    assert places.take(1, None) is None
