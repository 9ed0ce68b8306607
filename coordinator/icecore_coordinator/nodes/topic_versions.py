"""The last change of each topic, counted in changes: what a node has yet to hear of them.

Versions belong to one coordinator process: another one counts anew, under another coordinator
epoch. What went is remembered for a while, and who was away for longer than that begins anew, as
everybody does at first. Pure.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from icecore_coordinator.state.cluster_state import ClusterState, live_topics
from icecore_coordinator.state.records import (
    Change,
    PartitionKey,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
    is_prepared,
)

GONE_MAX: Final = 10_000
"""Topics that went and are remembered."""


class TopicVersions:
    """Counts changes of topics.

    Args:
        state: The cluster; ``load`` once it is read.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.version = 0
        """Version of the last change; 0 before ``load``."""
        self._forgotten_version = 0
        """Up to it, topics that went may have been forgotten."""
        self._topics: OrderedDict[bytes, int] = OrderedDict()
        """By id the version of the last change, the oldest first. Without those that went."""
        self._partitions: dict[bytes, dict[int, int]] = {}
        """By topic and number."""
        self._gone: OrderedDict[bytes, int] = OrderedDict()

    def load(self) -> None:
        """Everything that there is changed once, now."""
        self.version = 1
        for topic in live_topics(self._state):
            self._note_topic(topic)

    def on_change(self, change: Change) -> None:
        """Count a committed change."""
        for record in change.puts:
            match record:
                case TopicRecord():
                    self._note_topic(record)
                case PartitionRecord():
                    self._note_partition(record.partition_key)
                case SegmentRecord() if not is_prepared(record):
                    partition = self._state.partitions.get(record.partition_key)
                    tail = partition.tail_segment_id if partition is not None else 0
                    if tail == record.segment.segment_id:
                        self._note_partition(record.partition_key)
                case _:
                    pass
        for record in change.deletes:
            if isinstance(record, TopicRecord):
                self._note_gone(record.topic_id)

    def _note_topic(self, topic: TopicRecord) -> None:
        if not topic.is_live:
            self._note_gone(topic.topic_id)
            return
        self._touch(topic.topic_id)
        if topic.topic_id not in self._partitions:  # it is new, or back
            numbers = [each.partition for each in self._state.partitions_of(topic)]
            self._partitions[topic.topic_id] = dict.fromkeys(numbers, self.version)

    def _note_partition(self, key: PartitionKey) -> None:
        topic_id, number = key
        if topic_id in self._partitions:  # else its topic is deleted, or comes with this change
            self._touch(topic_id)
            self._partitions[topic_id][number] = self.version

    def _note_gone(self, topic_id: bytes) -> None:
        if self._topics.pop(topic_id, None) is None:
            return  # and so it was before
        del self._partitions[topic_id]
        self.version += 1
        self._gone[topic_id] = self.version
        if len(self._gone) > GONE_MAX:
            _, self._forgotten_version = self._gone.popitem(last=False)

    def _touch(self, topic_id: bytes) -> None:
        self.version += 1
        self._gone.pop(topic_id, None)
        self._topics[topic_id] = self.version
        self._topics.move_to_end(topic_id)

    # --- what somebody lacks --------------------------------------------------------------------

    def known_since(self, version: int) -> int:
        """The version after which changes are told to who has heard all up to ``version``: the
        same, or 0 when it is not known here what that was."""
        is_known = self._forgotten_version <= version <= self.version
        return version if is_known else 0

    def topics_since(self, version: int) -> list[tuple[bytes, int]]:
        """Topics that changed, or went, after a version, each with its last change, the oldest
        one first. Who begins with nothing (0) has nothing to forget."""
        gone = _newer(self._gone, version) if version else ()
        return sorted([*_newer(self._topics, version), *gone], key=lambda each: each[1])

    def has_changed(self, topic_id: bytes, version: int) -> bool:
        """Return whether a topic that is there changed after a version."""
        return self._topics.get(topic_id, self.version) > version

    def partitions_since(self, topic_id: bytes, version: int) -> frozenset[int]:
        """Numbers of the partitions of a topic that changed after a version."""
        found = self._partitions.get(topic_id, {}).items()
        return frozenset(number for number, at in found if at > version)


def _newer(versions: "OrderedDict[bytes, int]", version: int) -> Iterator[tuple[bytes, int]]:
    """Those above a version, the newest first."""
    for topic_id in reversed(versions):
        if (at := versions[topic_id]) <= version:
            return
        yield topic_id, at
