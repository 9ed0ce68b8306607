"""The segments of a partition, from a coordinator; from the nodes that hold them while it is away.

A node knows only those that it holds, so the answers of all nodes are joined. Records that nobody
has spoken for are a segment without a number that nobody holds: who looks for them finds that they
can't be read at the moment, never that there are none.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from icecore.client.cluster.connection import Connection
from icecore.client.cluster.metadata import Metadata
from icecore.client.types import PartitionMetadata, TopicMetadata
from icecore.errors import (
    IcecoreError,
    NotCoordinatorError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.model import (
    EPOCH_STEP,
    NO_SEGMENT,
    OFFSETS_LEFT_OUT,
    Epoch,
    NodeId,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.rpc import convert
from icecore.rpc.methods import ADMIN
from icecore.v1 import admin_pb2

PATIENCE_S: Final = 1.5
"""Seconds to wait for a coordinator before nodes are asked."""
_ATTEMPT_S: Final = 3.0


class FoundSegments(NamedTuple):
    """Segments as a coordinator or nodes know them."""

    segments: list[Segment]
    age_ms: int
    """How long ago a coordinator said that this was the newest; 0 when it says so itself."""


_AWAY = (UnavailableError, RequestTimeoutError, NotCoordinatorError)


async def find_segments(
    connection: Connection,
    metadata: Metadata,
    topic: str,
    partitions: Sequence[int],
    from_offset: int = 0,
    *,
    limit: int = 0,
    timeout_s: float,
) -> FoundSegments:
    """Segments that end above ``from_offset``, by partition and base offset.

    Args:
        connection: The way to the cluster.
        metadata: Which nodes there are, and the tails of partitions.
        topic: Its name.
        partitions: Of these.
        from_offset: Earlier segments are left out.
        limit: At most so many; 0 = all.
        timeout_s: Seconds for all of it.

    Raises:
        IcecoreError: Neither a coordinator nor a node answered in time.
    """

    async def ask(within_s: float) -> FoundSegments:
        listed = await list_segments(
            connection, topic, partitions, from_offset, limit=limit, timeout_s=within_s
        )
        return FoundSegments(listed, 0)

    if not metadata.view.nodes:
        return await ask(timeout_s)
    away: IcecoreError | None = None
    if not connection.is_coordinator_away:
        try:
            return await ask(min(timeout_s, PATIENCE_S))
        except _AWAY as error:
            connection.note_away()
            away = error
        except IcecoreError as error:
            if not error.retriable or timeout_s <= PATIENCE_S:
                raise
            return await ask(timeout_s - PATIENCE_S)
    known = metadata.known(topic) or await metadata.topic(topic, timeout_s=timeout_s)
    request = admin_pb2.ListSegmentsRequest(
        topic=topic,
        partitions=partitions,
        from_offset=from_offset,
        max_segments=limit,
        held_only=True,
    )
    found = await _ask_nodes(connection, metadata, request, min(timeout_s, _ATTEMPT_S))
    if found is None:
        raise away or connection.no_answer(timeout_s)
    listed = [
        each
        for number in sorted(partitions)
        if number < len(known.partitions)
        for each in joined(known, known.partitions[number], found.segments, from_offset)
    ]
    return FoundSegments(listed[:limit] if limit else listed, found.age_ms)


async def _ask_nodes(
    connection: Connection,
    metadata: Metadata,
    request: admin_pb2.ListSegmentsRequest,
    timeout_s: float,
) -> FoundSegments | None:
    """Ask all nodes that are up and join their answers; None when no node answers. The age is that
    of the oldest answer."""
    view = metadata.view
    up = [address for each in view.nodes if view.is_up(each) and (address := view.address(each))]
    answers = await asyncio.gather(*(_ask(connection, each, request, timeout_s) for each in up))
    said = [each for each in answers if each is not None]
    if not said:
        return None
    segments = [segment for each in said for segment in each.segments]
    return FoundSegments(segments, max(each.age_ms for each in said))


async def _ask(
    connection: Connection,
    address: str,
    request: admin_pb2.ListSegmentsRequest,
    timeout_s: float,
) -> FoundSegments | None:
    asked, found = admin_pb2.ListSegmentsRequest(), list[Segment]()
    asked.CopyFrom(request)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await connection.call(
                    address,
                    ADMIN["ListSegments"],
                    asked,
                    admin_pb2.ListSegmentsResponse,
                    timeout_s=timeout_s,
                )
                found += map(convert.segment_from_proto, answer.segments)
                is_enough = request.max_segments and len(found) >= request.max_segments
                if not answer.more or not answer.segments or is_enough:
                    return FoundSegments(found, answer.age_ms)
                asked.after_segment_id = found[-1].segment_id
    except (IcecoreError, TimeoutError):
        return None  # others may hold the same


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
    while True:
        request = admin_pb2.ListSegmentsRequest(
            topic=topic,
            partitions=partitions,
            from_offset=from_offset,
            max_segments=limit,
            **_after(segments),
        )
        answer = await connection.admin(
            "ListSegments", request, admin_pb2.ListSegmentsResponse, timeout_s=timeout_s
        )
        for each in map(convert.segment_from_proto, answer.segments):
            while segments and _replaces(each, segments[-1]):
                segments.pop()
            segments.append(each)
        if not answer.more or not answer.segments or (limit and len(segments) >= limit):
            return segments


def _after(segments: Sequence[Segment]) -> dict[str, Any]:
    """The token of the next page."""
    if not segments:
        return {}
    last = segments[-1]
    return {
        "after_segment_id": last.segment_id,
        "after_topic": last.topic,
        "after_partition": last.partition,
        "after_end_offset": last.end_offset,
    }


def _replaces(one: Segment, other: Segment) -> bool:
    """Return whether a segment has what one of the page before has: it was merged meanwhile."""
    is_same = (one.topic_id, one.partition) == (other.topic_id, other.partition)
    return is_same and 0 <= one.base_offset <= other.base_offset


# --- joining --------------------------------------------------------------------------------------


def is_gap(segment: Segment) -> bool:
    """Return whether it stands for records that nobody has spoken for."""
    return segment.segment_id == NO_SEGMENT


def joined(
    topic: TopicMetadata, partition: PartitionMetadata, found: Iterable[Segment], from_offset: int
) -> list[Segment]:
    """Return the segments of a partition, joined from the answers of several nodes. The chain has
    no gap from the log start, or ``from_offset``, to the tail. Pure.

    Args:
        topic: What is meant: another one of its name does not count.
        partition: With its tail, which is there also when its leader said nothing.
        found: Segments by different nodes, in any order; of each the newest record counts.
        from_offset: Earlier segments are left out.
    """
    newest: dict[SegmentId, Segment] = {}
    for each in found:
        is_meant = (each.topic_id, each.partition) == (topic.topic_id, partition.partition)
        if is_meant and each.base_offset >= 0:
            known = newest.get(each.segment_id)
            newest[each.segment_id] = each if known is None else max(known, each, key=_age)
    starts = (each.log_start_offset for each in newest.values())
    start = max([partition.log_start_offset, from_offset, *starts])
    highest = max((each.base_offset for each in newest.values()), default=-1)
    tail_id = SegmentId(partition.segment_id)
    if tail_id and tail_id not in newest and partition.tail_base_offset > highest:
        newest[tail_id] = tail_segment(topic, partition)
    chain = _ended(sorted(newest.values(), key=lambda each: (each.base_offset, each.segment_id)))
    return list(_without_gaps(topic, partition, chain, start))


def _age(segment: Segment) -> int:
    return segment.version


def _ended(chain: list[Segment]) -> Iterable[Segment]:
    """Yield the chain with each segment sealed that another one follows. Its end is the base of the
    next segment if the epochs leave no room for a segment between. Otherwise its end is unknown."""
    for each, after in zip_longest(chain, chain[1:]):
        if after is None or each.state is SegmentState.SEALED:
            yield each
        elif after.epoch <= each.epoch + EPOCH_STEP and _is_next(each, after):
            yield each.changed(state=SegmentState.SEALED, end_offset=after.base_offset)


def _is_next(each: Segment, after: Segment) -> bool:
    """Return whether no offsets were left out between two segments."""
    return after.base_offset - each.base_offset < OFFSETS_LEFT_OUT


def _without_gaps(
    topic: TopicMetadata, partition: PartitionMetadata, chain: Iterable[Segment], start: int
) -> Iterable[Segment]:
    at = start
    for each in chain:
        is_sealed = each.state is SegmentState.SEALED
        if is_sealed and each.end_offset <= start:
            continue
        if each.base_offset > at:
            yield _gap(topic, partition, at, each.base_offset)
        yield each
        at = each.end_offset if is_sealed else max(at, each.base_offset)
    if partition.tail_base_offset > at:
        yield _gap(topic, partition, at, partition.tail_base_offset)


def tail_segment(topic: TopicMetadata, partition: PartitionMetadata) -> Segment:
    """The last segment of a partition, as metadata tell of it."""
    return Segment(
        SegmentId(partition.segment_id),
        topic.topic_id,
        topic.name,
        partition.partition,
        SegmentState.ACTIVE if partition.leader else SegmentState.RECOVERING,
        Epoch(partition.epoch),
        base_offset=partition.tail_base_offset,
        leader=NodeId(partition.leader),
        replicas=tuple(map(NodeId, partition.replicas)),
        log_start_offset=partition.log_start_offset,
    )


def _gap(
    topic: TopicMetadata, partition: PartitionMetadata, base_offset: int, end_offset: int
) -> Segment:
    return Segment(
        NO_SEGMENT,
        topic.topic_id,
        topic.name,
        partition.partition,
        SegmentState.SEALED,
        Epoch(0),
        base_offset=base_offset,
        end_offset=end_offset,
        log_start_offset=partition.log_start_offset,
    )
