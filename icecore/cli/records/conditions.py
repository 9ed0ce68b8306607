"""Options that say which records are wanted, for all commands that have them."""

import base64
import binascii
from typing import Annotated, Any

import typer

from icecore.cli.records.times import parse_time_ms


def parse_header(text: str) -> tuple[str, bytes]:
    """Name and value of ``NAME=VALUE``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{text!r} is no header: write NAME=VALUE")
    return name, value.encode()


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
    return text


def parse_time(text: str) -> int:
    """Milliseconds of a point in time."""
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


_TIME = "ISO 8601, or milliseconds since 1970 UTC"

Keys = Annotated[
    list[str] | None,
    typer.Option("--key", "-k", metavar="KEY", help="With this key, or another one given."),
]
KeysInBase64 = Annotated[
    list[bytes] | None,
    typer.Option(
        "--key-base64", parser=parse_base64, metavar="TEXT", help="As --key, of a binary key."
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", "-t", parser=parse_tag, metavar="TAG", help="With this tag, or another one given."
    ),
]
TagsAll = Annotated[
    list[str] | None,
    typer.Option(
        "--tag-all", parser=parse_tag, metavar="TAG", help="With this tag and all others given so."
    ),
]
TagsNone = Annotated[
    list[str] | None,
    typer.Option("--tag-none", parser=parse_tag, metavar="TAG", help="Without this tag."),
]
HeadersGiven = Annotated[
    list[Any] | None,
    typer.Option(
        "--header",
        parser=parse_header,
        metavar="NAME=VALUE",
        help="With this header, or another one given.",
    ),
]
FromEventTime = Annotated[
    int | None,
    typer.Option(parser=parse_time, metavar="TIME", help=f"Of the producer's time: {_TIME}."),
]
ToEventTime = Annotated[
    int | None, typer.Option(parser=parse_time, metavar="TIME", help="Exclusive.")
]
FromAppendTime = Annotated[
    int | None,
    typer.Option(
        parser=parse_time, metavar="TIME", help=f"Of the time when it was appended: {_TIME}."
    ),
]
ToAppendTime = ToEventTime
FromOffset = Annotated[int, typer.Option(min=0, help="In each partition.")]
ToOffset = Annotated[int | None, typer.Option(min=1, help="Exclusive.", show_default=False)]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        min=0,
        help="Only this one; may be repeated. Else all in which a key may be.",
    ),
]
NewestFirst = Annotated[bool, typer.Option("--newest-first", help="From the newest record down.")]


def conditions(
    keys: list[str] | None,
    keys_in_base64: list[bytes] | None,
    tags: list[str] | None,
    tags_all: list[str] | None,
    tags_none: list[str] | None,
    headers: list[Any] | None,
) -> dict[str, Any]:
    """Arguments of a look-up or a consumer."""
    # Python gives bytes of an argument that are no UTF-8 as surrogates; a key may be any bytes.
    given = [key.encode(errors="surrogateescape") for key in keys or ()]
    given += keys_in_base64 or ()
    return {
        "keys": given or None,
        "tags_any": tags or None,
        "tags_all": tags_all or None,
        "tags_none": tags_none or None,
        "headers": headers or None,
    }
