"""Rolls that are asked for to gain replicas, and for nothing else: without a gain nothing moves."""

from icecore.model import SegmentId
from icecore.rpc.ports import Clock


class ExpectedGains:
    """Segments that were asked to roll for that, and until when it counts.

    Args:
        clock: The time.
        keep_ms: How long it counts: less than the wait between two requests to roll a segment.
    """

    def __init__(self, clock: Clock, keep_ms: float) -> None:
        self._clock = clock
        self._keep_ms = keep_ms
        self._until_ms: dict[SegmentId, float] = {}

    def expect(self, segment_id: SegmentId) -> None:
        """The next roll of this segment, if it comes soon, must gain replicas."""
        now = self._clock.monotonic_ms()
        self._until_ms = {key: at for key, at in self._until_ms.items() if at > now}
        self._until_ms[segment_id] = now + self._keep_ms

    def forget(self, segment_id: SegmentId) -> None:
        """The segment rolls for a better reason now, or has rolled."""
        self._until_ms.pop(segment_id, None)

    def must_gain(self, segment_id: SegmentId) -> bool:
        """Return whether the segment was asked to roll for more replicas a moment ago."""
        return self._until_ms.get(segment_id, 0.0) > self._clock.monotonic_ms()
