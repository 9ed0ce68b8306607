"""Which topic a name means on this node. A name is given again after its topic was deleted.

A node may still lead segments of the old topic when it hears of the new one, for a delete reaches
it with a heartbeat. Segment ids only grow, so the newest segment of a name says which topic has it,
in whatever order records arrive.
"""

from icecore.errors import UnknownTopicError
from icecore.model import Segment


class TopicNames:
    """Learns from every segment record that the node is sent."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, bytes]] = {}

    def learn(self, segment: Segment) -> None:
        """A record was sent here."""
        known = self._newest.get(segment.topic)
        if known is None or segment.segment_id > known[0]:
            self._newest[segment.topic] = (segment.segment_id, segment.topic_id)

    def topic_id(self, topic: str) -> bytes:
        """The topic that has the name, empty when none has."""
        return self._newest.get(topic, (0, b""))[1]

    def check_current(self, segment: Segment) -> None:
        """Raises UnknownTopicError when another topic has the name of this segment's: what would be
        appended to it, nobody could read by that name."""
        if self.topic_id(segment.topic) != segment.topic_id:
            raise UnknownTopicError(
                f"topic {segment.topic} with id {segment.topic_id.hex()} was deleted, and another "
                "one made under its name"
            )
