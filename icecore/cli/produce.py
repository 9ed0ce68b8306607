"""``icecore produce``: lines or NDJSON from files or stdin into a topic."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.progress import Progress, TaskID

from icecore.cli.records import LineFormat, parse_lines
from icecore.cli.session import Session, session_of
from icecore.cli.topic import parse_size
from icecore.client.producer import Producer
from icecore.codec.record import Codec
from icecore.model import Acks

_CHUNK_BYTES = 1 << 18
_SHOWN_EVERY = 1000


class Format(StrEnum):
    """What the input is."""

    LINES = "lines"
    NDJSON = "ndjson"


class AcksOption(StrEnum):
    """Who must hold a record on disk before it counts."""

    ALL = "all"
    QUORUM = "quorum"
    LEADER = "leader"


class Compression(StrEnum):
    """Of the payloads."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files to read; - or none = stdin.")
    ] = None,
    input_format: Annotated[
        Format, typer.Option("--format", "-f", help="One record per line either way.")
    ] = Format.LINES,
    key_field: Annotated[str, typer.Option(help="ndjson: field of the key.")] = "",
    value_field: Annotated[
        str, typer.Option(help="ndjson: field of the value; default: the whole line.")
    ] = "",
    tag_field: Annotated[
        list[str] | None, typer.Option(help="ndjson: field of tags; may be repeated.")
    ] = None,
    time_field: Annotated[
        str, typer.Option(help="ndjson: field of the time, ISO 8601 or milliseconds.")
    ] = "",
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", help="lines: what stands between key and value.")
    ] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, help="Instead of the one the key decides.")
    ] = None,
    acks: Annotated[AcksOption, typer.Option(help="Who must hold it.")] = AcksOption.ALL,
    compression: Annotated[Compression, typer.Option()] = Compression.NONE,
    batch_bytes: Annotated[
        int, typer.Option(parser=parse_size, metavar="SIZE", help="Send a batch at this size.")
    ] = 256 << 10,
    linger_ms: Annotated[float, typer.Option(min=0, help="Wait so long for more.")] = 5,
) -> None:
    """Append records from files or stdin, one per line.

    Ends when all are acknowledged; the first that is refused ends it with status 1.
    """
    session = session_of(context)
    form = LineFormat(
        is_ndjson=input_format is Format.NDJSON,
        key_field=key_field,
        value_field=value_field,
        tag_fields=tuple(tag_field or ()),
        time_field=time_field,
        key_separator=key_separator,
    )
    if form.is_ndjson and key_separator:
        raise typer.BadParameter("is for --format lines", param_hint="--key-separator")
    if not form.is_ndjson and (key_field or value_field or tag_field or time_field):
        raise typer.BadParameter("fields need --format ndjson", param_hint="--format")
    producer = Producer(
        session.bootstrap,
        acks=Acks[acks.name],
        compression=Codec[compression.name],
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
    )
    session.admin(lambda admin: admin.describe_topics([topic]))  # else it would be waited for
    sources = files or [Path("-")]
    count = asyncio.run(_produce(session, producer, topic, sources, form, partition))
    if session.output.is_json:
        session.output.json({"topic": topic, "records": count})
    else:
        session.output.note(f"{count:,} records in {topic}")


async def _produce(
    session: Session,
    producer: Producer,
    topic: str,
    sources: list[Path],
    form: LineFormat,
    partition: int | None,
) -> int:
    count = 0
    async with producer:
        with session.output.progress() as progress:
            task = progress.add_task(topic, total=None)
            for source in sources:
                count += await _send(producer, topic, source, form, partition, (progress, task))
            await producer.flush()
    return count


async def _send(
    producer: Producer,
    topic: str,
    source: Path,
    form: LineFormat,
    partition: int | None,
    shown: tuple[Progress, TaskID],
) -> int:
    progress, task = shown
    name = "stdin" if str(source) == "-" else str(source)
    count, number = 0, 1
    async for lines in _read_lines(source):
        for record in parse_lines(lines, name, form, number):
            await producer.send_wait(
                topic,
                record.value,
                key=record.key,
                tags=record.tags,
                headers=record.headers,
                timestamp_ms=record.timestamp_ms,
                partition=partition,
            )
            count += 1
            if count % _SHOWN_EVERY == 0:
                progress.advance(task, _SHOWN_EVERY)
        number += len(lines)
    progress.advance(task, count % _SHOWN_EVERY)
    return count


async def _read_lines(source: Path) -> AsyncIterator[list[bytes]]:
    """Whole lines as they become available, a list at a time.

    Raises typer.BadParameter when the file can't be opened.
    """
    try:
        file: IO[bytes] = sys.stdin.buffer if str(source) == "-" else source.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{source}: {error.strerror}", param_hint="FILES") from error
    rest = b""
    with file:
        async for chunk in _chunks(file):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield lines
    if rest:
        yield [rest]


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
        return
    # Pipes and terminals may be silent for long: the producer goes on meanwhile.
    reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()
