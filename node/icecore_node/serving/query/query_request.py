"""Checks of a query request, and the continuation token for its next page. Pure.

A token says where the next page begins. It is bound to the topic and to everything else of the
request, so that no page is put together from two questions. It holds no secret and grants nothing:
a forged one that fits only begins elsewhere within what was asked.
"""

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from icecore.codec.checksum import crc32c
from icecore.codec.selection import Selection
from icecore.errors import InvalidRequestError
from icecore.rpc.filters import selection_from_proto, selection_to_proto
from icecore.v1 import data_pb2
from icecore_node.serving.fetch.plain_records import ANSWER_BYTES_MAX, ANSWER_RECORDS_MAX

PARTITIONS_MAX: Final = 1024
SEGMENTS_MAX: Final = 10_000
"""Maximum number of segments named in one request."""
_COUNT_DEFAULT: Final = 100
_BYTES_DEFAULT: Final = 1 << 20
_TOKEN: Final = struct.Struct("<BQIqI")
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 1
FROM_THE_START: Final = -1
"""The place of a partition that no page has looked at."""
_START_OVER: Final = "ask again without it, from the start"


@dataclass(frozen=True, slots=True)
class PagePlace:
    """Position at which a page begins."""

    number: int = 0
    """Number of the partition, in the order of the request."""
    offset: int = FROM_THE_START
    """Next offset to search; with newest first, the exclusive end of the offsets left."""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """One checked request."""

    selection: Selection
    partitions: tuple[data_pb2.QueryPartition, ...]
    max_count: int
    max_bytes: int
    fingerprint: int
    start: PagePlace
    takes_columns: bool = False
    """Whether the client understands records as columns."""


def checked_query(request: data_pb2.QueryRequest, topic_id: bytes) -> QueryPlan:
    """Check a request and return the plan for its page.

    Args:
        request: The request as it arrived.
        topic_id: Id of the topic; empty when it is not known here.

    Raises:
        InvalidRequestError: A count, range or token is not what the contract allows.
    """
    selection = selection_from_proto(request.filter)
    _check_counts(request)
    for each in request.partitions:
        low, high = each.from_offset, each.to_offset
        if low < 0 or high < 0 or (high and low > high):
            raise InvalidRequestError(
                f"partition {each.partition}: offsets from {low} to {high} are no range"
            )
    fingerprint = _fingerprint(request, selection, topic_id)
    start = PagePlace()
    if request.continuation:
        start = _place_of(request.continuation, fingerprint)
        if start.number >= len(request.partitions):
            raise InvalidRequestError(f"the continuation is beyond the request: {_START_OVER}")
    return QueryPlan(
        selection=selection,
        partitions=tuple(request.partitions),
        max_count=request.max_count or _COUNT_DEFAULT,
        max_bytes=request.max_bytes or _BYTES_DEFAULT,
        fingerprint=fingerprint,
        start=start,
        takes_columns=request.takes_columns,
    )


def continuation(plan: QueryPlan, place: PagePlace) -> bytes:
    """The token for the page that begins there."""
    values = _VERSION, plan.fingerprint, place.number, place.offset
    raw = _TOKEN.pack(*values, 0)[: -_CRC.size]
    return raw + _CRC.pack(crc32c(raw))


def _place_of(token: bytes, fingerprint: int) -> PagePlace:
    if len(token) != _TOKEN.size or token[0] != _VERSION:
        raise InvalidRequestError(f"the continuation is malformed: {_START_OVER}")
    _, of_request, number, offset, crc = _TOKEN.unpack(token)
    if crc32c(token[: -_CRC.size]) != crc or offset < FROM_THE_START:
        raise InvalidRequestError(f"the continuation is damaged: {_START_OVER}")
    if of_request != fingerprint:
        raise InvalidRequestError(
            f"the continuation belongs to another request, or the topic is another one by now: "
            f"{_START_OVER}"
        )
    return PagePlace(number, offset)


def _check_counts(request: data_pb2.QueryRequest) -> None:
    count = len(request.partitions)
    if not 0 < count <= PARTITIONS_MAX:
        raise InvalidRequestError(f"{count} partitions in a query, 1 to {PARTITIONS_MAX} are taken")
    if request.max_count > ANSWER_RECORDS_MAX:
        raise InvalidRequestError(
            f"max_count {request.max_count} exceeds {ANSWER_RECORDS_MAX}: ask for more pages"
        )
    if request.max_bytes > ANSWER_BYTES_MAX:
        raise InvalidRequestError(
            f"max_bytes {request.max_bytes} exceeds {ANSWER_BYTES_MAX}: ask for more pages"
        )
    named = sum(len(each.segment_ids) for each in request.partitions)
    if named > SEGMENTS_MAX:
        raise InvalidRequestError(f"{named} segments in a query, at most {SEGMENTS_MAX} are taken")


def _fingerprint(request: data_pb2.QueryRequest, selection: Selection, topic_id: bytes) -> int:
    """Return a hash over all parts of the request that must be the same on each page."""
    asked = data_pb2.QueryRequest(
        topic_id=topic_id,
        partitions=request.partitions,
        filter=selection_to_proto(selection),
        newest_first=request.newest_first,
    )
    return xxhash.xxh64_intdigest(asked.SerializeToString(deterministic=True))
