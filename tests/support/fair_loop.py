"""An asyncio event loop whose clock stands still while other processes have the processor.

A test with a limit of half a second means half a second of *its* work. Beside servers and a JVM on
two cores it would measure the scheduler. So the clock of this loop counts what its thread computed
and how long it asked to wait, and no delay that others caused.
"""

import asyncio
import selectors
import time
from collections.abc import Iterator
from typing import Any

import pytest

from icecore.process.system import SystemClock


class _Clock(selectors.DefaultSelector):
    """The loop waits here and nowhere else, so the time between two waits is time to compute."""

    def __init__(self) -> None:
        super().__init__()
        self._waited_until_s = time.monotonic()
        self._computed_s = time.thread_time()

    def now_s(self) -> float:
        """Seconds since the zero of ``time.monotonic``; never ahead of it, never back."""
        return self._waited_until_s + time.thread_time() - self._computed_s

    def select(self, timeout: float | None = None) -> Any:
        now_s, began_s = self.now_s(), time.monotonic()
        found = super().select(timeout)
        waited_s = time.monotonic() - began_s
        if timeout is not None:
            waited_s = min(waited_s, max(0.0, timeout))
        self._waited_until_s = now_s + waited_s
        self._computed_s = time.thread_time()
        return found


class FairLoop(asyncio.SelectorEventLoop):
    """See the module. It belongs to one thread."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """The clock of all timers and limits of this loop."""
        return self._clock.now_s()


def _monotonic_ms(clock: SystemClock) -> float:
    """Milliseconds of the loop that runs here, so that the product's deadlines agree with it."""
    loop = asyncio._get_running_loop()
    return _REAL(clock) if not isinstance(loop, FairLoop) else loop.time() * 1000


_REAL = SystemClock.monotonic_ms


@pytest.fixture(scope="session", autouse=True)
def fair_clock() -> Iterator[None]:
    """On a ``FairLoop`` the product has the clock of the loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "monotonic_ms", _monotonic_ms)
        yield
