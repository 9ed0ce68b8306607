"""Settings of a topic as messages have them, and as a plan of a restore has them."""

from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError

from icecore.client.types import TopicSettings
from icecore.errors import InvalidRequestError
from icecore.rpc import convert
from icecore.v1 import admin_pb2


def settings_from_proto(message: admin_pb2.TopicSettings) -> TopicSettings:
    """All of them."""
    values = {each.name: getattr(message, each.name) for each in fields_of(TopicSettings)}
    values["flush_mode"] = convert.flush_mode_from_proto(message.flush_mode)
    values["indexed_headers"] = tuple(message.indexed_headers)
    return TopicSettings(**values)


def settings_of_plan(plan: Mapping[str, Any]) -> TopicSettings | None:
    """What the bucket says; None = it says nothing.

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
