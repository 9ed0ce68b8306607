"""Tells a program what is tried again and why: by the log, and by a function of its own.

Nothing that passes ends a client, so without this a full disk or a cluster that is gone would look
like a client that does nothing. Each retry is counted and told to the program's function. The log
has one line per reason at a time: a cluster with a thousand partitions fails a thousand times at
once, for one reason. What has been going on for long enough to be noticed is a warning.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from icecore.client.checks import wrong_type
from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore.rpc.ports import Clock

PATIENCE_S: Final = 3.0
"""A retry that lasts longer is logged as a warning; most leaders are replaced sooner."""
DISTANCE_S: Final = 10.0
"""Seconds between two log lines for the same reason."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retry:
    """Something that failed and is tried again."""

    topic: str
    """Empty when a coordinator is asked."""
    partition: int
    """-1 when a coordinator is asked."""
    error: IcecoreError
    waited_s: float
    """Since it was tried first; of a producer, since the oldest record that waits was sent."""
    left_s: float | None
    """Until it is given up; None = it never is."""


OnRetry: TypeAlias = Callable[[Retry], object]
"""A function of the program that is told of each."""


class Retries:
    """The retries of one client.

    Args:
        clock: For how long something has been going on.
        on_retry: Called with each.

    Raises:
        TypeError: It can't be called.
    """

    def __init__(self, clock: Clock, on_retry: OnRetry | None) -> None:
        self._clock = clock
        self._on_retry = callback("on_retry", on_retry)
        self._told: dict[tuple[str, int], tuple[float, int]] = {}
        self.count = 0
        self.last: Retry | None = None

    def note(
        self,
        error: IcecoreError,
        *,
        topic: str = "",
        partition: int = -1,
        since_ms: float,
        until_ms: float | None = None,
    ) -> None:
        """It will be tried again. Both times are of the monotonic clock."""
        now_ms = self._clock.monotonic_ms()
        left_s = None if until_ms is None else max(0.0, (until_ms - now_ms) / 1000)
        retry = Retry(topic, partition, error, (now_ms - since_ms) / 1000, left_s)
        self.count, self.last = self.count + 1, retry
        if self._on_retry is not None:
            call_back(self._on_retry, retry)
        level = logging.WARNING if retry.waited_s >= PATIENCE_S else logging.INFO
        self._tell(retry, level, now_ms)

    def _tell(self, retry: Retry, level: int, now_ms: float) -> None:
        about = (retry.error.reason, level)
        told_ms, untold = self._told.get(about, (now_ms - DISTANCE_S * 1000, 0))
        if now_ms - told_ms < DISTANCE_S * 1000:
            self._told[about] = told_ms, untold + 1
            return
        self._told[about] = now_ms, 0
        event(
            _log,
            level,
            "retrying",
            topic=retry.topic or None,
            partition=retry.partition if retry.topic else None,
            why=retry.error.reason,
            error=retry.error,
            waited_s=round(retry.waited_s, 1),
            left_s=None if retry.left_s is None else round(retry.left_s, 1),
            others=untold,
        )


def callback(name: str, given: Any) -> Any:
    """A function of the program, or None. Raises TypeError."""
    if given is not None and not callable(given):
        raise wrong_type(name, given, "a function, or None")
    return given


def call_back(function: Callable[..., object], *arguments: object) -> None:
    """Call a function of the program; what it raises is told, and is nobody else's failure."""
    try:
        function(*arguments)
    except Exception as error:
        event(_log, logging.ERROR, "callback_failed", error=error, exc_info=error)
    except SystemExit:
        if threading.current_thread() is threading.main_thread():
            raise
        # It would end no program, but whatever the client does on this thread.
        why = "sys.exit() ends no program here: a callback runs on the client's own thread"
        event(_log, logging.ERROR, "callback_failed", error=why)
