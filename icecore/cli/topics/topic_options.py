"""The options of ``icecore topic create`` and ``alter``, one for each setting of a topic.

They are built from ``icecore/topic_settings.py``: a command that takes ``settings`` gets an option
for each row in its place.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from icecore.cli.options import Command, in_place_of
from icecore.cli.output import size
from icecore.cli.records.times import duration
from icecore.topic_settings import SETTINGS, FlushMode, Holds, Setting, SettingKind, TopicSettings

_SIZE: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)


def parse_size(text: str) -> int:
    """Bytes of ``64MiB`` and the like."""
    try:
        return int(_SIZE.validate_python(text))
    except ValidationError as error:
        raise typer.BadParameter(f"{text!r} is not a size; write 64MiB or 67108864") from error


def parse_limit(text: str) -> int:
    """As ``parse_size``, or -1."""
    return -1 if text == "-1" else parse_size(text)


def with_settings(*, is_new: bool) -> Callable[[Command], Command]:
    """Replace the parameter ``settings`` of a command by options.

    Args:
        is_new: Whether the topic is created: then some more can be said, and defaults are shown.
    """
    rows = [row for row in SETTINGS.values() if is_new or row.holds is not Holds.AT_CREATION]
    options = {row.name: (_option(row, shows_default=is_new), None) for row in rows}
    return in_place_of("settings", options, _settings)


def _option(row: Setting, *, shows_default: bool) -> Any:
    rest: dict[str, Any] = {"help": row.help}
    kind: Any = int | None
    if row.kind is SettingKind.NAMES:
        kind, rest["metavar"] = list[str] | None, "NAME"
        rest["help"] = f"{row.help} May be repeated."
    elif row.words:
        kind = Literal[row.words] | None
    elif row.kind is SettingKind.BYTES:
        rest["parser"] = parse_limit if row.is_limit else parse_size
        rest["metavar"] = "SIZE"
    else:
        rest["min"] = -1 if row.is_limit else row.low
    if shows_default:
        rest["help"] += f" Default: {default_of(row)}."
    flags = row.flags or (f"--{row.name.replace('_', '-')}",)
    return Annotated[kind, typer.Option(*flags, **rest)]


def default_of(row: Setting) -> str:
    """The default as people write it."""
    if not row.default.lstrip("-").isdigit() or row.kind is SettingKind.COUNT:
        return row.default
    number = int(row.default)
    if number == -1:
        return "unlimited"
    return size(number) if row.kind is SettingKind.BYTES else duration(number)


def _settings(said: Mapping[str, Any]) -> TopicSettings:
    """The settings of a command line."""
    values = {name: _value(SETTINGS[name], value) for name, value in said.items()}
    return TopicSettings(**values)


def _value(row: Setting, value: Any) -> Any:
    if value is None or row.kind not in (SettingKind.FLUSH, SettingKind.NAMES):
        return value
    return FlushMode[value.upper()] if row.kind is SettingKind.FLUSH else tuple(value) or None
