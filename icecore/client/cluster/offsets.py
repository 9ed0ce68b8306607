"""Looking up offsets: earliest, latest, or the first record appended at or after a time.

Append times never go back within a partition, so the segment of a time is found by bisection over
the chain; each question goes to a replica of the segment in the middle.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar

from icecore.client.checks import OFFSET_MAX, wrong_type
from icecore.client.cluster.connection import Backoff, Connection
from icecore.client.cluster.held_segments import find_segments, list_segments
from icecore.client.cluster.metadata import Metadata, topic_recreated
from icecore.client.types import OffsetResult
from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    NotLeaderError,
    NotReplicaError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.model import Segment, SegmentId, SegmentState
from icecore.rpc import convert
from icecore.v1 import data_pb2

Position: TypeAlias = int | datetime | str
"""Position to start or to end at: ``"earliest"`` or ``"latest"``, the ends of the log; an offset;
``-n``, the last n records of each partition; or a time. A time means the first record appended then
or later. It is a datetime with time zone, or a text like ``"2026-11-21T10:00"``, in UTC unless it
says otherwise."""

_T = TypeVar("_T")
_ATTEMPT_S = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_EXPECTED = (
    "earliest, latest, an offset, -n for the last n records, a time with time zone or an ISO 8601 "
    "time"
)


def check_position(position: object) -> None:
    """Raises TypeError, InvalidRequestError."""
    if isinstance(position, bool) or not isinstance(position, int | str | datetime):
        raise wrong_type("a position", position, _EXPECTED)
    if isinstance(position, int) and not -OFFSET_MAX <= position <= OFFSET_MAX:
        raise InvalidRequestError(f"a position is {_EXPECTED}, not {str(position)[:60]!r}")
    _moment_ms(position)


def _moment_ms(position: Position) -> int | None:
    """Return a time as milliseconds since 1970 UTC; None for any other position."""
    if isinstance(position, int) or position in ("earliest", "latest"):
        return None
    if isinstance(position, datetime):
        return position_ms(position)
    try:
        moment = datetime.fromisoformat(position.strip().upper())
    except ValueError:
        raise InvalidRequestError(f"a position is {_EXPECTED}, not {position[:60]!r}") from None
    return position_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def time_position(timestamp_ms: int) -> datetime:
    """The position of milliseconds since 1970 UTC."""
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


def position_ms(position: datetime) -> int:
    """Milliseconds since 1970 UTC. Raises InvalidRequestError without a time zone."""
    if position.tzinfo is None:
        raise InvalidRequestError(f"{position!r} has no time zone")
    return (position - _EPOCH) // timedelta(milliseconds=1)  # as a float it may be 1 ms too early


class ProducerState(NamedTuple):
    """The progress of a producer in a partition."""

    producer_id: int
    next_sequence: int
    oldest_sequence: int
    """Batches before it are not recognised any more."""


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
        if (moment_ms := _moment_ms(position)) is not None:
            return await self.first_since(partition, moment_ms)
        if not isinstance(position, int):
            return await self._find_end(partition, is_latest=position == "latest")
        if position >= 0:
            return OffsetResult(position, -1)
        first = await self._find_end(partition, is_latest=False)
        end = await self._find_end(partition, is_latest=True)
        return OffsetResult(max(first.offset, end.offset + position), -1)

    async def _find_end(self, partition: int, *, is_latest: bool) -> OffsetResult:
        target = data_pb2.ListOffsetsPartition(earliest=True)
        if is_latest:
            target = data_pb2.ListOffsetsPartition(latest=True)
        found = await self._retry(lambda: self._ask_leader(partition, target))
        return OffsetResult(found.offset, found.append_timestamp_ms)

    async def newest_segments(self, partitions: Sequence[int] = ()) -> dict[int, SegmentId]:
        """The segment of each partition that takes appends, or took them last, as the coordinator
        has it now.

        Args:
            partitions: Of these; empty means all.

        Raises:
            TopicRecreatedError: The topic is another one by now.
            IcecoreError: No coordinator answered in time.
        """
        listed = await list_segments(
            self._connection, self._topic, partitions, OFFSET_MAX, timeout_s=self._timeout_s
        )
        for segment in listed:
            self._check_topic(segment.topic_id)
        return {segment.partition: segment.segment_id for segment in listed}

    async def producers(
        self,
        partition: int,
        first_id: int,
        last_id: int,
        epoch: int,
        newest: dict[int, SegmentId],
    ) -> list[ProducerState]:
        """Return how far the producers of these ids have got under an epoch; those that are known,
        by id.

        A leader that has not heard yet that another one leads knows nothing of what the other one
        has appended. So its answer counts only for the segment that the coordinator names (R101).

        Args:
            partition: Where they write.
            first_id: Of the ids.
            last_id: Of the ids.
            epoch: Of the producers.
            newest: As ``newest_segments`` found; what has become of it since is put into it.

        Raises:
            TopicRecreatedError: The topic is another one by now.
            IcecoreError: The topic or partition is unknown, or no leader answered in time.
        """
        asked = data_pb2.ProducerRange(first_id=first_id, last_id=last_id, epoch=epoch)
        target = data_pb2.ListOffsetsPartition(producers=asked)

        async def ask() -> data_pb2.ListOffsetsResult:
            found = await self._ask_leader(partition, target)
            if found.segment_id != newest.get(partition):
                newest.update(await self.newest_segments([partition]))
            if found.segment_id != newest.get(partition):
                raise NotLeaderError(
                    f"who answered for {self._topic}/{partition} led segment {found.segment_id}, "
                    "which is not the newest one"
                )
            return found

        found = await self._retry(ask)
        return [
            ProducerState(each.producer_id, each.next_sequence, each.oldest_sequence)
            for each in found.producers
        ]

    async def first_since(self, partition: int, timestamp_ms: int) -> OffsetResult:
        """The first record appended at that millisecond or later; see ``find``.

        The leader answers by what it holds, which is nearly always all that matters. Append times
        never go back, so that its answer is right if the record before it is older.
        """
        target = data_pb2.ListOffsetsPartition(timestamp_ms=timestamp_ms)
        try:
            best = await self._ask_leader(partition, target)
            is_sure = await self._is_first(partition, timestamp_ms, best)
        except IcecoreError as error:
            if not error.retriable:
                raise
            is_sure = False  # segments that are sealed have others who may be asked
        if not is_sure:
            best = await self._search_segments(partition, timestamp_ms)
        return OffsetResult(best.offset, best.append_timestamp_ms if best.found else -1)

    async def _is_first(
        self, partition: int, timestamp_ms: int, found: data_pb2.ListOffsetsResult
    ) -> bool:
        """Return whether nothing before what a leader has found was appended so late."""
        if found.offset == 0:
            return True
        before = await self._segments(partition, found.offset - 1, limit=1)
        if not before or before[0].segment_id == found.segment_id:
            return bool(before)  # one log was searched, over the border that was found
        segment = before[0]
        if segment.state is not SegmentState.SEALED or segment.is_skipped:
            return segment.state is SegmentState.ACTIVE  # then it is the log that was searched last
        target = data_pb2.ListOffsetsPartition(
            timestamp_ms=timestamp_ms, segment_id=segment.segment_id
        )
        return not (await self._ask_replica(partition, segment, target)).found

    async def _segments(
        self, partition: int, from_offset: int = 0, *, limit: int = 0
    ) -> list[Segment]:
        found = await find_segments(
            self._connection,
            self._metadata,
            self._topic,
            [partition],
            from_offset,
            limit=limit,
            timeout_s=self._timeout_s,
        )
        for segment in found.segments:  # all: it may have been made again between two pages
            self._check_topic(segment.topic_id)
        return found.segments

    async def _search_segments(
        self, partition: int, timestamp_ms: int
    ) -> data_pb2.ListOffsetsResult:
        """Find the offset by binary search over all segments, local or tiered."""
        segments = await self._segments(partition)
        sealed = [s for s in segments if s.state is SegmentState.SEALED and not s.is_skipped]
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
        return best

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        backoff = Backoff(self._connection.rng)
        last: IcecoreError | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await attempt()
                    except IcecoreError as error:
                        if not error.retriable:
                            raise
                        last = error
                    await asyncio.sleep(backoff.next_s(last))
                    await self._metadata.refresh()
        except TimeoutError:
            what = f"{self._topic}: no node said an offset within {self._timeout_s:g} s"
            raise last.again() if last is not None else RequestTimeoutError(what) from None

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
        nodes = [n for n in segment.holders if self._metadata.view.address(n)]
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
        if len(answer.partitions) != 1:
            raise InternalError(
                f"node {node_id} answered {len(answer.partitions)} partitions, one was asked"
            )
        (found,) = answer.partitions
        if (error := convert.error_from_proto(found.error)) is not None:
            raise error
        return found

    def _check_topic(self, topic_id: bytes) -> None:
        self.topic_id = self.topic_id or topic_id
        if topic_id != self.topic_id:
            raise topic_recreated(self._topic, self.topic_id, topic_id)
