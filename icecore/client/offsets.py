"""Looking up offsets: earliest, latest, or the first record appended at or after a time.

Append times never go back within a partition, so the segment of a time is found by bisection over
the chain; each question goes to a replica of the segment in the middle.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, TypeVar

from icecore.client.checks import wrong_type
from icecore.client.connection import Backoff, Connection
from icecore.client.metadata import Metadata, topic_recreated
from icecore.client.types import OffsetResult
from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    NotLeaderError,
    NotReplicaError,
    UnavailableError,
)
from icecore.model import Segment, SegmentState
from icecore.rpc import convert
from icecore.v1 import admin_pb2, data_pb2

Position: TypeAlias = int | datetime | Literal["earliest", "latest"]
"""Where to start: an offset, the first record appended at or after a time, or an end of the log."""

_T = TypeVar("_T")
_ATTEMPT_S = 5.0


def check_position(position: object) -> None:
    """Raises TypeError, InvalidRequestError."""
    expected = "earliest, latest, an offset from 0 on, or a time with time zone"
    if isinstance(position, datetime):
        position_ms(position)
    elif isinstance(position, bool) or not isinstance(position, int | str):
        raise wrong_type("a position", position, expected)
    elif position not in ("earliest", "latest") and not (
        isinstance(position, int) and 0 <= position < 1 << 63
    ):
        raise InvalidRequestError(f"a position is {expected}, not {str(position)[:60]!r}")


def time_position(timestamp_ms: int) -> datetime:
    """The position of milliseconds since 1970 UTC."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)


def position_ms(position: datetime) -> int:
    """Milliseconds since 1970 UTC. Raises InvalidRequestError without a time zone."""
    if position.tzinfo is None:
        raise InvalidRequestError(f"{position!r} has no time zone")
    return int(position.timestamp() * 1000)


async def list_segments(
    connection: Connection,
    topic: str,
    partitions: Iterable[int] = (),
    from_offset: int = 0,
    *,
    limit: int = 0,
    timeout_s: float = 30.0,
) -> list[Segment]:
    """Segments that end above ``from_offset``, by partition and base offset.

    Args:
        connection: The way to the coordinator.
        topic: Empty means all topics.
        partitions: Empty means all.
        from_offset: Earlier segments are left out.
        limit: At most so many; 0 means all.
        timeout_s: Seconds for all pages together.
    """
    segments: list[Segment] = []
    after = 0
    while True:
        request = admin_pb2.ListSegmentsRequest(
            topic=topic,
            partitions=partitions,
            from_offset=from_offset,
            max_segments=limit,
            after_segment_id=after,
        )
        answer = await connection.admin(
            "ListSegments", request, admin_pb2.ListSegmentsResponse, timeout_s=timeout_s
        )
        segments += map(convert.segment_from_proto, answer.segments)
        if not answer.more or not answer.segments or (limit and len(segments) >= limit):
            return segments
        after = segments[-1].segment_id


