"""Options of ``icecore fetch`` that no other command has."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from icecore.cli.options import complete_topic
from icecore.cli.records.record_lines import format_record
from icecore.cli.records.templates import fill, parse_template
from icecore.cli.records.times import parse_position
from icecore.codec.record import Record

Shown = Callable[[Sequence[Record]], None]


class OnCorrupt(StrEnum):
    """Policies of a consumer."""

    FAIL = "fail"
    SKIP = "skip"


class OnOutOfRange(StrEnum):
    """Policies of a consumer."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


def parse_until(text: str) -> tuple[str, int]:
    """("offset", n) or ("time", ms), both exclusive."""
    kind, value = parse_position(text)
    if kind not in ("offset", "time"):
        raise typer.BadParameter(f"{text!r} is not an offset, an ISO 8601 time or @milliseconds")
    return kind, value


def show_json(records: Sequence[Record]) -> None:
    """One JSON object per line."""
    sys.stdout.write("".join(f"{format_record(each)}\n" for each in records))
    sys.stdout.flush()


def show_json_with_topic(records: Sequence[Record]) -> None:
    """The same, with the name of the topic."""
    sys.stdout.write("".join(f"{format_record(each, with_topic=True)}\n" for each in records))
    sys.stdout.flush()


def parse_format(text: str) -> Shown:
    """Return how records are printed."""
    if text in ("json", "records"):
        return show_json
    if "%" not in text:
        raise typer.BadParameter(f"{text!r} is not json, records or a template such as '%k %v\\n'")
    try:
        parts = parse_template(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    def show(records: Sequence[Record]) -> None:
        # Keys and values need not be text.
        sys.stdout.buffer.write(b"".join(fill(parts, each) for each in records))
        sys.stdout.buffer.flush()

    return show


Topics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC...",
        help="Names of topics.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Instead of names: all topics of whose name it fits the whole.",
        show_default=False,
    ),
]
SavedPosition = Annotated[
    str | None,
    typer.Option(
        "--position",
        metavar="NAME",
        help="Go on where the last one of this name was, and save how far this one comes: each"
        " record at least once. --from is for partitions of which nothing is saved.",
        show_default=False,
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        "-o",
        metavar="POSITION",
        help="earliest, latest, an offset, -N for the last N records of each partition, or an"
        " append time: ISO 8601 (UTC) or @milliseconds.",
    ),
]
Until = Annotated[
    Any,
    typer.Option(
        parser=parse_until,
        metavar="POSITION",
        help="Where to end, exclusive: an offset or an append time.",
        show_default=False,
    ),
]
MaxRecords = Annotated[int, typer.Option("--max-records", "-n", min=0, help="0 = all.")]
OutputFormat = Annotated[
    Any,
    typer.Option(
        "--format",
        "-f",
        parser=parse_format,
        metavar="FORMAT",
        help="json; records, for `icecore produce -f records`, the same today; or a template:"
        " %t topic, %p partition, %o offset, %k key, %v value, %T event time, %A append time,"
        " %g tags, %h headers, \\n and \\t.",
    ),
]
Corrupt = Annotated[OnCorrupt, typer.Option(help="What to do with a batch that can't be decoded.")]
OutOfRange = Annotated[
    OnOutOfRange, typer.Option(help="What to do when the next records were deleted.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Wait for new records instead of ending.")]
