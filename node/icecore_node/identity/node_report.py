"""The part of the next heartbeat that tells of segments, collected from the parts of the node.

``membership/heartbeats.py`` puts the whole heartbeat together; ``membership/disk_report.py`` adds
what it says of disks.

Each heartbeat empties the report. A new stream begins with what still holds (``InitialReport``);
heartbeats that were lost are not repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from icecore.model import SegmentId


class LedLog(NamedTuple):
    """High watermark and length of a segment that this node leads."""

    high_watermark: int
    length_bytes: int
    """Length of the durable part of the log here."""


class InitialReport(NamedTuple):
    """State of this node, sent in the first heartbeat of each stream."""

    unknown_ids: list[SegmentId]
    """Segments whose copy here counts for nothing."""
    led: dict[SegmentId, LedLog]
    """Logs that this node leads, by segment."""
    fenced_ids: Sequence[SegmentId] = ()
    """ACTIVE segments that a promise keeps this node out of."""


@dataclass(slots=True)
class News:
    """Changes to report in one heartbeat. Ids are in the order in which they were reported, each
    once."""

    led: dict[SegmentId, LedLog] = field(default_factory=dict)
    """Logs that this node leads and that have changed, by segment."""
    unknown: dict[SegmentId, None] = field(default_factory=dict)
    diverged: dict[SegmentId, None] = field(default_factory=dict)
    fenced: dict[SegmentId, None] = field(default_factory=dict)
    deleted: dict[SegmentId, None] = field(default_factory=dict)
    vanished: Sequence[SegmentId] = ()
    """Those of ``unknown`` of which nothing is left here."""


class NodeReport:
    """Loop only."""

    def __init__(self) -> None:
        self._news = News()
        self.is_full = False
        """No disk takes records any more. Not said in a heartbeat: probes ask for it."""
        self.read_only = False
        """The disks are getting full: no new replicas, please."""
        self.crowded: list[SegmentId] = []
        """Segments that grow on a disk that is getting full, while others are not."""
        self._vanished: dict[SegmentId, None] = {}
        """Segments that were here in the memory of an earlier process, and are not again yet."""

    def begin(self, standing: InitialReport) -> None:
        """A new stream: all of it, not only what is new, for a coordinator that was restarted
        knows none (R32). Divergences are reported once and not kept."""
        self._news = News(
            led=dict(standing.led),
            unknown=dict.fromkeys((*standing.unknown_ids, *self._vanished)),
            diverged=self._news.diverged,
            fenced=dict.fromkeys(standing.fenced_ids),
        )

    def take(self) -> News:
        """All that is to be said now."""
        news, self._news = self._news, News()
        news.vanished = [each for each in news.unknown if each in self._vanished]
        return news

    def watermark_moved(self, segment_id: SegmentId, log: LedLog) -> None:
        """Report the new high watermark and length of a segment led here."""
        self._news.led[segment_id] = log

    def report_unknown(self, segment_id: SegmentId) -> None:
        """A replica here is damaged or missing."""
        self._news.unknown[segment_id] = None

    def report_vanished(self, segment_id: SegmentId) -> None:
        """A replica was in memory only, and an earlier process took it along. A copy that takes its
        place and does not become whole changes nothing about that."""
        self._vanished[segment_id] = None
        self.report_unknown(segment_id)

    def forget_vanished(self, segment_id: SegmentId) -> None:
        """There is a whole replica."""
        self._vanished.pop(segment_id, None)

    def forget_unknown(self, segment_id: SegmentId) -> None:
        """There is a whole replica, or room for a copy: an earlier report holds no longer."""
        self._news.unknown.pop(segment_id, None)

    def report_divergence(self, segment_id: SegmentId) -> None:
        """A replica here differs from another one, although neither is damaged."""
        self._news.diverged[segment_id] = None

    def report_deleted(self, segment_id: SegmentId) -> None:
        """Nothing is here any more of a segment that was ordered to be deleted. Said once: the next
        stream begins with all orders that the coordinator did not hear this of."""
        self._news.deleted[segment_id] = None
        self.forget_vanished(segment_id)

    def report_fenced(self, segment_id: SegmentId) -> None:
        """An ACTIVE segment is shut for this node by a promise."""
        self._news.fenced[segment_id] = None
