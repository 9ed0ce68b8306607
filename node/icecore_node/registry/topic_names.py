"""Names of topics, as the coordinator last reported them, and which topics are deleted.

Names belong to topics, not to segments: a deleted topic gives its name back, another one may take
it, and an undeleted one may come back under a new name. Until a deleted topic's grace is over its
replicas are here, kept and repaired like any others, but no client may read or write them.

A node may hear of a new topic before it hears that the one of that name before is deleted, and of
segments in any order. Segment ids only grow, so the newest segment says which topic has the name.
"""

from icecore.errors import UnknownTopicError
from icecore.model import Segment


class TopicNames:
    """Topic ids by name, and the deleted topics, which clients may not use."""

    def __init__(self) -> None:
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._newest: dict[bytes, int] = {}
        """Newest segment seen of each topic."""
        self._deleted: set[bytes] = set()

    def learn(self, segment: Segment) -> None:
        """A record was sent here; its name is of the moment when it was sent."""
        topic_id = segment.topic_id
        self._newest[topic_id] = max(segment.segment_id, self._newest.get(topic_id, 0))
        holder = self._ids.get(segment.topic)
        if holder is not None and self._newest.get(holder, 0) > segment.segment_id:
            return
        self.note(topic_id, segment.topic)

    def note(self, topic_id: bytes, name: str) -> None:
        """The topic is called so now. Deleted topics have no name: empty changes nothing."""
        if not name:
            return
        self._forget(topic_id)
        self._ids[name] = topic_id
        self._names[topic_id] = name

    def note_deleted(self, topic_id: bytes, *, is_deleted: bool) -> None:
        """The topic is deleted, or is back."""
        if is_deleted:
            self._forget(topic_id)
            self._deleted.add(topic_id)
        else:
            self._deleted.discard(topic_id)

    def _forget(self, topic_id: bytes) -> None:
        name = self._names.pop(topic_id, "")
        if self._ids.get(name) == topic_id:
            del self._ids[name]

    def id_for_client(self, topic_id: bytes, name: str) -> bytes:
        """The id that a request means: the one it gives or, without, the one of its name.

        Raises UnknownTopicError when that topic is deleted.
        """
        found = topic_id or self._ids.get(name, b"")
        if found in self._deleted:
            raise UnknownTopicError(f"topic {name or found.hex()!r} is deleted", topic=name)
        return found

    def name_of(self, topic_id: bytes) -> str:
        """The name of a topic, empty when it is not known here."""
        return self._names.get(topic_id, "")

    def check_current(self, topic_id: bytes) -> None:
        """Raises UnknownTopicError when another topic has the name of this one: records appended to
        this one could not be read by that name."""
        name = self._names.get(topic_id)
        if name is not None and self._ids.get(name) != topic_id:
            raise UnknownTopicError(
                f"topic {name} with id {topic_id.hex()} was deleted, and another one made under "
                "its name"
            )
