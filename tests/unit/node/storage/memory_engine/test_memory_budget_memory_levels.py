"""The choice of the tails in memory that roll."""

from hypothesis import given
from hypothesis import strategies as st

from icecore_node.storage.memory_engine.memory_budget import (
    ROLL_SHARE,
    ROLLS_AT_ONCE,
    tails_to_roll,
)

MAX = 1000


def test_half_of_memory_is_for_open_tails() -> None:
    assert tails_to_roll({"a": 300, "b": 200}, 500, 0, MAX) == []
    assert tails_to_roll({"a": 300, "b": 201}, 501, 0, MAX) == ["a"]


def test_the_largest_go_first() -> None:
    assert tails_to_roll({"a": 10, "b": 700, "c": 290}, 1000, 0, MAX) == ["b"]
    assert tails_to_roll({"a": 10, "b": 290, "c": 300, "d": 400}, 1000, 0, MAX) == ["d", "c"]


def test_what_others_lead_is_theirs_to_roll() -> None:
    """With 300 bytes too much, 100 are ours to free, since we have a third of all 800."""
    assert tails_to_roll({"a": 90, "b": 90, "c": 86}, 800, 534, MAX) == ["a", "b"]
    assert tails_to_roll({}, 0, 900, MAX) == []


def test_who_leads_most_rolls_though_memory_here_is_not_half_full() -> None:
    assert tails_to_roll({"a": 100, "b": 100, "c": 100}, 900, 0, MAX) == ["a", "b"]


def test_so_many_at_once() -> None:
    many = dict.fromkeys(range(ROLLS_AT_ONCE + 50), 10)
    assert len(tails_to_roll(many, 10 * len(many), 0, 10)) == ROLLS_AT_ONCE


@given(
    st.dictionaries(st.integers(), st.integers(1, 1000), max_size=20),
    st.integers(1, 5),
    st.integers(0, 3000),
    st.integers(0, 2000),
)
def test_enough_roll_and_no_more(
    led: dict[int, int], replicas: int, followed: int, bytes_max: int
) -> None:
    rolled = tails_to_roll(led, replicas * sum(led.values()), followed, bytes_max)
    kept = {tail: length for tail, length in led.items() if tail not in rolled}
    assert all(led[each] >= length for each in rolled for length in kept.values())
    own = sum(led.values())
    whole = max(own + followed, replicas * own)
    too_much = max(0.0, (whole - ROLL_SHARE * bytes_max) * own / max(1, whole))
    went = sum(led[each] for each in rolled)
    assert went >= min(own, too_much)
    assert not rolled or went - led[rolled[-1]] < too_much
