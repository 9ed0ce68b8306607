"""Has the segments of an altered topic follow its settings.

Settings hold from the next segment on, and the command that alters them asks for that one at once.
A segment without records can't be rolled, though, and its leader may be away: such ones are asked
for again here. Of sealed segments only the replication factor changes, in their records, a bounded
number at a time; repairs then make the copies that are missing, and surplus ones go.

A coordinator that starts looks once at every topic, so it goes on where the last one stopped.
"""

import logging
from collections.abc import Iterator
from typing import Final

from icecore.model import Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore_coordinator.decisions.sealed_copies import take_factor
from icecore_coordinator.state.cluster_state import ids_in
from icecore_coordinator.state.records import Change, SegmentRecord, TopicRecord
from icecore_coordinator.work.segments.rolls import TailRolls
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

LOOKED_AT_PER_PASS: Final = 10_000
CHANGES_PER_PASS: Final = 128


class AlteredTopics:
    """Keeps the topics that are still to be looked at, and where it is in one of them.

    Args:
        ports: What it works with.
        rolls: Asks leaders, each again only after a while.
    """

    def __init__(self, ports: WorkerPorts, rolls: TailRolls) -> None:
        self._ledger = ports.ledger
        self._rolls = rolls
        self._growing: dict[bytes, None] = {}
        """Topics with segments that may have to roll."""
        self._sealed: dict[bytes, None] = {}
        """Topics with sealed segments that may have another replication factor."""
        self._left: Iterator[SegmentId] | None = None

    def start(self) -> None:
        """Look at every topic, and from now on at those that are altered."""
        self._growing = dict.fromkeys(self._ledger.state.topics)
        self._sealed = dict(self._growing)
        self._ledger.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        for record in change.puts:
            if isinstance(record, TopicRecord):
                self._growing[record.topic_id] = self._sealed[record.topic_id] = None
            elif isinstance(record, SegmentRecord):
                self._note(record.segment)

    def _note(self, segment: Segment) -> None:
        """A successor was prepared before its topic was altered, or a segment sealed after it."""
        topic = self._ledger.state.topics.get(segment.topic_id)
        if topic is None or segment.settings == topic.settings:
            return
        if segment.state == SegmentState.ACTIVE:
            self._growing[topic.topic_id] = None
        elif segment.settings.replication_factor != topic.settings.replication_factor:
            self._sealed[topic.topic_id] = None

    async def look(self) -> None:
        """Ask for some rolls, and change the records of some segments, where any differ."""
        tails = [tail for topic_id in tuple(self._growing) for tail in self._other_tails(topic_id)]
        if tails:
            await self._rolls.roll(tails, "alter_topic")
        if differ := self._other_factors():
            await self._ledger.decide_each(differ, take_factor)
            event(_log, logging.INFO, "replication_factor_taken", segments=len(differ))

    def _other_tails(self, topic_id: bytes) -> list[Segment]:
        """The open segments of a topic that began with other settings; it is forgotten without."""
        state = self._ledger.state
        topic, found = state.topics.get(topic_id), list[Segment]()
        if topic is not None and topic.is_live:
            tails = map(state.tail, state.partitions_of(topic))
            found = [
                tail.segment
                for tail in tails
                if tail is not None and tail.segment.settings != topic.settings
            ]
        if not found:
            del self._growing[topic_id]
        return found

    def _other_factors(self) -> list[SegmentId]:
        """The next sealed segments that have another replication factor than their topic."""
        if self._left is None:
            if not self._sealed:
                return []
            topic_id = next(iter(self._sealed))
            del self._sealed[topic_id]  # altered once more, it is looked at once more
            self._left = self._segments_of(topic_id)
        differ: list[SegmentId] = []
        for _ in range(LOOKED_AT_PER_PASS):
            segment_id = next(self._left, None)
            if segment_id is None:
                self._left = None
                break
            if take_factor(self._ledger.state, segment_id).puts:
                differ.append(segment_id)
                if len(differ) == CHANGES_PER_PASS:
                    break
        return differ

    def _segments_of(self, topic_id: bytes) -> Iterator[SegmentId]:
        state = self._ledger.state
        topic = state.topics.get(topic_id)
        for partition in state.partitions_of(topic) if topic is not None else ():
            yield from tuple(ids_in(state, partition.partition_key))
