"""``RecordFilter`` of the public contract to the value that decides, and back; with its bounds."""

from collections.abc import Sequence
from typing import Final

from icecore.codec.selection import Selection
from icecore.errors import InvalidRequestError
from icecore.v1 import common_pb2, data_pb2

KEYS_MAX: Final = 1_000
TAGS_MAX: Final = 100
"""Maximum tags in each of the three tag conditions."""
HEADERS_MAX: Final = 100


def selection_from_proto(message: data_pb2.RecordFilter) -> Selection:
    """Raises InvalidRequestError when there are too many conditions, a header has no value, or
    the times are inverted."""
    for name, count, limit in (
        ("keys", len(message.keys), KEYS_MAX),
        ("tags_any", len(message.tags_any), TAGS_MAX),
        ("tags_all", len(message.tags_all), TAGS_MAX),
        ("tags_none", len(message.tags_none), TAGS_MAX),
        ("headers", len(message.headers), HEADERS_MAX),
    ):
        if count > limit:
            raise InvalidRequestError(f"{count} {name} in a filter, at most {limit} are allowed")
    for header in message.headers:
        if not header.HasField("value"):
            raise InvalidRequestError(f"the header {header.name[:100]!r} of a filter has no value")
    low = message.from_timestamp_ms if message.HasField("from_timestamp_ms") else None
    high = message.to_timestamp_ms if message.HasField("to_timestamp_ms") else None
    if low is not None and high is not None and low >= high:
        raise InvalidRequestError(f"from_timestamp_ms {low} is not before to_timestamp_ms {high}")
    return Selection(
        keys=frozenset(message.keys),
        tags_any=frozenset(message.tags_any),
        tags_all=frozenset(message.tags_all),
        tags_none=frozenset(message.tags_none),
        headers=frozenset((each.name, each.value) for each in message.headers),
        from_timestamp_ms=low,
        to_timestamp_ms=high,
    )


def selection_to_proto(selection: Selection) -> data_pb2.RecordFilter:
    """In an order that depends on the conditions alone, for continuation tokens."""
    message = data_pb2.RecordFilter(
        keys=sorted(selection.keys),
        tags_any=sorted(selection.tags_any),
        tags_all=sorted(selection.tags_all),
        tags_none=sorted(selection.tags_none),
        headers=_headers(sorted(selection.headers)),
    )
    if selection.from_timestamp_ms is not None:
        message.from_timestamp_ms = selection.from_timestamp_ms
    if selection.to_timestamp_ms is not None:
        message.to_timestamp_ms = selection.to_timestamp_ms
    return message


def _headers(pairs: Sequence[tuple[str, bytes]]) -> list[common_pb2.Header]:
    return [common_pb2.Header(name=name, value=value) for name, value in pairs]
