"""Alerts for operators: logged as critical, and shown by ``icecore cluster describe``.

Causes are replicas that differ where they must not, an end below what readers have seen, or a
damaged last copy. The coordinator stops there instead of choosing. The alerts since its start are
kept in memory, newest last; a cause that persists raises its alert again.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock

_log = logging.getLogger(__name__)

PAGES_MAX = 100


@dataclass(frozen=True, slots=True)
class Page:
    """One thing to look at, and when it was found first and last."""

    segment_id: SegmentId
    why: str
    first_at_ms: int
    last_at_ms: int


class Pages:
    """The newest pages; the same one again only moves its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: dict[tuple[SegmentId, str], Page] = {}

    def __iter__(self) -> Iterator[Page]:
        return iter(list(self._pages.values()))

    def page(self, segment_id: SegmentId, why: str) -> None:
        """Tell a person."""
        event(_log, logging.CRITICAL, "page", segment_id=segment_id, why=why)
        now_ms = self._clock.now_ms()
        found = self._pages.pop((segment_id, why), Page(segment_id, why, now_ms, now_ms))
        self._pages[segment_id, why] = replace(found, last_at_ms=now_ms)
        if len(self._pages) > PAGES_MAX:
            del self._pages[next(iter(self._pages))]
