"""All topics as the coordinator last reported them, for clients that ask a node for leaders.

Changes come in pages, each of which says where it begins and ends; a page that does not follow on
what is known here is no use and changes nothing. A full listing is built beside the topics shown,
and replaces them when it is whole. Pure: ``membership/topic_following.py`` asks for the pages.
"""

from collections.abc import Iterable
from typing import NamedTuple

from icecore.v1 import admin_pb2, mirror_pb2


class MirrorPlace(NamedTuple):
    """Position in the coordinator's changes, from which the next page is asked for."""

    coordinator_epoch: int
    since_version: int
    after_version: int


class _Topic:
    """One topic, and its partitions by number."""

    def __init__(self) -> None:
        self._partitions: dict[int, admin_pb2.PartitionMetadata] = {}
        self._versions: dict[int, int] = {}
        """Version of the page that a partition last came with, by partition number. It has not
        changed since."""
        self._version = 0
        self._header = admin_pb2.TopicMetadata()
        self._whole: admin_pb2.TopicMetadata | None = None

    @property
    def name(self) -> str:
        return self._header.name

    def learn(self, message: admin_pb2.TopicMetadata, version: int) -> None:
        """Partitions that the message does not have stay as they were."""
        self._partitions |= {each.partition: each for each in message.partitions}
        self._versions |= dict.fromkeys((each.partition for each in message.partitions), version)
        self._version = version
        self._header.CopyFrom(message)
        self._header.ClearField("partitions")
        self._whole = None

    def partition(self, number: int) -> admin_pb2.PartitionMetadata | None:
        """One of them; not to be changed."""
        return self._partitions.get(number)

    def message(self) -> admin_pb2.TopicMetadata:
        """All of it; not to be changed."""
        if self._whole is None:
            self._whole = admin_pb2.TopicMetadata()
            self._whole.CopyFrom(self._header)
            found = sorted(self._partitions.items())
            self._whole.partitions.extend(each for _, each in found)
        return self._whole

    def changes(self, since: int) -> admin_pb2.TopicMetadata:
        """Return the partitions that may have changed after a version."""
        found = admin_pb2.TopicMetadata(name=self.name, topic_id=self._header.topic_id)
        if self._version > since:
            found.CopyFrom(self._header)
            numbers = sorted(number for number, at in self._versions.items() if at > since)
            found.partitions.extend(self._partitions[number] for number in numbers)
        found.changes_only = True
        return found


class _Topics:
    """Some topics, by id and by name."""

    def __init__(self) -> None:
        self.by_id: dict[bytes, _Topic] = {}
        self.ids: dict[str, bytes] = {}

    def forget(self, topic_id: bytes) -> None:
        """It is gone, if it was known."""
        topic = self.by_id.pop(topic_id, None)
        if topic is not None:
            self._free(topic.name, topic_id)

    def learn(self, message: admin_pb2.TopicMetadata, version: int) -> None:
        """One that is new, or has changed."""
        topic = self.by_id.setdefault(message.topic_id, _Topic())
        self._free(topic.name, message.topic_id)
        topic.learn(message, version)
        self.ids[message.name] = message.topic_id

    def _free(self, name: str, topic_id: bytes) -> None:
        if self.ids.get(name) == topic_id:
            del self.ids[name]


class TopicMirror:
    """Empty, and of no use, before the last page of the first answer was taken."""

    def __init__(self) -> None:
        self._shown = _Topics()
        self._incoming: _Topics | None = None
        """The full listing that will replace all topics shown, while its pages arrive; None without
        one."""
        self._next = MirrorPlace(0, 0, 0)
        self.coordinator_epoch = 0
        """Epoch of the coordinator whose topics are shown."""
        self.version = 0
        """Version, at that coordinator, up to which all changes are shown. 0 = no topics are
        shown."""
        self._newest_ms = 0.0

    # --- what comes in --------------------------------------------------------------------------

    @property
    def place(self) -> MirrorPlace:
        """Position from which the next page is to be asked for."""
        return self._next

    def take(self, page: mirror_pb2.FollowTopicsResponse) -> bool:
        """Take a page in, if it follows. Return whether it was the last one."""
        topics = self._topics_for(page)
        if topics is None:
            return False
        for topic_id in page.gone_topic_ids:
            topics.forget(topic_id)
        for message in page.topics:
            topics.learn(message, page.version)
        if page.more:
            self._next = MirrorPlace(page.coordinator_epoch, page.since_version, page.version)
            return False
        self._shown, self._incoming = topics, None
        self.coordinator_epoch, self.version = page.coordinator_epoch, page.version
        self._next = MirrorPlace(page.coordinator_epoch, page.version, 0)
        return True

    def _topics_for(self, page: mirror_pb2.FollowTopicsResponse) -> _Topics | None:
        """Return the topics that the page belongs to; None when it does not follow on what is
        known."""
        if page.coordinator_epoch < self._next.coordinator_epoch or (
            page.coordinator_epoch == self.coordinator_epoch and self._is_old(page)
        ):
            return None
        if not page.since_version and not page.after_version:
            self._incoming = _Topics()
            return self._incoming
        if (
            MirrorPlace(page.coordinator_epoch, page.since_version, page.after_version)
            != self._next
        ):
            return None
        return self._shown if page.since_version else self._incoming

    def _is_old(self, page: mirror_pb2.FollowTopicsResponse) -> bool:
        """Return whether the page has no change that is not shown already."""
        return not page.more and page.version < self.version

    # --- what is shown --------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Return whether no topics are shown yet."""
        return not self.version

    def shows(self, topic_id: bytes) -> bool:
        """Return whether a topic is there, and not deleted."""
        return topic_id in self._shown.by_id

    def note_newest(self, now_ms: float) -> None:
        """Note that, at this moment, a coordinator had no newer topics than those shown."""
        self._newest_ms = max(self._newest_ms, now_ms)

    def age_ms(self, now_ms: float) -> int:
        """Return the milliseconds since the topics shown were known to be the newest."""
        return max(0, round(now_ms - self._newest_ms))

    def names(self) -> Iterable[tuple[str, bytes]]:
        """Names and ids of all topics, by name."""
        return sorted(self._shown.ids.items())

    def find(self, name: str) -> admin_pb2.TopicMetadata | None:
        """The topic of this name, None when there is none. Not to be changed."""
        topic = self._shown.by_id.get(self._shown.ids.get(name, b""))
        return topic.message() if topic is not None else None

    def changes(
        self, name: str, coordinator_epoch: int, version: int
    ) -> admin_pb2.TopicMetadata | None:
        """Return the changes of a topic after a version of a coordinator; the whole topic when that
        version is not known here. None when there is no such topic. The result must not be
        changed."""
        topic = self._shown.by_id.get(self._shown.ids.get(name, b""))
        if topic is None or not version or coordinator_epoch != self.coordinator_epoch:
            return self.find(name)
        return topic.changes(version)

    def partition(
        self, topic_id: bytes, name: str, number: int
    ) -> admin_pb2.PartitionMetadata | None:
        """A partition of a topic by its id or, when that is empty, by its name; None when there is
        none. Not to be changed."""
        topic = self._shown.by_id.get(topic_id or self._shown.ids.get(name, b""))
        return topic.partition(number) if topic is not None else None
