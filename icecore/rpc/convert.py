"""Plain values of ``icecore/model.py`` and errors to protobuf messages and back.

Numbers that a peer may leave out get their documented default here; values no version knows are
refused, because acting on a misread record would be worse than not acting.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

from icecore.errors import IcecoreError, error_from_reason
from icecore.model import (
    NodeId,
    NodeInfo,
    Segment,
    SegmentId,
)
from icecore.rpc.messages import enum_of, message_of, value_of
from icecore.topic_settings import (
    NOT_TIERED,
    SETTINGS,
    TIER,
    FlushMode,
    Retention,
    SegmentSettings,
    Tiering,
)
from icecore.v1 import admin_pb2, common_pb2, coordinator_pb2

_E = TypeVar("_E", bound=IntEnum)
_SETTINGS = tuple(each.name for each in fields(SegmentSettings))
"""Equal names mean the same in all messages, so that no list of them can miss one."""
_RETENTION = tuple(each.name for each in fields(Retention))
_TIERING = tuple(each.name for each in fields(Tiering))


def node_ids(numbers: Iterable[int]) -> tuple[NodeId, ...]:
    """Node ids of a message, in its order."""
    return tuple(map(NodeId, numbers))


def segment_ids(numbers: Iterable[int]) -> list[SegmentId]:
    """Segment ids of a message, in its order."""
    return list(map(SegmentId, numbers))


def flush_mode_from_proto(number: int) -> FlushMode:
    """Unspecified is SYNC, the safe one. Raises InvalidRequestError for unknown numbers."""
    return enum_of(FlushMode, number or FlushMode.SYNC)


@lru_cache(maxsize=256)
def _settings_to_proto(settings: SegmentSettings) -> coordinator_pb2.SegmentSettings:
    """Once for all segments of a topic; to be copied, never changed."""
    values = {name: getattr(settings, name) for name in _SETTINGS}
    return coordinator_pb2.SegmentSettings(**values)


def settings_from_proto(message: coordinator_pb2.SegmentSettings) -> SegmentSettings:
    """The settings of a message; absent ones get the defaults of ``SegmentSettings``.

    Raises:
        InvalidRequestError: An enum number is unknown.
    """
    return _settings_of(message.SerializeToString())


@lru_cache(maxsize=256)
def _settings_of(message: bytes) -> SegmentSettings:
    """Once for all segments of a topic, which have the same."""
    return settings_with(SegmentSettings(), coordinator_pb2.SegmentSettings.FromString(message))


def said(message: coordinator_pb2.SegmentSettings | admin_pb2.TopicSettings) -> dict[str, Any]:
    """The fields of a message that it says, by name."""
    return {each.name: value for each, value in message.ListFields()}


def settings_with(
    given: SegmentSettings, message: coordinator_pb2.SegmentSettings | admin_pb2.TopicSettings
) -> SegmentSettings:
    """``given``, with what the message says in its place.

    Raises:
        InvalidRequestError: An enum number is unknown.
    """
    values = {name: value for name, value in said(message).items() if name in _SETTINGS}
    if "flush_mode" in values:
        values["flush_mode"] = enum_of(FlushMode, values["flush_mode"])
    if "indexed_headers" in values:
        values["indexed_headers"] = tuple(values["indexed_headers"])
    return replace(given, **values)


def retention_with(given: Retention, message: admin_pb2.TopicSettings) -> Retention:
    """``given``, with what the message says in its place."""
    values = said(message)
    return replace(given, **{name: values[name] for name in _RETENTION if name in values})


def tiering_with(given: Tiering, message: admin_pb2.TopicSettings) -> Tiering:
    """``given``, with what the message says in its place.

    Raises:
        InvalidRequestError: ``tier`` is neither off nor on.
    """
    values = said(message)
    changed = {name: values[name] for name in _TIERING if name in values}
    if "tier" in values:
        SETTINGS["tier"].check(values["tier"])
        changed["is_on"] = TIER[values["tier"]]
    return replace(given, **changed)


def settings_to_topic(
    settings: SegmentSettings,
    *,
    partitions: int,
    delete_grace_ms: int,
    retention: Retention,
    tiering: Tiering = NOT_TIERED,
) -> admin_pb2.TopicSettings:
    """Settings of a topic as a message: those of its segments, and its own."""
    values = {
        name: getattr(value, name)
        for value in (settings, retention, tiering)
        for name in SETTINGS
        if hasattr(value, name)
    }
    return admin_pb2.TopicSettings(
        partitions=partitions,
        delete_grace_ms=delete_grace_ms,
        tier="on" if tiering.is_on else "off",
        **values,
    )


def segment_to_proto(segment: Segment) -> coordinator_pb2.SegmentAssignment:
    """A segment record as a message."""
    settings = _settings_to_proto(segment.settings)
    return message_of(coordinator_pb2.SegmentAssignment, segment, settings=settings)


def segment_from_proto(message: coordinator_pb2.SegmentAssignment) -> Segment:
    """The segment record of a message.

    Raises:
        InvalidRequestError: The state or flush mode is unknown.
    """
    return value_of(Segment, message, settings=settings_from_proto(message.settings))


def node_to_proto(node: NodeInfo) -> common_pb2.NodeInfo:
    """A node as a message."""
    return message_of(common_pb2.NodeInfo, node)


def node_from_proto(message: common_pb2.NodeInfo) -> NodeInfo:
    """The node of a message; an unspecified state is UP.

    Raises:
        InvalidRequestError: The state is unknown.
    """
    return value_of(NodeInfo, message)


def error_to_proto(error: IcecoreError | None) -> common_pb2.Error:
    """An error about one item of a list; None is the message without a reason."""
    if error is None:
        return common_pb2.Error()
    return common_pb2.Error(reason=error.reason, message=error.message, metadata=error.metadata)


def error_from_proto(message: common_pb2.Error) -> IcecoreError | None:
    """The error of a message, None when it has no reason."""
    if not message.reason:
        return None
    return error_from_reason(message.reason, message.message, dict(message.metadata))
