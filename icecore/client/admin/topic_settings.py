"""Settings of a topic as messages have them, and as a plan of a restore has them."""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError

from icecore.client import checks
from icecore.errors import InvalidRequestError
from icecore.rpc import convert
from icecore.topic_settings import (
    SETTINGS,
    FlushMode,
    Setting,
    SettingKind,
    TopicFields,
    TopicSettings,
)
from icecore.v1 import admin_pb2

_FIELDS = admin_pb2.TopicSettings.DESCRIPTOR.fields_by_name
_BOUNDS: Final = {
    FieldDescriptor.TYPE_UINT32: (0, checks.UINT32_MAX),
    FieldDescriptor.TYPE_UINT64: (0, checks.UINT64_MAX),
    FieldDescriptor.TYPE_INT64: (-1, checks.OFFSET_MAX),
}
"""Bounds of numbers in messages. The coordinator knows the range of each setting; it may be newer
than this client."""


def settings_from_proto(message: admin_pb2.TopicSettings) -> TopicSettings:
    """All that a message says; what is absent is None."""
    values = convert.said(message)
    if "flush_mode" in values:
        values["flush_mode"] = convert.flush_mode_from_proto(values["flush_mode"])
    values["indexed_headers"] = tuple(message.indexed_headers)
    return TopicSettings(**{name: values.get(name) for name in SETTINGS})


def settings_of_plan(plan: Mapping[str, Any]) -> TopicSettings | None:
    """The settings that the bucket has; None = it has none.

    Args:
        plan: One topic, as ``icecore tier restore --dry-run --json`` shows it.

    Raises:
        InvalidRequestError: A later version wrote them, or they are none.
    """
    found = plan["settings"]
    if found is None:
        return None
    try:
        return settings_from_proto(ParseDict(found, admin_pb2.TopicSettings()))
    except (ParseError, TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"the bucket has settings that this version does not know: {error}; restore with the "
            "version that wrote them, or a later one"
        ) from error


def settings_to_proto(given: TopicSettings | None, fields: TopicFields) -> admin_pb2.TopicSettings:
    """Settings given as a value or as keywords. Raises TypeError, InvalidRequestError."""
    if given is not None and fields:
        raise InvalidRequestError("settings come as a value or as keywords, not both")
    settings = TopicSettings(**fields) if given is None else given
    if not isinstance(settings, TopicSettings):
        raise checks.wrong_type("settings", settings, "TopicSettings")
    values = {name: getattr(settings, name) for name in SETTINGS}
    return admin_pb2.TopicSettings(
        **{
            name: _to_proto(SETTINGS[name], value)
            for name, value in values.items()
            if value is not None
        }
    )


def _to_proto(row: Setting, value: object) -> Any:
    if row.kind is SettingKind.FLUSH:
        if not isinstance(value, FlushMode):
            raise checks.wrong_type(row.name, value, "a FlushMode or None")
        return int(value)
    if row.kind is SettingKind.NAMES:
        return checks.header_names(row.name, value)
    if row.kind is SettingKind.WORD:
        return checks.text(row.name, value)
    return checks.whole(row.name, value, *_BOUNDS[_FIELDS[row.name].type])
