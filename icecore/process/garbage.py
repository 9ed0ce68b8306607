"""Bounds the time that the interpreter's garbage collector takes in a process with much in memory.

A collection of the oldest generation looks at every container there is, and comes after every tenth
collection of the middle one when a quarter has been added. In a node with ten thousand partitions,
while those of another are failed over to it, that was half of the interpreter's time. So it comes
more rarely where it takes more than a share of the time, and as ever where it takes less.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

FULL_SHARE_MAX: Final = 0.01
"""Maximum share of the time that full collections may take; their distance follows from it."""
FULL_AFTER_MIN: Final = 10
"""Collections of the middle generation between two full ones; what the interpreter begins with."""
FULL_AFTER_MAX: Final = 1_000
"""Maximum of the same: old garbage may hold memory until the next full collection."""
PAUSE_S_MAX: Final = 0.05
"""Nothing else runs during a collection, so nobody asks for one that takes longer."""


class FullCollections:
    """A callback of the collector (``gc.callbacks``) that sets how rare full collections are.

    Args:
        now_s: A clock that never goes back.
        thresholds, set_thresholds: The collector's own.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.perf_counter,
        thresholds: Callable[[], tuple[int, int, int]] = gc.get_threshold,
        set_thresholds: Callable[[int, int, int], None] = gc.set_threshold,
    ) -> None:
        self._now_s = now_s
        self._thresholds, self._set_thresholds = thresholds, set_thresholds
        self._began_s = self._ended_s = now_s()
        self.took_s = 0.0
        """The last full one."""

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """A collection begins or ends."""
        if info["generation"] != 2:  # the oldest
            return
        now_s = self._now_s()
        if phase == "start":
            self._began_s = now_s
            return
        self.took_s = took_s = now_s - self._began_s
        since_s, self._ended_s = now_s - self._ended_s, now_s
        first, second, full_after = self._thresholds()
        if since_s > 0:
            wanted = round(full_after * took_s / since_s / FULL_SHARE_MAX)
            kept = min(max(wanted, FULL_AFTER_MIN), FULL_AFTER_MAX)
            self._set_thresholds(first, second, kept)


def bound_full_collections() -> None:
    """Do so in this process, from now on; once is enough."""
    if not any(isinstance(each, FullCollections) for each in gc.callbacks):
        gc.callbacks.append(FullCollections())


def collect_if_short() -> None:
    """A full collection now, unless the last one held up the process for long. With much in memory
    it does; then garbage goes with the next one that comes by itself."""
    bounds = [each for each in gc.callbacks if isinstance(each, FullCollections)]
    if all(each.took_s <= PAUSE_S_MAX for each in bounds):
        gc.collect()


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector from running in this block, which makes no garbage. The collector would
    look through all of it again and again, and take a sixth of a coordinator's start."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
