"""Bounds of requests by method: bytes, fields, items of lists, and which handlers may be stopped.

Two megabytes of a message can be a million objects, and each of them costs a server a hundred
times what it cost its sender. So a request is counted as the bytes that it is, field by field,
before anything is made of it. One that is too short to hold more than its method allows is not
looked at. Long ones are counted on a thread, so that others have their turn meanwhile.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from icecore.errors import InvalidRequestError
from icecore.rpc.ports import (
    Admitted,
    Body,
    CallContext,
    DirectHandler,
    Handlers,
    Received,
    UnaryHandler,
)
from icecore.v1 import admin_pb2, coordinator_pb2, data_pb2, mirror_pb2, replication_pb2

MESSAGE_BYTES_MAX: Final = 64 << 20
"""Maximum size of one message of any method, over any transport."""
PARTITIONS_MAX: Final = 16_384
"""Maximum partitions in one request of a client."""
PRODUCED_PARTITIONS_MAX: Final = 4_096
"""Maximum entries in one produce request."""
TOPICS_MAX: Final = 16_384
NAMED_TOPICS_MAX: Final = 1_000
"""Maximum topics in which a producer's name takes over from an earlier instance."""
CLEAR_RECORDS_MAX: Final = 10_000
"""Maximum plain records of one produce request: as many as an answer has."""
LABELS_MAX: Final = 100_000
"""Maximum tags of all plain records of a produce request, and maximum headers."""
SERVER_ITEMS_MAX: Final = 4_096
"""Maximum items of each list that one server sends another in a call; a sender cuts longer ones."""
SERVER_NESTED_MAX: Final = 524_288
"""Maximum items of all lists of one name within these items: a table may name many copies."""
FIELDS_MAX: Final = 262_144
"""Maximum fields of one client request, at any depth: several for each partition."""
_BULK: Final = "batches"
"""The field of bulk data in a message with a header."""
_ON_LOOP_BYTES: Final = 16 << 10

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bounds of the requests of one method."""

    bytes_max: int = MESSAGE_BYTES_MAX
    fields_max: int = 0
    """0 = they are not counted."""
    lists: Mapping[str, int] = field(default_factory=dict)
    """Message and field (``FetchHeader.partitions``) to the items of all lists of that name."""
    is_read: bool = False
    """Nothing is changed: a handler whose caller has given up is stopped."""
    is_for_clients: bool = False
    """Strangers call it, so calls of it begin in fair turns."""


_CLIENTS: Final = Bound(bytes_max=4 << 20, fields_max=FIELDS_MAX, is_for_clients=True)
_READS: Final = replace(_CLIENTS, is_read=True)
_PRODUCE: Final = replace(
    _CLIENTS,
    bytes_max=MESSAGE_BYTES_MAX,
    fields_max=FIELDS_MAX // 2,  # they are counted on the loop
    lists={
        "ProduceHeader.partitions": PRODUCED_PARTITIONS_MAX,
        "ProducePartition.records": CLEAR_RECORDS_MAX,
        "Record.tags": LABELS_MAX,
        "Record.headers": LABELS_MAX,
    },
)
_BOUNDS: Final[Mapping[str, Mapping[str, Bound]]] = {
    "DataService": {
        "Produce": _PRODUCE,
        "Fetch": replace(_READS, lists={"FetchHeader.partitions": PARTITIONS_MAX}),
        "ListOffsets": replace(_READS, lists={"ListOffsetsRequest.partitions": PARTITIONS_MAX}),
        "Query": _READS,
        "DescribeSettings": _READS,
        "InitProducer": replace(_CLIENTS, lists={"InitProducerRequest.topics": NAMED_TOPICS_MAX}),
    },
    "AdminService": {
        "GetMetadata": replace(_READS, lists={"GetMetadataRequest.topics": TOPICS_MAX}),
        "DescribeTopics": replace(_READS, lists={"DescribeTopicsRequest.names": TOPICS_MAX}),
        "DescribeCluster": _READS,
        "PlanMerges": _READS,
        "ListSegments": replace(_READS, lists={"ListSegmentsRequest.partitions": PARTITIONS_MAX}),
        "DeleteRecords": replace(
            _CLIENTS, lists={"DeleteRecordsRequest.partitions": PARTITIONS_MAX}
        ),
    },
}
"""Bounds by service and method; other methods have the bound of their service."""
_OF_SERVICE: Final[Mapping[str, Bound]] = {"DataService": _CLIENTS, "AdminService": _CLIENTS}
_OTHERS: Final = Bound()
_OF_SERVERS: Final = ("CoordinatorService", "NodeService")
_BY_HANDLER: Final = frozenset({"Register"})
"""Methods whose handlers know how many items there may be."""


def bound_of(method: str) -> Bound:
    """Return the bound of a method by its full name. Requests of an unknown method may be as large
    as a message."""
    service, _, name = method.rpartition("/")
    service = service.rpartition(".")[2]
    if service in _OF_SERVERS and name not in _BY_HANDLER:
        return _of_servers(method)
    return _BOUNDS.get(service, {}).get(name) or _OF_SERVICE.get(service, _OTHERS)


@cache
def _of_servers(method: str) -> Bound:
    """Return the bound of a call between servers: its lists, whatever their names."""
    descriptor = _REQUESTS.get(method)
    if descriptor is None:
        return _OTHERS
    lists = dict.fromkeys(_lists_in(descriptor), SERVER_NESTED_MAX)
    own = (each for each in descriptor.fields if each.is_repeated)
    lists |= {f"{descriptor.name}.{each.name}": SERVER_ITEMS_MAX for each in own}
    return Bound(fields_max=MESSAGE_BYTES_MAX, lists=lists) if lists else _OTHERS


def _lists_in(descriptor: Any) -> Iterator[str]:
    """Names of all lists of a message, at any depth."""
    for each in descriptor.fields:
        if each.is_repeated:
            yield f"{descriptor.name}.{each.name}"
        if each.message_type is not None:
            yield from _lists_in(each.message_type)


# --- counting -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """Fields to look at in a message: its lists, and the fields that may hold lists."""

    fields: dict[int, "tuple[str, bool, _Plan | None]"] = field(default_factory=dict)
    """Number to name, whether it is a list of numbers, and the plan of the message in it."""


@cache
def _plan_of(descriptor: Any) -> _Plan:
    plan = _Plan()
    for each in descriptor.fields:
        inner = _plan_of(each.message_type) if each.message_type is not None else None
        if each.is_repeated or inner is not None:
            name = f"{descriptor.name}.{each.name}" if each.is_repeated else ""
            is_packed = each.is_repeated and each.type not in _WITH_LENGTH
            plan.fields[each.number] = (name, is_packed, inner)
    return plan


_WITH_LENGTH: Final = frozenset(
    {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE}
)


class _Counter:
    """Counts one request. Bytes that are no message are left to the parser, which says so."""

    def __init__(self, bound: Bound) -> None:
        self._left = dict(bound.lists)
        self._bound = bound
        self._fields_left = bound.fields_max

    def count(self, data: bytes, at: int, end: int, plan: _Plan) -> None:
        """All fields of the message in ``data[at:end]``.

        Raises:
            InvalidRequestError: There are more than the bound allows.
        """
        fields = plan.fields
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise InvalidRequestError(
                    f"more than {self._bound.fields_max} fields in a request: split it"
                )
            key, at = _varint(data, at, end)
            kind, found = key & 7, fields.get(key >> 3)
            size = 0
            if kind == _LENGTH:
                size, at = _varint(data, at, end)
            elif kind == _VARINT:
                _, at = _varint(data, at, end)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise InvalidRequestError("a request with groups, which no message of ours has")
            if found is not None:
                name, is_packed, inner = found
                if name in self._left:
                    self._take(name, size if is_packed and kind == _LENGTH else 1)
                if inner is not None and kind == _LENGTH:
                    self.count(data, at, min(at + size, end), inner)
            at += size

    def _take(self, name: str, count: int) -> None:
        self._left[name] -= count
        if self._left[name] < 0:
            raise InvalidRequestError(
                f"more than {self._bound.lists[name]} {name.partition('.')[2]} in a request: "
                "split it"
            )


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and the place behind it; a malformed one ends the message."""
    if at >= end:
        return 0, end
    first = data[at]
    if first < 0x80:
        return first, at + 1
    value = first & 0x7F
    for shift in range(7, 70, 7):
        at += 1
        if at >= end:
            break
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
    return 0, end


