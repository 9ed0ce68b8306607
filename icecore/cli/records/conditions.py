"""Options that say which records are wanted, for all commands that have them.

A command takes them as one parameter: ``conditions`` or ``ranges``, which are arguments of a
look-up, and the first ones of a consumer, too.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from icecore.cli.options import OptionRow, in_place_of
from icecore.cli.records.times import parse_time_ms


def parse_header(text: str) -> tuple[str, bytes]:
    """Name and value of ``NAME=VALUE``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{text!r} is no header: write NAME=VALUE")
    # Python gives bytes of an argument that are no UTF-8 as surrogates; a value may be any bytes.
    return _text(name, "the name of a header"), value.encode(errors="surrogateescape")


def _text(given: str, what: str) -> str:
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{what} is not UTF-8: {given!r}") from error
    return given


def parse_base64(text: str) -> bytes:
    """The bytes of a key as ``icecore fetch`` prints it."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise typer.BadParameter(f"{text!r} is not base64") from error


def parse_tag(text: str) -> str:
    """A tag; the empty one is a slip of a script."""
    if not text:
        raise typer.BadParameter("a tag is empty")
    return _text(text, "a tag")


def parse_time(text: str) -> int:
    """Milliseconds of a point in time."""
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


_TIME = "ISO 8601, or milliseconds since 1970 UTC"

_CONDITIONS: Final[Mapping[str, OptionRow]] = {
    "key": (
        Annotated[
            list[str] | None,
            typer.Option("--key", "-k", metavar="KEY", help="With this key, or another one given."),
        ],
        None,
    ),
    "key_base64": (
        Annotated[
            list[bytes] | None,
            typer.Option(parser=parse_base64, metavar="TEXT", help="As --key, of a binary key."),
        ],
        None,
    ),
    "tag": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--tag",
                "-t",
                parser=parse_tag,
                metavar="TAG",
                help="With this tag, or another one given.",
            ),
        ],
        None,
    ),
    "tag_all": (
        Annotated[
            list[str] | None,
            typer.Option(
                parser=parse_tag, metavar="TAG", help="With this tag and all others given so."
            ),
        ],
        None,
    ),
    "tag_none": (
        Annotated[
            list[str] | None,
            typer.Option(parser=parse_tag, metavar="TAG", help="Without this tag."),
        ],
        None,
    ),
    "header": (
        Annotated[
            list[Any] | None,
            typer.Option(
                parser=parse_header,
                metavar="NAME=VALUE",
                help="With this header, or another one given.",
            ),
        ],
        None,
    ),
}
_END = Annotated[int | None, typer.Option(parser=parse_time, metavar="TIME", help="Exclusive.")]
_RANGES: Final[Mapping[str, OptionRow]] = {
    "from_event_time": (
        Annotated[
            int | None,
            typer.Option(
                parser=parse_time, metavar="TIME", help=f"Of the producer's time: {_TIME}."
            ),
        ],
        None,
    ),
    "to_event_time": (_END, None),
    "from_append_time": (
        Annotated[
            int | None,
            typer.Option(
                parser=parse_time,
                metavar="TIME",
                help=f"Of the time when it was appended: {_TIME}.",
            ),
        ],
        None,
    ),
    "to_append_time": (_END, None),
    "from_offset": (Annotated[int, typer.Option(min=0, help="In each partition.")], 0),
    "to_offset": (
        Annotated[int | None, typer.Option(min=1, help="Exclusive.", show_default=False)],
        None,
    ),
    "partition": (
        Annotated[
            list[int] | None,
            typer.Option(
                min=0, help="Only this one; may be repeated. Else all in which a key may be."
            ),
        ],
        None,
    ),
}
NewestFirst = Annotated[bool, typer.Option("--newest-first", help="From the newest record down.")]


def _conditions(given: Mapping[str, Any]) -> dict[str, Any]:
    # Python gives bytes of an argument that are no UTF-8 as surrogates; a key may be any bytes.
    keys = [key.encode(errors="surrogateescape") for key in given["key"] or ()]
    keys += given["key_base64"] or ()
    return {
        "keys": keys or None,
        "tags_any": given["tag"] or None,
        "tags_all": given["tag_all"] or None,
        "tags_none": given["tag_none"] or None,
        "headers": given["header"] or None,
    }


def _ranges(given: dict[str, Any]) -> dict[str, Any]:
    partitions = given.pop("partition") or None
    return {**given, "partitions": partitions}


with_conditions = in_place_of("conditions", _CONDITIONS, _conditions)
"""Replaces the parameter ``conditions`` of a command: keys, tags and headers."""
with_ranges = in_place_of("ranges", _RANGES, _ranges)
"""Replaces the parameter ``ranges`` of a command: times, offsets and partitions."""
