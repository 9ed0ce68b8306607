"""Which logs have something to be tended: noted by whoever changes them, taken by who tends them.

Only single operations of dicts, so that a writer of a log waits for nobody.
"""

from icecore.model import SegmentId


class IndexDue:
    """Two sets in the order in which they were noted."""

    def __init__(self) -> None:
        self._full: dict[SegmentId, None] = {}
        self._due: dict[SegmentId, None] = {}

    def note(self, segment_id: SegmentId) -> None:
        """It has gaps, was sealed, or may have leftovers."""
        self._due[segment_id] = None

    def note_full(self, segment_id: SegmentId) -> None:
        """It has recent entries for a run, which take memory: these come first."""
        self._full[segment_id] = None

    def take_full(self) -> SegmentId | None:
        """The next one."""
        return _take(self._full)

    def take(self) -> SegmentId | None:
        """The next one."""
        return _take(self._due)


def _take(noted: dict[SegmentId, None]) -> SegmentId | None:
    for segment_id in list(noted):
        noted.pop(segment_id, None)
        return segment_id
    return None
