"""Alerts for operators: logged as critical, and shown by ``icecore cluster describe``.

Causes are replicas that differ where they must not, an end below what readers have seen, or a
damaged last copy. The coordinator stops there instead of choosing. The alerts since its start are
kept in memory, newest last; a cause that persists raises its alert again. One whose end can be
seen goes by itself.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock

_log = logging.getLogger(__name__)

ALERTS_MAX = 100
WHY_MAX = 1_000
"""Most characters of an alert: some of its text comes from nodes."""


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    """One thing to look at, and when it was found first and last."""

    segment_id: SegmentId
    why: str
    first_at_ms: int
    last_at_ms: int


class Alerts:
    """The newest alerts; the same one again only moves its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._alerts: dict[tuple[SegmentId, str], RaisedAlert] = {}
        self._waits: dict[tuple[SegmentId, str], Callable[[], bool]] = {}
        """Functions that return whether an alert still holds, by alert; some alerts have none."""

    def __iter__(self) -> Iterator[RaisedAlert]:
        for key, waits in list(self._waits.items()):
            if not waits():
                self._drop(key)
        return iter(list(self._alerts.values()))

    def raise_alert(
        self, segment_id: SegmentId, why: str, waits: Callable[[], bool] | None = None
    ) -> None:
        """Tell a person.

        Args:
            segment_id: Of the segment that it is about; 0 = none.
            why: Tells what was found, and what to do.
            waits: Returns whether it is still so. The alert goes when it is not.
        """
        why = why[:WHY_MAX]
        event(_log, logging.CRITICAL, "alert", segment_id=segment_id, why=why)
        now_ms = self._clock.now_ms()
        found = self._alerts.pop((segment_id, why), RaisedAlert(segment_id, why, now_ms, now_ms))
        self._alerts[segment_id, why] = replace(found, last_at_ms=now_ms)
        if waits is not None:
            self._waits[segment_id, why] = waits
        if len(self._alerts) > ALERTS_MAX:
            self._drop(next(iter(self._alerts)))

    def _drop(self, key: tuple[SegmentId, str]) -> None:
        self._alerts.pop(key, None)
        self._waits.pop(key, None)
