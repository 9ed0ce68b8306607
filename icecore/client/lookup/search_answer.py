"""Checks the answer of one node to a query of one partition, as far as a client can. Pure.

A record that lies elsewhere, is out of order or does not fulfil the conditions shows that the node
is broken: nothing of such an answer counts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, neg
from typing import Final

from icecore.client.lookup.continuations import OPEN
from icecore.client.types import SearchOutcome, SegmentOutcome
from icecore.codec.record import Record
from icecore.codec.selection import Selection
from icecore.errors import IcecoreError, InternalError, NotLeaderError, NotReplicaError
from icecore.model import Segment
from icecore.rpc import convert
from icecore.rpc.record_columns import from_proto
from icecore.v1 import common_pb2, data_pb2

_OUTCOMES: Final = {
    data_pb2.SEARCH_OUTCOME_INDEX: SearchOutcome.INDEX,
    data_pb2.SEARCH_OUTCOME_SCAN: SearchOutcome.SCAN,
    data_pb2.SEARCH_OUTCOME_SKIPPED_TIME: SearchOutcome.SKIPPED_TIME,
    data_pb2.SEARCH_OUTCOME_SKIPPED_HASH: SearchOutcome.SKIPPED_HASH,
}
"""The others mean that somebody else has to search the segment."""
_OFFSET: Final = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Question:
    """The query to be answered in each partition."""

    topic: str
    topic_id: bytes
    selection: Selection
    newest_first: bool
    is_explained: bool = False
    """Nothing is read: nodes say what they would do."""


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive segments of a partition that a node is asked for, in the order of the search."""

    partition: int
    node_id: int
    segments: Sequence[Segment]
    from_offset: int
    to_offset: int
    """0 = as far as records are visible."""
    has_open: bool
    """One of them takes appends: how far records are visible is for its leader to say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The valid part of one answer."""

    records: list[Record]
    reached: int
    """Upwards, all below it has been looked at; downwards, all from it on."""
    visible_end: int
    """As far as the node knows the partition, of what it was asked for."""
    outcomes: list[SegmentOutcome]
    missing: Segment | None = None
    """The first segment, in the order of the search, that the node could not search ..."""
    error: IcecoreError | None = None
    """... and why."""


def read_answer(
    question: Question, group: Group, message: data_pb2.QueryResponse, count: int
) -> Answer:
    """Return the valid part of an answer to a query for at most ``count`` records.

    Raises:
        InternalError: The node is broken.
        NotReplicaError: It does not know of all that it was asked for.
        NotLeaderError: Others follow the segment that took appends, which may not be sealed yet.
        IcecoreError: What it answered instead.
    """
    who = f"node {group.node_id}"
    if len(message.partitions) != 1 or message.partitions[0].partition != group.partition:
        raise InternalError(f"{who} answered for other partitions than it was asked for")
    (result,) = message.partitions
    if (error := convert.error_from_proto(result.error)) is not None:
        raise error
    taking_appends = {each.segment_id for each in group.segments if each.end_offset < 0}
    if any(each.sealed and each.segment_id in taking_appends for each in result.segments):
        raise NotLeaderError(f"{who} has sealed the segment that took appends")
    ends = [each.end_offset for each in result.segments if each.segment_id in taking_appends]
    if ends and max(ends) < result.high_watermark:
        raise NotLeaderError(f"{who} has records behind the segment that took appends")
    asked_end = min(group.to_offset or result.high_watermark, result.high_watermark)
    if group.has_open and result.indexed_through_offset < asked_end:
        # A page that ends before it comes to that segment says nothing else of it.
        raise NotLeaderError(f"{who} has records behind the segments that were named")
    _check_count(who, result, count)
    records = _records(question, group, result)
    offsets = [*map(_OFFSET, records)]
    _check_order(question, group, offsets)
    at, error = _missing(group, result)
    if at is None and not message.complete:
        raise NotReplicaError(f"{who} sent an incomplete answer that names no missing segment")
    missing = None if at is None else group.segments[at]
    reached = _reached(question, group, result, missing, is_all=not message.continuation)
    if at == 0:
        records = []
    elif question.newest_first:
        records = records[: bisect_right(offsets, -reached, key=neg)]
    else:
        records = records[: bisect_left(offsets, reached)]
    outcomes = [
        _outcome(group, each)
        for each in result.segments
        if each.outcome in _OUTCOMES and (at is None or _place(group, each) < at)
    ]
    return Answer(records, reached, result.indexed_through_offset, outcomes, missing, error)


def merged(before: SegmentOutcome | None, now: SegmentOutcome) -> SegmentOutcome:
    """Merge the outcomes of a segment from several requests."""
    if before is None:
        return now
    is_scan = before.outcome is SearchOutcome.SCAN and now.outcome is SearchOutcome.INDEX
    return replace(
        now,
        outcome=before.outcome if is_scan else now.outcome,
        end_offset=max(before.end_offset, now.end_offset),
        index_runs=max(before.index_runs, now.index_runs),
        index_bytes=before.index_bytes + now.index_bytes,
        data_bytes=before.data_bytes + now.data_bytes,
        candidates=before.candidates + now.candidates,
        records=before.records + now.records,
        is_remote=before.is_remote or now.is_remote,
        remote_requests=before.remote_requests + now.remote_requests,
        remote_bytes=before.remote_bytes + now.remote_bytes,
    )


