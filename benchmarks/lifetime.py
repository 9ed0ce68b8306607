"""SIGTERM ends a benchmark as Ctrl-C does: what it started is stopped, what it wrote removed."""

import signal
import sys
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130


def exit_with(main: Callable[[], int]) -> None:
    """Run ``main`` and end the process with its status."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
