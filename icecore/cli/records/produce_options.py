"""The options of ``icecore produce``, each with what its help says."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from icecore.cli.records.record_lines import TimeUnit
from icecore.cli.records.templates import parse_separator
from icecore.cli.topics.topic_options import parse_size


class Format(StrEnum):
    """Format of the input."""

    LINES = "lines"
    NDJSON = "ndjson"
    RECORDS = "records"


class AcksOption(StrEnum):
    """Replicas that must hold a record on disk before it is acknowledged."""

    ALL = "all"
    QUORUM = "quorum"
    LEADER = "leader"


class Compression(StrEnum):
    """Compression of the payloads."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


Files = Annotated[
    list[Path] | None,
    typer.Argument(help="Files to read; - or none = stdin.", show_default=False),
]
InputFormat = Annotated[
    Format,
    typer.Option(
        "--format", "-f", help="One record per line; records = as `icecore fetch` prints them."
    ),
]
KeyField = Annotated[str, typer.Option(metavar="F", help="ndjson: field of the key.")]
ValueField = Annotated[
    str, typer.Option(metavar="F", help="ndjson: field of the value; else the whole line.")
]
TagFields = Annotated[
    list[str] | None, typer.Option(metavar="F", help="ndjson: field of tags; may be repeated.")
]
HeadersField = Annotated[
    str, typer.Option(metavar="F", help="ndjson: field of the headers, an object.")
]
TimeField = Annotated[
    str, typer.Option(metavar="F", help="ndjson: field of the time, ISO 8601 (UTC) or a number.")
]
Unit = Annotated[TimeUnit, typer.Option(help="ndjson: of times that are numbers, since 1970 UTC.")]
KeySeparator = Annotated[
    str,
    typer.Option(
        "--key-separator",
        "-k",
        parser=parse_separator,
        metavar="TEXT",
        help="lines: what stands between key and value; \\t, \\xHH and other escapes as in C.",
    ),
]
Partition = Annotated[int | None, typer.Option(min=0, help="Instead of the one the key decides.")]
SamePartition = Annotated[
    bool, typer.Option("--same-partition", help="records: the one that each of them names.")
]
FromLine = Annotated[
    int, typer.Option(min=1, metavar="N", help="Begin at this line of the first file.")
]
Offsets = Annotated[
    bool, typer.Option("--offsets", help="Print where each record is, in the order of lines.")
]
Acks = Annotated[AcksOption, typer.Option(help="Acknowledge when these hold it.")]
Codec = Annotated[Compression, typer.Option(help="Of the payloads.")]
BatchBytes = Annotated[
    int, typer.Option(parser=parse_size, metavar="SIZE", help="Send a batch at this size.")
]
LingerMs = Annotated[float, typer.Option(min=0, help="Wait so long for more.")]
DeliveryTimeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Give up a record after this.")
]
