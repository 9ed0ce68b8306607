"""Work that is tried again later, and sooner while somebody waits for it."""

from icecore_coordinator.work.backoff import AWAITED_WAIT_MS, KeyedBackoff
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock

FIRST_WAIT_MS, WAIT_MS_MAX = 200, 5_000


def wait_ms_after_failure(backoff: KeyedBackoff[str], clock: FakeClock) -> float:
    """Try once, fail, and see when it is due again."""
    assert backoff.take(["a"]) == ["a"] and not backoff.is_due("a")
    backoff.release("a", is_done=False)
    began = clock.now
    while not backoff.is_due("a"):
        clock.now += 50
    return clock.now - began


def test_waits_double_up_to_a_limit() -> None:
    clock = FakeClock()
    backoff: KeyedBackoff[str] = KeyedBackoff(clock, FIRST_WAIT_MS, WAIT_MS_MAX)
    waits = [wait_ms_after_failure(backoff, clock) for _ in range(8)]
    assert waits[:3] == [FIRST_WAIT_MS, 2 * FIRST_WAIT_MS, 4 * FIRST_WAIT_MS]
    assert waits[-1] == WAIT_MS_MAX


def test_what_somebody_waits_for_is_due_at_once_and_soon_again() -> None:
    clock = FakeClock()
    backoff: KeyedBackoff[str] = KeyedBackoff(clock, FIRST_WAIT_MS, WAIT_MS_MAX)
    for _ in range(8):
        wait_ms_after_failure(backoff, clock)
    backoff.take(["a"])
    backoff.release("a", is_done=False)
    assert not backoff.is_due("a")
    with backoff.awaited(["a"]), backoff.awaited(["a", "b"]):
        assert backoff.is_due("a") and backoff.is_waiting
        waits = [wait_ms_after_failure(backoff, clock) for _ in range(3)]
        assert waits == [AWAITED_WAIT_MS] * 3
    assert wait_ms_after_failure(backoff, clock) >= FIRST_WAIT_MS
    backoff.take(["a"])
    backoff.release("a", is_done=True)
    assert not backoff.is_waiting


def test_what_is_taken_stays_with_its_taker() -> None:
    backoff: KeyedBackoff[str] = KeyedBackoff(FakeClock(), FIRST_WAIT_MS, WAIT_MS_MAX)
    assert backoff.take(["a"]) == ["a"]
    with backoff.awaited(["a"]):
        assert not backoff.is_due("a") and backoff.take(["a"]) == []


def test_turns() -> None:
    """Items that a caller waits for come first; items that have failed before come last."""
    clock = FakeClock()
    backoff: KeyedBackoff[str] = KeyedBackoff(clock, FIRST_WAIT_MS, WAIT_MS_MAX)
    for key in ("a", "b"):
        backoff.take([key])
        backoff.release(key, is_done=False)
    with backoff.awaited(["d", "b"]):
        assert backoff.in_turn("abcd") == ["b", "d", "c", "a"]
    assert backoff.in_turn("acd") == ["c", "d", "a"]
