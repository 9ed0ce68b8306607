"""The segments of a topic's partitions as a look-up needs them, kept from one question to the next.

What is sealed does not change, so only the newest segments are asked for again, at most once a
second. Of sealed ones only a merge makes others: what is new replaces all that it overlaps, and a
chain that has a hole then is asked for as a whole. A leader whose segment was sealed since says so,
and whoever asked it asks here again: a record that was acknowledged before a question is missed
only where a leader that was replaced within that second has not heard of it, and the answer says
how far it looked. Copies may move, and retention deletes segments; who finds a segment elsewhere
asks for all of them again.
"""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from icecore.client.cluster.connection import Connection, all_of
from icecore.client.cluster.held_segments import find_segments, is_gap
from icecore.client.cluster.metadata import Metadata, topic_recreated
from icecore.model import Segment, SegmentState

AGE_MS: Final = 1_000.0
"""How old may be what is known of the newest segments."""
CALLS_MAX: Final = 16
"""Under way at a time."""


class SegmentChains:
    """The segments of one topic, cached as a chain per partition.

    Args:
        connection: The way to the cluster.
        metadata: Of the topic.
        topic: Its name.
    """

    def __init__(self, connection: Connection, metadata: Metadata, topic: str) -> None:
        self._connection = connection
        self._metadata = metadata
        self._topic = topic
        self._topic_id = b""
        self._chains: dict[int, dict[int, Segment]] = {}
        """Segments by partition and number; a placeholder for a gap has a negative number."""
        self._asked_ms: dict[int, float] = {}
        """When a coordinator was last asked, by partition."""
        self._newest_ms: dict[int, float] = {}
        """When a coordinator last confirmed the cached segments as the newest, by partition."""

    def of(self, partition: int) -> list[Segment]:
        """Its segments by base offset, as last seen."""
        found = self._chains.get(partition, {})
        return sorted(found.values(), key=lambda each: each.base_offset)

    def newest_ms(self, partition: int) -> float:
        """A moment of the monotonic clock: what is known here was the newest then."""
        return self._newest_ms.get(partition, 0.0)

    async def refresh(
        self, topic_id: bytes, partitions: Sequence[int], *, is_whole: bool, timeout_s: float
    ) -> None:
        """Ask for what is new, if that is long ago.

        Args:
            topic_id: Of the topic that is meant.
            partitions: Of these.
            is_whole: Now, and also for what was known already.
            timeout_s: For all of it.

        Raises:
            TopicRecreatedError: The topic is another one by now.
            IcecoreError: No coordinator answered in time.
        """
        if topic_id != self._topic_id:
            self._topic_id, self._chains = topic_id, {}
            self._asked_ms, self._newest_ms = {}, {}
        now_ms = self._connection.clock.monotonic_ms()
        wanted: dict[int, list[int]] = {}
        for partition in partitions:
            if not is_whole and now_ms - self._asked_ms.get(partition, -AGE_MS) < AGE_MS:
                continue
            wanted.setdefault(0 if is_whole else self._open_offset(partition), []).append(partition)
        found: list[Segment] = []
        places = asyncio.Semaphore(CALLS_MAX)

        async def ask(from_offset: int, some: list[int]) -> None:
            async with places:
                asked_ms = self._connection.clock.monotonic_ms()
                answer = await find_segments(
                    self._connection,
                    self._metadata,
                    self._topic,
                    some,
                    from_offset,
                    timeout_s=timeout_s,
                )
            found.extend(answer.segments)
            # On its way the answer grew older.
            self._newest_ms |= dict.fromkeys(some, asked_ms - answer.age_ms)

        await all_of(ask(from_offset, some) for from_offset, some in wanted.items())
        starts = {each: self._start(each) for some in wanted.values() for each in some}
        for partition in [each for some in wanted.values() for each in some]:
            self._asked_ms[partition] = now_ms
            known = {} if is_whole else self._chains.get(partition, {})
            sealed = {
                number: each for number, each in known.items() if each.state is SegmentState.SEALED
            }
            self._chains[partition] = {} if _has_gap(known) else sealed
        for segment in found:
            if segment.topic_id != topic_id:
                raise topic_recreated(self._topic, topic_id, segment.topic_id)
            chain = self._chains.setdefault(segment.partition, {})
            for number in [n for n, each in chain.items() if _overlap(each, segment)]:
                del chain[number]
            chain[-1 - segment.base_offset if is_gap(segment) else segment.segment_id] = segment
        holed = [
            each
            for each, start in starts.items()
            if self._start(each) > start or _has_hole(self.of(each))
        ]
        if holed and not is_whole:
            await self.refresh(topic_id, holed, is_whole=True, timeout_s=timeout_s)

    def _start(self, partition: int) -> int:
        """From which offset on the partition is known, sealed; 0 when it is not."""
        known = (each for each in self.of(partition) if each.state is SegmentState.SEALED)
        return next((each.base_offset for each in known), 0)

    def _open_offset(self, partition: int) -> int:
        """From which offset on the partition may have changed."""
        chain = self._chains.get(partition, {})
        sealed = [each for each in chain.values() if each.state is SegmentState.SEALED]
        return 0 if _has_gap(chain) else max((each.end_offset for each in sealed), default=0)


def _overlap(one: Segment, other: Segment) -> bool:
    """Return whether two segments of a partition have an offset in common; -1 is an open end, and
    what is only prepared has none."""
    if SegmentState.PREPARED in (one.state, other.state):
        return one.segment_id == other.segment_id
    return (one.end_offset < 0 or other.base_offset < one.end_offset) and (
        other.end_offset < 0 or one.base_offset < other.end_offset
    )


def _has_hole(chain: Sequence[Segment]) -> bool:
    """Return whether offsets between two segments are in none: a search would step over them."""
    opened = [each for each in chain if each.state is not SegmentState.PREPARED]
    return any(each.end_offset != after.base_offset for each, after in pairwise(opened))


def _has_gap(chain: dict[int, Segment]) -> bool:
    """Return whether somebody may say more of it, so that all of it is asked for again."""
    return any(map(is_gap, chain.values()))
