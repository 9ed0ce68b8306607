"""Settings of a topic as messages have them, and as a plan of a restore has them."""

from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import Any, Final, cast

from google.protobuf.json_format import ParseDict, ParseError

from icecore.client import checks
from icecore.client.types import TopicFields, TopicSettings
from icecore.errors import InvalidRequestError
from icecore.model import FlushMode
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


_LIMITS: Final = ("retention_ms", "retention_bytes", "local_retention_ms", "local_retention_bytes")
"""-1 = none."""


def settings_to_proto(given: TopicSettings | None, fields: TopicFields) -> admin_pb2.TopicSettings:
    """Given as a value or as keywords. Raises TypeError, InvalidRequestError."""
    if given is not None and fields:
        raise InvalidRequestError("settings come as a value or as keywords, not both")
    settings = TopicSettings(**fields) if given is None else given
    if not isinstance(settings, TopicSettings):
        raise checks.wrong_type("settings", settings, "TopicSettings")
    if settings.flush_mode is not None and not isinstance(settings.flush_mode, FlushMode):
        raise checks.wrong_type("flush_mode", settings.flush_mode, "a FlushMode or None")
    limits = {
        **dict.fromkeys(("partitions", "replication_factor", "min_insync"), checks.UINT32_MAX),
        **dict.fromkeys(("segment_bytes", "segment_age_ms", "flush_bytes"), checks.UINT64_MAX),
        **dict.fromkeys(
            ("record_bytes_max", "batch_bytes_max", "uncompressed_bytes_max", "flush_interval_ms"),
            checks.UINT32_MAX,
        ),
    }
    values: dict[str, Any] = {
        name: checks.whole(name, getattr(settings, name), 0, high) for name, high in limits.items()
    }
    for name in ("partitioner", "engine", "file_model", "on_total_loss", "on_full", "tier"):
        values[name] = checks.text(name, getattr(settings, name))
    values["tier_format"] = checks.text("tier_format", settings.tier_format)
    if settings.tier_after_ms is not None:
        values["tier_after_ms"] = checks.whole(
            "tier_after_ms", settings.tier_after_ms, 0, checks.OFFSET_MAX
        )
    for name in _LIMITS:
        if (limit := getattr(settings, name)) is not None:
            values[name] = checks.whole(name, limit, -1, checks.OFFSET_MAX)
    grace_ms = settings.delete_grace_ms
    return admin_pb2.TopicSettings(
        flush_mode=cast(Any, int(settings.flush_mode or 0)),
        indexed_headers=()
        if settings.indexed_headers is None
        else checks.header_names("indexed_headers", settings.indexed_headers),
        delete_grace_ms=None
        if grace_ms is None
        else checks.whole("delete_grace_ms", grace_ms, 0, checks.UINT64_MAX),
        **values,
    )
