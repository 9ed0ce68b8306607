"""The last errors with a topic's copies in object storage, for operators.

The errors are not stored: an error that persists occurs again.
"""

from typing import Final

from icecore.rpc.ports import Clock

WHY_MAX: Final = 500
TOPICS_MAX: Final = 10_000
UPLOAD: Final = "upload"
TABLE: Final = "table"
SWEEP: Final = "sweep"
MERGE: Final = "merge"
VERIFY: Final = "verify"


class TieringErrors:
    """By topic and kind of work: the last error and when it was, until the same succeeds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[bytes, dict[str, tuple[str, int]]] = {}

    def note(self, topic_id: bytes, why: str, kind: str = UPLOAD) -> None:
        """Something failed."""
        if topic_id not in self._found and len(self._found) >= TOPICS_MAX:
            return
        of_topic = self._found.setdefault(topic_id, {})
        of_topic.pop(kind, None)
        text = why if kind == UPLOAD else f"{kind}: {why}"
        of_topic[kind] = (text[:WHY_MAX], self._clock.now_ms())

    def forget(self, topic_id: bytes, kind: str = UPLOAD) -> None:
        """The same goes well now."""
        of_topic = self._found.get(topic_id, {})
        of_topic.pop(kind, None)
        if not of_topic:
            self._found.pop(topic_id, None)

    def of(self, topic_id: bytes) -> tuple[str, int]:
        """(why, when by the wall clock) of the newest; empty when nothing is wrong."""
        return next(reversed(self._found.get(topic_id, {}).values()), ("", 0))
