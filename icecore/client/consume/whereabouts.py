"""Decides where to read on when a node did not serve a partition.

Metadata say who leads the tail and who follows it, so nobody is asked about a reader that has come
that far. For an older segment the coordinator names the replicas, and any of them will do. When a
node dies, thousands of readers at the tail may wait for a leader at once: nothing new can be there
before one is, so all sleep until one question for everybody (``leader_waits.py``) shows it.
"""

import asyncio
import logging
from typing import Final

from icecore.client.cluster.connection import STALE_MS, Backoff, Connection
from icecore.client.cluster.held_segments import find_segments, tail_segment
from icecore.client.cluster.metadata import Metadata, topic_recreated
from icecore.client.consume.reader import Reader
from icecore.errors import (
    CorruptBatchError,
    IcecoreError,
    InternalError,
    NotReplicaError,
    ObjectStoreError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicError,
)
from icecore.model import Segment, SegmentState
from icecore.process.log import event

SUSPICIOUS: Final = (
    InternalError,
    StorageError,
    ObjectStoreError,
    CorruptBatchError,
    UnknownTopicError,
)
"""Another replica or a moment may help against these, but not for ever."""
_LEADERLESS_S: Final = 1.0
"""So long a leader is waited for; then a follower may know of records that came before."""
_TRUSTED_ATTEMPTS: Final = 8
"""In a row that failed; then the coordinator is asked where the tail is."""
_LOCATE_S: Final = 10.0
_DOUBT_MS: Final = 3_000.0
"""Between two questions of who leads, while nodes say that no coordinator hears of them."""
_OTHERS: Final = 3
"""So many servers are asked then, until one knows it newly."""

_log = logging.getLogger(__name__)


class Whereabouts:
    """Finds who can serve a reader.

    Args:
        connection: The way to the cluster.
        metadata: Who leads what.
    """

    def __init__(self, connection: Connection, metadata: Metadata) -> None:
        self._connection = connection
        self._metadata = metadata
        self._doubted_ms = -_DOUBT_MS

    async def find(self, reader: Reader, error: IcecoreError) -> None:
        """Wait as the error asks for, and set where to read next. A reader that is moved meanwhile
        is left alone.

        Raises:
            OffsetOutOfRangeError: The log starts above the offset by now.
            IcecoreError: The topic is not there, or no coordinator answered in time.
        """
        generation = reader.generation
        is_first = reader.attempts == 1
        is_elsewhere = isinstance(error, NotReplicaError)
        if not (is_elsewhere and is_first):
            is_led_now = await self._wait(reader, error)
            if (failure := self._metadata.error(reader.topic)) is not None:
                raise failure
            if generation != reader.generation:
                return
            if is_led_now:
                reader.use_leader()
                return
        reader.node_id = 0
        if is_elsewhere or reader.segment_id or not is_first:
            segment = await self._segment(reader, error)
            if generation != reader.generation:
                return
            if segment is None:
                reader.use_leader()
            else:
                self._go_on(reader, segment)

    async def hear_others(self) -> None:
        """A node that is cut off has answered: ask one server after the other who leads by now,
        until one has heard of a coordinator just now. Nothing if that was tried a moment ago."""
        now_ms = self._connection.clock.monotonic_ms()
        if now_ms < self._doubted_ms + _DOUBT_MS:
            return
        self._doubted_ms = now_ms
        for _ in range(_OTHERS):
            try:
                await self._metadata.refresh(is_newer=True)
            except IcecoreError:
                return  # nobody else is there
            if self._connection.clock.monotonic_ms() - self._metadata.newest_ms <= STALE_MS:
                return

    async def _wait(self, reader: Reader, error: IcecoreError) -> bool:
        """Until another attempt makes sense; whether a leader is there that was not."""
        if self._needs_leader(reader, error):
            return await self._metadata.until_led(reader.topic, reader.partition, _LEADERLESS_S)
        limit_ms = 1000 if isinstance(error, SUSPICIOUS) else 200
        backoff = Backoff(self._connection.rng, 20, limit_ms)
        backoff.attempts = reader.attempts - 1
        await asyncio.sleep(backoff.next_s(error))
        await self._metadata.refresh()
        return False

    def _needs_leader(self, reader: Reader, error: IcecoreError) -> bool:
        """Return whether all that is known of was read, and nobody can append more."""
        is_led = bool(self._metadata.view.leader(reader.topic, reader.partition))
        if is_led or not reader.is_known or reader.is_behind:
            return False
        return self._tail(reader, error) is not None

    def _tail(self, reader: Reader, error: IcecoreError) -> Segment | None:
        """The last segment, when metadata say that the reader has come so far, and nothing speaks
        against it."""
        if isinstance(error, NotReplicaError) or reader.attempts > _TRUSTED_ATTEMPTS:
            return None
        topic = self._metadata.known(reader.topic)
        partition = self._metadata.view.partition(reader.topic, reader.partition)
        if topic is None or partition is None or topic.topic_id != reader.topic_id:
            return None
        is_there = partition.segment_id and reader.offset >= partition.tail_base_offset >= 0
        return tail_segment(topic, partition) if is_there else None

    async def _segment(self, reader: Reader, error: IcecoreError) -> Segment | None:
        """The one that covers the offset; None where nobody knows one."""
        if (tail := self._tail(reader, error)) is not None:
            return tail
        found = await find_segments(
            self._connection,
            self._metadata,
            reader.topic,
            [reader.partition],
            reader.offset,
            limit=1,
            timeout_s=_LOCATE_S,
        )
        return found.segments[0] if found.segments else None

    def _go_on(self, reader: Reader, segment: Segment) -> None:
        if segment.topic_id != reader.topic_id:
            raise topic_recreated(reader.topic, reader.topic_id, segment.topic_id)
        start = max(segment.base_offset, segment.log_start_offset)
        if start > reader.offset:
            raise OffsetOutOfRangeError(
                f"{reader.topic}/{reader.partition} starts at {start}",
                log_start_offset=start,
                high_watermark=max(start, reader.high_watermark),
            )
        if segment.is_skipped:
            if segment.is_lost:
                tell_moved(reader, segment.end_offset, "lost")
                reader.skipped_records += segment.end_offset - reader.offset
            reader.offset = segment.end_offset
            reader.use_leader()
            return
        is_sealed = segment.state is SegmentState.SEALED
        reader.segment_id = segment.segment_id if is_sealed else 0
        reader.node_id = self._choose(reader, segment)

    def _choose(self, reader: Reader, segment: Segment) -> int:
        """The leader while there is one that answers, else any replica; 0 when none is known."""
        view = self._metadata.view
        nodes = [n for n in (segment.leader, *segment.holders) if view.address(n)]
        good = [n for n in nodes if view.is_up(n) and n not in reader.avoided]
        if not good:
            reader.avoided.clear()
            good = nodes
        if not good:
            return 0
        if segment.leader in good:
            return segment.leader
        return good[int(self._connection.rng.random() * len(good))]


def tell_moved(reader: Reader, offset: int, why: str) -> None:
    """Write down that records are passed over."""
    event(
        _log,
        logging.WARNING,
        "records_skipped",
        topic=reader.topic,
        partition=reader.partition,
        offset=reader.offset,
        next_offset=offset,
        why=why,
    )