_REQUESTS: Final[Mapping[str, Any]] = {
    f"/{service.full_name}/{method.name}": method.input_type
    for module in (admin_pb2, coordinator_pb2, data_pb2, mirror_pb2, replication_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def _check_bytes(bound: Bound, size_bytes: int) -> None:
    if size_bytes > bound.bytes_max:
        raise InvalidRequestError(
            f"a request of {size_bytes} bytes, larger than max {bound.bytes_max}"
        )


def _is_harmless(bound: Bound, size_bytes: int) -> bool:
    """Return whether so few bytes can't hold too much: an item of a list takes at least one."""
    return not bound.fields_max or size_bytes <= min((bound.fields_max, *bound.lists.values()))


def _count(bound: Bound, body: Received, descriptor: Any) -> None:
    data = bytes(body)
    _Counter(bound).count(data, 0, len(data), _plan_of(descriptor))


async def check_items(body: Received, descriptor: Any, lists: Mapping[str, int]) -> None:
    """Count lists of a request whose limits its handler knows, before it is parsed.

    Args:
        body: The request.
        descriptor: Of its message.
        lists: As in ``Bound``.

    Raises:
        InvalidRequestError: There are more.
    """
    bound = Bound(fields_max=MESSAGE_BYTES_MAX, lists=lists)
    if len(body) <= min(lists.values()):
        return
    if len(body) > _ON_LOOP_BYTES:
        await asyncio.get_running_loop().run_in_executor(None, _count, bound, body, descriptor)
    else:
        _count(bound, body, descriptor)


# --- in front of handlers -----------------------------------------------------------------------


def bounded(handlers: Handlers) -> Handlers:
    """The same handlers, which get no request that holds more than its method allows."""
    return replace(
        handlers,
        unary={name: _unary(name, each) for name, each in handlers.unary.items()},
        direct={name: _direct(name, each) for name, each in handlers.direct.items()},
    )


def _unary(method: str, handler: UnaryHandler) -> UnaryHandler:
    bound, descriptor = bound_of(method), _REQUESTS.get(method)
    if descriptor is not None and _BULK in descriptor.fields_by_name:
        descriptor = None  # what is to be counted is its header, by its direct handler

    async def run(body: Received, context: CallContext) -> Body:
        size_bytes = len(body)
        _check_bytes(bound, size_bytes)
        if descriptor is not None and not _is_harmless(bound, size_bytes):
            if size_bytes > _ON_LOOP_BYTES:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, _count, bound, body, descriptor)
            else:
                _count(bound, body, descriptor)
        return await handler(body, context)

    return run


def _direct(method: str, handler: DirectHandler) -> DirectHandler:
    bound = bound_of(method)
    header_field = handler.request.DESCRIPTOR.fields_by_name.get("header")
    if header_field is None or header_field.message_type is None:
        return handler
    descriptor = header_field.message_type

    def admit(header: bytes, body_bytes: int, context: CallContext) -> Admitted | Body:
        if not _is_harmless(bound, len(header)):
            _count(bound, header, descriptor)
        return handler.admit(header, body_bytes, context)

    return replace(handler, admit=admit)