class OffsetLookup:
    """Answers questions about offsets of one topic, retrying until ``timeout_s`` is over.

    It stays with the topic that it asked about first: one made again under the name is another.
    """

    def __init__(
        self, connection: Connection, metadata: Metadata, topic: str, *, timeout_s: float = 30.0
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._topic = topic
        self._timeout_s = timeout_s
        self.topic_id = b""
        """Empty before the first question."""

    async def find(self, partition: int, position: Position) -> OffsetResult:
        """The offset of ``position``; a plain offset is its own answer.

        Raises:
            TypeError, InvalidRequestError: It is no position.
            TopicRecreatedError: The topic is another one by now.
            IcecoreError: The topic or partition is unknown, or nobody could answer in time.
        """
        check_position(position)
        if isinstance(position, datetime):
            return await self.first_since(partition, position_ms(position))
        if isinstance(position, int):
            return OffsetResult(position, -1)
        target = data_pb2.ListOffsetsPartition(latest=True)
        if position == "earliest":
            target = data_pb2.ListOffsetsPartition(earliest=True)
        found = await self._retry(lambda: self._ask_leader(partition, target))
        return OffsetResult(found.offset, found.append_timestamp_ms)

    async def first_since(self, partition: int, timestamp_ms: int) -> OffsetResult:
        """The first record appended at that millisecond or later; see ``find``."""
        segments = await list_segments(
            self._connection, self._topic, [partition], timeout_s=self._timeout_s
        )
        for segment in segments:  # all: the topic may have been made again between two pages
            self._check_topic(segment.topic_id)
        sealed = [s for s in segments if s.state is SegmentState.SEALED and not s.is_lost]
        best: data_pb2.ListOffsetsResult | None = None
        low, high = 0, len(sealed)
        while low < high:
            middle = (low + high) // 2
            segment = sealed[middle]
            target = data_pb2.ListOffsetsPartition(
                timestamp_ms=timestamp_ms, segment_id=segment.segment_id
            )
            found = await self._retry(
                lambda s=segment, t=target: self._ask_replica(partition, s, t)  # type: ignore[misc]
            )
            if found.found:
                best, high = found, middle
            else:
                low = middle + 1
        if best is None:
            target = data_pb2.ListOffsetsPartition(timestamp_ms=timestamp_ms)
            best = await self._retry(lambda: self._ask_leader(partition, target))
        return OffsetResult(best.offset, best.append_timestamp_ms if best.found else -1)

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        end_ms = self._connection.deadline_ms(self._timeout_s)
        backoff = Backoff(self._connection.rng)
        while True:
            try:
                return await attempt()
            except IcecoreError as error:
                delay_s = backoff.next_s(error)
                past = self._connection.clock.monotonic_ms() + delay_s * 1000 >= end_ms
                if past or not error.retriable:
                    raise
            await asyncio.sleep(delay_s)
            await self._metadata.refresh()

    async def _ask_leader(
        self, partition: int, target: data_pb2.ListOffsetsPartition
    ) -> data_pb2.ListOffsetsResult:
        await self._metadata.topic(self._topic, timeout_s=self._timeout_s)
        leader = self._metadata.view.leader(self._topic, partition)
        if not leader:
            raise NotLeaderError(f"{self._topic}/{partition} has no leader at the moment")
        return await self._ask(leader, partition, target)

    async def _ask_replica(
        self, partition: int, segment: Segment, target: data_pb2.ListOffsetsPartition
    ) -> data_pb2.ListOffsetsResult:
        nodes = [n for n in segment.replicas if self._metadata.view.address(n)]
        up = [n for n in nodes if self._metadata.view.is_up(n)] or nodes
        if not up:
            raise NotReplicaError(f"no replica of segment {segment.segment_id} is known")
        chosen = up[int(self._connection.rng.random() * len(up))]
        return await self._ask(chosen, partition, target)

    async def _ask(
        self, node_id: int, partition: int, target: data_pb2.ListOffsetsPartition
    ) -> data_pb2.ListOffsetsResult:
        topic = await self._metadata.topic(self._topic, timeout_s=self._timeout_s)
        self._check_topic(topic.topic_id)
        address = self._metadata.view.address(node_id)
        if address is None:
            raise UnavailableError(f"the address of node {node_id} is unknown")
        question = data_pb2.ListOffsetsPartition(topic_id=topic.topic_id, partition=partition)
        question.MergeFrom(target)
        answer = await self._connection.data(
            address,
            "ListOffsets",
            data_pb2.ListOffsetsRequest(
                cluster_id=self._metadata.view.cluster_id, partitions=[question]
            ),
            data_pb2.ListOffsetsResponse,
            timeout_s=_ATTEMPT_S,
        )
        (found,) = answer.partitions or (data_pb2.ListOffsetsResult(),)
        if (error := convert.error_from_proto(found.error)) is not None:
            raise error
        return found

    def _check_topic(self, topic_id: bytes) -> None:
        self.topic_id = self.topic_id or topic_id
        if topic_id != self.topic_id:
            raise topic_recreated(self._topic, self.topic_id, topic_id)
