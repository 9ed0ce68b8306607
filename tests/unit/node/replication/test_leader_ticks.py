"""Leaders get a tick whenever time means something to them, and cost nothing else."""

import gc
import random
from math import inf

from icecore_node.replication.leader_ticks import LeaderTicks


class Core:
    """Says until when it rests; each look is counted."""

    def __init__(self) -> None:
        self.until_ms = -inf
        self.looks = 0

    @property
    def rests_until_ms(self) -> float:
        self.looks += 1
        return self.until_ms


class Led:
    """A leader that rests after each tick, until the times that it is given."""

    def __init__(self, ticks: "LeaderTicks[Led]", *rests_ms: float) -> None:
        self.core = Core()
        self._ticks = ticks
        self._rests_ms = list(rests_ms)
        ticks.wake(self)

    def happens(self) -> None:
        self.core.until_ms = -inf
        self._ticks.wake(self)

    def tick(self) -> None:
        self.happens()
        self.core.until_ms = self._rests_ms.pop(0) if self._rests_ms else inf


def ticked(ticks: LeaderTicks[Led], now_ms: float) -> list[Led]:
    due = ticks.due(now_ms)
    for each in due:
        each.tick()
    return due


def test_one_that_rests_for_ever_is_looked_at_no_more() -> None:
    ticks = LeaderTicks[Led]()
    led = Led(ticks)
    assert ticked(ticks, 0) == [led]
    assert ticked(ticks, 100) == []
    looks = led.core.looks
    for now_ms in range(200, 10_000, 100):
        assert ticked(ticks, now_ms) == []
    assert led.core.looks == looks
    led.happens()
    assert ticked(ticks, 10_000) == [led]


def test_one_that_rests_until_some_time_is_looked_at_then() -> None:
    ticks = LeaderTicks[Led]()
    led = Led(ticks, 500, 900)
    assert ticked(ticks, 0) == [led]
    assert [now for now in range(100, 1_500, 100) if ticked(ticks, now)] == [500, 900]


def test_one_that_never_rests_gets_each_tick() -> None:
    ticks = LeaderTicks[Led]()
    led = Led(ticks, *[-inf] * 20)
    for now_ms in range(0, 2_000, 100):
        assert ticked(ticks, now_ms) == [led]


def test_a_rest_that_became_shorter_ends_earlier_and_one_that_became_longer_later() -> None:
    ticks = LeaderTicks[Led]()
    led = Led(ticks, 1_000, 400, 2_000)
    assert ticked(ticks, 0) == [led]
    assert ticked(ticks, 100) == []
    led.happens()
    assert ticked(ticks, 200) == [led]  # rests until 400 now
    assert [now for now in range(300, 2_500, 100) if ticked(ticks, now)] == [400, 2_000]


def test_one_that_is_busy_lies_in_the_heap_once() -> None:
    ticks = LeaderTicks[Led]()
    led = Led(ticks, *[now + 10_000 for now in range(0, 5_000, 200)])
    for now_ms in range(0, 5_000, 200):
        led.happens()
        assert ticked(ticks, now_ms) == [led]
        assert ticked(ticks, now_ms + 100) == []
    assert len(ticks._resting) == 1


def test_one_that_is_over_is_forgotten() -> None:
    ticks = LeaderTicks[Led]()
    led = Led(ticks, 1_000)
    ticked(ticks, 0)
    ticked(ticks, 100)
    del led
    gc.collect()
    assert not ticks._awake and not ticks._looked_at_ms
    assert ticks.due(1_000) == []
    assert not ticks._resting


def test_the_same_ticks_as_if_all_were_looked_at_each_time() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        ticks = LeaderTicks[Led]()
        all_led = [Led(ticks) for _ in range(5)]
        for now_ms in range(0, 5_000, 100):
            for led in all_led:
                if rng.random() < 0.1:
                    led.happens()
                until_ms = rng.choice([-inf, inf, now_ms + rng.randrange(2_000)])
                led._rests_ms = [until_ms]
            expected = {each for each in all_led if each.core.until_ms <= now_ms}
            assert set(ticked(ticks, now_ms)) == expected