def _record(question: Question, group: Group, each: common_pb2.Record) -> Record:
    headers = each.headers
    return Record(
        each.value if each.HasField("value") else None,
        each.key if each.HasField("key") else None,
        each.timestamp_ms,
        tuple(each.tags),
        tuple([(h.name, h.value if h.HasField("value") else None) for h in headers])
        if headers
        else (),
        each.offset,
        each.append_timestamp_ms,
        group.partition,
        question.topic,
    )


def _records(
    question: Question, group: Group, result: data_pb2.QueryPartitionResult
) -> list[Record]:
    """Those of both kinds, in the order of the answer, each of which was asked for."""
    records = [_record(question, group, each) for each in result.records]
    for columns in result.columns:
        records += from_proto(columns).to_records(topic=question.topic, partition=group.partition)
    for record in question.selection.unwanted(records):
        raise _not_asked_for(question, group, record.offset)
    if result.records and result.columns:
        for part in (records[: len(result.records)], records[len(result.records) :]):
            _check_order(question, group, [*map(_OFFSET, part)])
        records.sort(key=_OFFSET, reverse=question.newest_first)
    low, high = group.from_offset, group.to_offset or 1 << 63
    for offset in map(_OFFSET, records):
        if not low <= offset < high:
            raise _not_asked_for(question, group, offset)
    return records


def _check_count(who: str, result: data_pb2.QueryPartitionResult, count: int) -> None:
    """Before anything is made of them: how much a look-up holds is not for a node to say."""
    sent = len(result.records) + sum(len(each.offsets) // 8 for each in result.columns)
    if sent > count:
        raise InternalError(f"{who} answered with {sent} records, at most {count} were asked for")


def _check_order(question: Question, group: Group, offsets: list[int]) -> None:
    if offsets != sorted(set(offsets), reverse=question.newest_first):
        raise InternalError(f"node {group.node_id} answered with records in a wrong order")


def _not_asked_for(question: Question, group: Group, offset: int) -> InternalError:
    return InternalError(
        f"node {group.node_id} answered with {question.topic}/{group.partition} offset "
        f"{offset}, which was not asked for"
    )


def _missing(
    group: Group, result: data_pb2.QueryPartitionResult
) -> tuple[int | None, IcecoreError | None]:
    """Place in the group of the first segment that the node could not search, and why."""
    found: dict[int, IcecoreError] = {}
    for each in result.segments:
        if each.outcome not in _OUTCOMES:
            error = convert.error_from_proto(each.error)
            elsewhere = NotReplicaError(f"node {group.node_id} does not hold the segment")
            found.setdefault(_place(group, each), error or elsewhere)
    return min(found.items()) if found else (None, None)


def _place(group: Group, each: data_pb2.SegmentSearch) -> int:
    """Return the place of an answered segment in the group; 0 when no segment of it matches."""
    for at, segment in enumerate(group.segments):
        if segment.segment_id == each.segment_id:
            return at
    for at, segment in enumerate(group.segments):
        is_open = segment.end_offset < 0
        if segment.base_offset <= each.base_offset and (
            is_open or each.base_offset < segment.end_offset
        ):
            return at
    return 0


def _reached(
    question: Question,
    group: Group,
    result: data_pb2.QueryPartitionResult,
    missing: Segment | None,
    *,
    is_all: bool,
) -> int:
    """See ``Answer.reached``. Raises NotReplicaError when the node knows less than it should."""
    low, high = result.searched_from_offset, result.searched_to_offset
    is_beyond = 0 < group.to_offset < high
    is_gone = low == high and is_all  # by now the log starts behind all that was asked for
    if low > high or (is_beyond and not is_gone):
        raise InternalError(f"node {group.node_id} searched from {low} to {high}")
    knows_less = not group.has_open and high < group.to_offset
    if question.newest_first:
        if missing is group.segments[0]:
            end = missing.end_offset
            return (group.to_offset or OPEN) if end < 0 else min(end, group.to_offset)
        if knows_less:
            raise _lags(group, high)
        reached = group.from_offset if is_all else max(low, group.from_offset)
        return reached if missing is None else max(reached, missing.end_offset)
    if missing is None and is_all and knows_less:
        raise _lags(group, high)
    reached = max(min(high, group.to_offset or high), group.from_offset)
    if missing is not None:
        reached = max(group.from_offset, min(reached, missing.base_offset))
    return reached


def _lags(group: Group, end_offset: int) -> NotReplicaError:
    return NotReplicaError(
        f"node {group.node_id} knows partition {group.partition} up to {end_offset} only",
        segment_id=group.segments[0].segment_id,
    )


def _outcome(group: Group, each: data_pb2.SegmentSearch) -> SegmentOutcome:
    return SegmentOutcome(
        partition=group.partition,
        segment_id=each.segment_id,
        base_offset=each.base_offset,
        end_offset=each.end_offset,
        outcome=_OUTCOMES[each.outcome],
        node_id=group.node_id,
        index=each.index or "none",
        index_runs=each.index_runs,
        index_bytes=each.index_bytes,
        data_bytes=each.data_bytes,
        candidates=each.candidates,
        records=each.records,
        is_remote=each.remote,
        remote_requests=each.remote_requests,
        remote_bytes=each.remote_bytes,
    )
