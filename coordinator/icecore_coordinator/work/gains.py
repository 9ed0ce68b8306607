"""Rolls that are asked for to gain replicas, and for nothing else: without a gain nothing moves."""

from icecore.model import SegmentId
from icecore.rpc.ports import Clock

ROLL_UP_MS = 4_000.0
"""Shorter than the auditor's wait between two requests to roll a segment."""


class ExpectedGains:
    """Segments that were asked to roll for that, and until when it counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms: dict[SegmentId, float] = {}

    def expect(self, segment_id: SegmentId) -> None:
        """The next roll of this segment, if it comes soon, must gain replicas."""
        now = self._clock.monotonic_ms()
        self._until_ms = {key: at for key, at in self._until_ms.items() if at > now}
        self._until_ms[segment_id] = now + ROLL_UP_MS

    def forget(self, segment_id: SegmentId) -> None:
        """The segment rolls for a better reason now, or has rolled."""
        self._until_ms.pop(segment_id, None)

    def must_gain(self, segment_id: SegmentId) -> bool:
        """Whether the segment was asked to roll for more replicas a moment ago."""
        return self._until_ms.get(segment_id, 0.0) > self._clock.monotonic_ms()
