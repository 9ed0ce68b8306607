"""Alerts for operators: logged as critical, and shown by ``icecore cluster describe``.

Causes are replicas that differ where they must not, an end below what readers have seen, or a
damaged last copy. The coordinator stops there instead of choosing. The alerts since its start are
kept in memory, newest last; a cause that persists raises its alert again. One whose end can be
seen goes by itself.

Some causes are words that anybody can send, as often as he likes. So each kind of alert has room of
its own, and pushes out none of another kind.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from icecore.model import NO_SEGMENT, SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock

_log = logging.getLogger(__name__)

ALERTS_PER_KIND = 20
WHY_MAX = 1_000
"""Most characters of an alert: some of its text comes from nodes."""


class AlertKind(Enum):
    """The causes of alerts, and how the alerts of each that were too many are called."""

    POSED = "of heartbeats in a node's name"
    NODES = "of nodes that made room"
    UNBORN = "of segments that this metadata store has not given out"
    DIVERGED = "of replicas that differ"
    DIGESTS = "of full digests that differ"
    SEAL = "of seals that members contradict"
    DAMAGED = "of damaged last copies"
    RECLAIM = "of disks that deleting does not help"
    UNDECIDED = "of recoveries that can't be decided"
    LOST = "of segments without any copy"
    PRODUCERS = "of producers that no replica knows"
    STORE = "of object stores"
    METADATA = "of a metadata store without room"
    MISSING = "of published copies that are missing"


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    """One thing to look at, and when it was found first and last."""

    segment_id: SegmentId
    why: str
    first_at_ms: int
    last_at_ms: int


class Alerts:
    """The newest alerts of each kind; the same one again only moves its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kinds: dict[AlertKind, _Kept] = {}

    def __iter__(self) -> Iterator[RaisedAlert]:
        found = [alert for kept in self._kinds.values() for alert in kept.shown()]
        return iter(sorted(found, key=lambda each: each.last_at_ms))

    def raise_alert(
        self,
        kind: AlertKind,
        segment_id: SegmentId,
        why: str,
        waits: Callable[[], bool] | None = None,
    ) -> None:
        """Tell a person.

        Args:
            kind: Of its cause.
            segment_id: Of the segment that it is about; 0 = none.
            why: Tells what was found, and what to do.
            waits: Returns whether it is still so. The alert goes when it is not.
        """
        why = why[:WHY_MAX]
        event(_log, logging.CRITICAL, "alert", segment_id=segment_id, why=why)
        kept = self._kinds.setdefault(kind, _Kept(kind))
        kept.take(segment_id, why, self._clock.now_ms(), waits)


class _Kept:
    """The newest alerts of one kind, and how many others of it there were."""

    def __init__(self, kind: AlertKind) -> None:
        self._kind = kind
        self._alerts: dict[tuple[SegmentId, str], RaisedAlert] = {}
        self._waits: dict[tuple[SegmentId, str], Callable[[], bool]] = {}
        """Functions that return whether an alert still holds, by alert; some alerts have none."""
        self._others: RaisedAlert | None = None
        """The times of those that had no room."""
        self._other_count = 0

    def take(
        self, segment_id: SegmentId, why: str, now_ms: int, waits: Callable[[], bool] | None
    ) -> None:
        """One more, or the same once more; the oldest makes room."""
        key = (segment_id, why)
        found = self._alerts.pop(key, RaisedAlert(segment_id, why, now_ms, now_ms))
        self._alerts[key] = replace(found, last_at_ms=now_ms)
        if waits is not None:
            self._waits[key] = waits
        if len(self._alerts) > ALERTS_PER_KIND:
            oldest = next(iter(self._alerts))
            self._count(self._alerts[oldest])
            self._drop(oldest)

    def shown(self) -> list[RaisedAlert]:
        """Those that still hold, behind one that counts all for which there was no room."""
        for key, waits in list(self._waits.items()):
            if not waits():
                self._drop(key)
        others = [self._others] if self._others is not None else []
        return [*others, *self._alerts.values()]

    def _count(self, gone: RaisedAlert) -> None:
        first_at_ms = self._others.first_at_ms if self._others else gone.first_at_ms
        self._other_count += 1
        self._others = RaisedAlert(
            NO_SEGMENT,
            f"{self._other_count} more alerts {self._kind.value}: the coordinator's log has each "
            "(event=alert)",
            first_at_ms,
            gone.last_at_ms,
        )

    def _drop(self, key: tuple[SegmentId, str]) -> None:
        self._alerts.pop(key, None)
        self._waits.pop(key, None)
