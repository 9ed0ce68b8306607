"""SIGTERM ends a benchmark as Ctrl-C does: what it started is stopped, what it wrote removed."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_with(main: Callable[[], int]) -> None:
    """Run ``main`` and end the process with its status."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """For stopping: a second Ctrl-C must not leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
