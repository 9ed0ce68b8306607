"""Full collections are as rare as their share of the time asks for."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from icecore.process.garbage import (
    FULL_AFTER_MAX,
    FULL_AFTER_MIN,
    FULL_SHARE_MAX,
    PAUSE_S_MAX,
    FullCollections,
    bound_full_collections,
    collect_if_short,
)


class Collector:
    """The interpreter's collector, by a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.thresholds = (700, 10, FULL_AFTER_MIN)
        self._callback = FullCollections(lambda: self.now_s, lambda: self.thresholds, self._set)

    def _set(self, first: int, second: int, third: int) -> None:
        self.thresholds = (first, second, third)

    def collect(self, after_s: float, took_s: float, generation: int = 2) -> int:
        """Return how rare the next full one is."""
        self.now_s += after_s
        self._callback("start", {"generation": generation})
        self.now_s += took_s
        self._callback("stop", {"generation": generation, "collected": 0, "uncollectable": 0})
        return self.thresholds[2]


def test_one_that_takes_half_of_the_time_comes_more_rarely() -> None:
    collector = Collector()
    assert collector.collect(after_s=0.5, took_s=0.5) == round(
        FULL_AFTER_MIN * 0.5 / FULL_SHARE_MAX
    )
    assert collector.thresholds[:2] == (700, 10)


def test_it_settles_where_its_share_is_what_it_may_be() -> None:
    """The busier the process, the sooner the next one: a hundredth of a second for each step."""
    collector, took_s = Collector(), 0.05
    for _ in range(10):
        after = collector.thresholds[2]
        collector.collect(after * 0.01, took_s)
    assert took_s / (collector.thresholds[2] * 0.01 + took_s) == pytest.approx(FULL_SHARE_MAX, 0.1)


def test_a_quiet_process_goes_back_to_what_the_interpreter_does() -> None:
    collector = Collector()
    assert collector.collect(0.1, 0.9) > 10 * FULL_AFTER_MIN
    for _ in range(3):
        collector.collect(60.0, 0.1)
    assert collector.thresholds[2] == FULL_AFTER_MIN


def test_it_is_never_rarer_than_that() -> None:
    collector = Collector()
    for _ in range(5):
        collector.collect(0.0, 10.0)
    assert collector.thresholds[2] == FULL_AFTER_MAX


def test_collections_of_younger_generations_say_nothing() -> None:
    collector = Collector()
    for generation in (0, 1):
        assert collector.collect(0.01, 5.0, generation) == FULL_AFTER_MIN


def test_a_clock_that_stands_still_changes_nothing() -> None:
    assert Collector().collect(0.0, 0.0) == FULL_AFTER_MIN


@pytest.fixture
def own_callbacks() -> Iterator[None]:
    callbacks, thresholds = list(gc.callbacks), gc.get_threshold()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("own_callbacks")
def test_the_interpreter_calls_it_and_its_thresholds_are_set() -> None:
    gc.callbacks.clear()
    bound_full_collections()
    bound_full_collections()
    assert len(gc.callbacks) == 1
    gc.set_threshold(700, 10, 1)
    gc.collect(1)
    assert gc.get_threshold() == (700, 10, 1)
    gc.collect()
    first, second, full_after = gc.get_threshold()
    assert (first, second) == (700, 10)
    assert FULL_AFTER_MIN <= full_after <= FULL_AFTER_MAX


@pytest.mark.usefixtures("own_callbacks")
@pytest.mark.parametrize(("took_s", "asked"), [(PAUSE_S_MAX, True), (2 * PAUSE_S_MAX, False)])
def test_nobody_asks_for_a_collection_that_takes_long(took_s: float, asked: bool) -> None:
    gc.callbacks.clear()
    bound_full_collections()
    [bound] = gc.callbacks
    assert isinstance(bound, FullCollections)
    bound.took_s = took_s
    seen: list[int] = []
    gc.callbacks.append(lambda _, info: seen.append(info["generation"]))
    collect_if_short()
    assert seen == ([2, 2] if asked else [])


def test_the_last_one_is_told() -> None:
    times_s = iter([0.0, 5.0, 5.25])
    bound = FullCollections(lambda: next(times_s), set_thresholds=lambda *_: None)
    assert bound.took_s == 0.0
    bound("start", {"generation": 2})
    bound("stop", {"generation": 2})
    assert bound.took_s == 0.25


def test_servers_have_it() -> None:
    """Each calls this first; in a process of its own, whose allocator it may set up."""
    code = (
        "import gc\n"
        "from icecore.process.system import tune_process\n"
        "tune_process()\n"
        "print([type(each).__name__ for each in gc.callbacks])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["['FullCollections']"]
