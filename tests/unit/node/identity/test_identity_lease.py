"""The lease counts from when a heartbeat was sent, whenever its answer comes."""

from types import SimpleNamespace
from typing import Any

from icecore_node.identity.identity import Lease


class Clock:
    def __init__(self) -> None:
        self.at_ms = 1_000.0

    def monotonic_ms(self) -> float:
        return self.at_ms


def lease(clock: Clock) -> Lease:
    given: Any = SimpleNamespace(monotonic_ms=clock.monotonic_ms)
    found = Lease(given)
    found.length_ms = 100
    return found


def test_there_is_none_before_a_heartbeat_was_answered() -> None:
    held = lease(Clock())
    held.heartbeat()
    assert not held.is_valid


def test_a_late_answer_makes_it_no_longer() -> None:
    clock = Clock()
    held = lease(clock)
    first = held.heartbeat()
    clock.at_ms += 90
    held.renew(first)
    assert held.is_valid
    clock.at_ms += 10
    assert not held.is_valid


def test_answers_out_of_order_and_of_nobody_change_nothing() -> None:
    clock = Clock()
    held = lease(clock)
    first = held.heartbeat()
    clock.at_ms += 50
    second = held.heartbeat()
    held.renew(second)
    held.renew(first)
    held.renew(77)
    clock.at_ms += 99
    assert held.is_valid
    clock.at_ms += 1
    assert not held.is_valid
