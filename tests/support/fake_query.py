"""Answer a query as a node of the fake cluster: it reads everything that it holds, every time."""

from typing import Any

from icecore.codec.batch import HEADER_LENGTH, Compacted, parse_header, stamp
from icecore.codec.decoding import decode
from icecore.codec.record import Record, encode_columns
from icecore.codec.record_columns import columns_of
from icecore.model import SegmentState
from icecore.rpc.filters import selection_from_proto
from icecore.rpc.record_columns import to_proto
from icecore.v1 import common_pb2, data_pb2

_FEW = 3


def answer_query(
    partition: Any, node_id: int, request: data_pb2.QueryRequest
) -> data_pb2.QueryResponse:
    """One page of one partition of a ``FakePartition``."""
    (asked,) = request.partitions
    high = partition.tail.end
    named = [each.end for each in partition.segments if each.record.segment_id in asked.segment_ids]
    end = min(asked.to_offset or high, high, *named[-1:])
    low = min(max(asked.from_offset, partition.log_start), end)
    answer = data_pb2.QueryResponse(complete=True)
    result = answer.partitions.add(
        partition=asked.partition,
        searched_from_offset=low,
        searched_to_offset=end,
        indexed_through_offset=end,
        high_watermark=high,
    )
    found: list[Record] = []
    for segment in partition.segments:
        record = segment.record
        if record.segment_id not in asked.segment_ids:
            continue
        bounds = {"segment_id": record.segment_id, "base_offset": record.base_offset}
        sealed = record.state is SegmentState.SEALED
        line = result.segments.add(**bounds, end_offset=segment.end, index="none", sealed=sealed)
        if node_id not in record.holders:
            line.outcome, answer.complete = data_pb2.SEARCH_OUTCOME_ELSEWHERE, False
            continue
        line.outcome = data_pb2.SEARCH_OUTCOME_SCAN
        line.data_bytes = sum(len(stored) for _, _, stored in segment.batches)
        if not request.explain_only:
            here = [each for each in _matching(segment, request) if low <= each.offset < end]
            line.records = len(here)
            found += here
    found.sort(key=lambda each: each.offset, reverse=request.newest_first)
    if len(found) > (limit := request.max_count or 100):
        found = found[:limit]
        answer.continuation = b"more"
        if request.newest_first:
            result.searched_from_offset = found[-1].offset
        else:
            result.searched_to_offset = found[-1].offset + 1
    _add(result, found, takes_columns=request.takes_columns)
    return answer


def _add(
    result: data_pb2.QueryPartitionResult, found: list[Record], *, takes_columns: bool
) -> None:
    """Many as a real node may: some one by one, some as columns."""
    if takes_columns and len(found) > _FEW:
        result.columns.append(to_proto(columns_of(found[1::2])))
        found = found[::2]
    result.records.extend(map(_message, found))


def only_matching(stored: bytes, wanted: data_pb2.RecordFilter) -> bytes:
    """A stored batch with the records that match alone, as compaction would write it."""
    header = parse_header(stored)
    columns = decode(stored, 0, header)
    mask = selection_from_proto(wanted).matches(columns)
    chosen = [each for each, ok in zip(columns.to_records(), mask, strict=True) if ok]
    if not chosen:
        return b""
    raw = encode_columns(
        values=[each.value for each in chosen],
        timestamps_ms=[each.timestamp_ms for each in chosen],
        keys=[each.key for each in chosen],
        tags=[each.tags for each in chosen],
        headers=[each.headers for each in chosen],
        offset_deltas=[each.offset - header.base_offset for each in chosen],
    )
    stamped, _ = stamp(
        raw,
        0,
        parse_header(raw),
        segment_id=header.segment_id,
        epoch=header.epoch,
        base_offset=header.base_offset,
        append_timestamp_ms=header.append_timestamp_ms,
        high_watermark=header.high_watermark,
        prev_header_crc32c=0,
        compacted=Compacted(header.end_offset),
    )
    return stamped + raw[HEADER_LENGTH:]


def _matching(segment: Any, request: data_pb2.QueryRequest) -> list[Record]:
    selection = selection_from_proto(request.filter)
    found: list[Record] = []
    for _, _, stored in segment.batches:
        columns = decode(stored, 0, parse_header(stored))
        mask = selection.matches(columns)
        found += [each for each, ok in zip(columns.to_records(), mask, strict=True) if ok]
    return found


def _message(each: Record) -> common_pb2.Record:
    message = common_pb2.Record(
        offset=each.offset,
        timestamp_ms=each.timestamp_ms,
        append_timestamp_ms=each.append_timestamp_ms,
        tags=each.tags,
        headers=[common_pb2.Header(name=name, value=value) for name, value in each.headers],
    )
    if each.key is not None:
        message.key = each.key
    if each.value is not None:
        message.value = each.value
    return message
