"""``icecore produce``: lines or NDJSON from files or stdin into a topic."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from icecore.cli.options import TopicName
from icecore.cli.output import Output, counted, drop_output
from icecore.cli.records import produce_options as options
from icecore.cli.records.acknowledged import Acknowledged
from icecore.cli.records.line_input import (
    UnreadableInputError,
    check_sources,
    is_typed,
    name_of,
    read_lines,
)
from icecore.cli.records.produce_options import AcksOption, Compression, Format
from icecore.cli.records.record_lines import RECORDS, LineFormat, TimeUnit, parse_lines
from icecore.cli.session import session_of
from icecore.client.produce.batches import SendHandle
from icecore.client.produce.options import ProducerOptions
from icecore.client.produce.producer import Producer, limits_of
from icecore.client.retries import Retry
from icecore.client.types import RecordMetadata
from icecore.codec.record import Codec, Record
from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    error_from_reason,
)
from icecore.model import Acks

_LOOK_EVERY = 1000
_BUFFER_BYTES = 16 << 20
"""Less than a program has: what is under way is what an interruption leaves open."""
_GRACE_S = 1.0
"""After Ctrl-C, for what is under way."""
_SILENCE_S = 3.0
_YEAR_2000_MS = 946_684_800_000
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def produce(
    context: typer.Context,
    topic: TopicName,
    files: options.Files = None,
    input_format: options.InputFormat = Format.LINES,
    key_field: options.KeyField = "",
    value_field: options.ValueField = "",
    tag_field: options.TagFields = None,
    headers_field: options.HeadersField = "",
    time_field: options.TimeField = "",
    time_unit: options.Unit = TimeUnit.MS,
    key_separator: options.KeySeparator = "",
    partition: options.Partition = None,
    same_partition: options.SamePartition = False,
    from_line: options.FromLine = 1,
    offsets: options.Offsets = False,
    acks: options.Acks = AcksOption.ALL,
    compression: options.Codec = Compression.NONE,
    batch_bytes: options.BatchBytes = 256 << 10,
    linger_ms: options.LingerMs = 5,
    delivery_timeout: options.DeliveryTimeout = 120,
) -> None:
    """Append records from files or stdin, one per line.

    Ends when all are acknowledged; the first that is refused ends it with status 1. Whatever ends
    it, it says up to which line all records are acknowledged.
    """
    form = _form(
        input_format,
        LineFormat(
            is_ndjson=input_format is Format.NDJSON,
            key_field=key_field,
            value_field=value_field,
            tag_fields=tuple(tag_field or ()),
            headers_field=headers_field,
            time_field=time_field,
            time_unit=time_unit,
            key_separator=key_separator,
        ),
    )
    if same_partition and input_format is not Format.RECORDS:
        shown = f"needs --format records: a record of --format {input_format} names no partition"
        raise typer.BadParameter(shown, param_hint="--same-partition")
    if same_partition and partition is not None:
        raise typer.BadParameter("give it or --partition", param_hint="--same-partition")
    session = session_of(context)
    session.check_topics([topic])
    settings: ProducerOptions = {
        "acks": Acks[acks.name],
        "compression": Codec[compression.name],
        "batch_bytes": batch_bytes,
        "buffer_bytes": max(_BUFFER_BYTES, 2 * batch_bytes),
        "linger_ms": linger_ms,
        "delivery_timeout_ms": int(delivery_timeout * 1000),
    }
    producer = Producer(session.bootstrap, **settings)
    sources = files or [Path("-")]
    failure, status = None, EXIT_FAILED
    try:
        check_sources(sources)
    except UnreadableInputError as error:
        failure, status = error, EXIT_USAGE
    on_record = _print_offset if offsets else None
    if on_record is None and any(map(is_typed, sources)):
        on_record = partial(_say_offset, session.output)
    ledger = Acknowledged(on_record)
    job = _Job(session.output, topic, sources, form, partition, same_partition, from_line, ledger)
    end = asyncio.run(_produce(job, producer)) if failure is None else _End(failure, status=status)
    _conclude(job, end, is_json=not offsets)


def _form(input_format: Format, given: LineFormat) -> LineFormat:
    fields = {
        "--key-field": given.key_field,
        "--value-field": given.value_field,
        "--tag-field": given.tag_fields,
        "--headers-field": given.headers_field,
        "--time-field": given.time_field,
    }
    name = next((each for each, value in fields.items() if value), "")
    if name and input_format is not Format.NDJSON:
        shown = f"--format {input_format} has no fields: say --format ndjson, or leave it out"
        raise typer.BadParameter(shown, param_hint=name)
    if input_format is not Format.LINES and given.key_separator:
        has_key = {Format.NDJSON: "say --key-field", Format.RECORDS: "its records have keys"}
        raise typer.BadParameter(
            f"is for --format lines, not for --format {input_format}: {has_key[input_format]}",
            param_hint="--key-separator",
        )
    return RECORDS if input_format is Format.RECORDS else given


@dataclass(frozen=True, slots=True)
class _Job:
    """One run of ``produce``: its arguments, and the ledger of acknowledged records."""

    output: Output
    topic: str
    sources: list[Path]
    form: LineFormat
    partition: int | None
    keeps_partition: bool
    from_line: int
    ledger: Acknowledged


@dataclass(frozen=True, slots=True)
class _End:
    """The reason for its end; neither when all is acknowledged."""

    failure: IcecoreError | None = None
    is_interrupted: bool = False
    status: int = EXIT_FAILED


class _BeyondEndError(InvalidRequestError):
    """The first line that is asked for is not there, nor would it be the next one."""


class OutputLostError(InternalError):
    """Offsets, or what is acknowledged, could not be printed."""


async def _produce(job: _Job, producer: Producer) -> _End:
    failure: IcecoreError | None = None
    is_interrupted = False
    ledger, this = job.ledger, asyncio.current_task()
    if this is not None:  # who stops us by another signal than Ctrl-C wants to know the same
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    watching = asyncio.ensure_future(_watch(job, producer))
    try:
        await producer.start()
        try:
            await _send_all(job, producer)
        except IcecoreError as error:  # a line that can't be read: what came before it may go
            failure = error
        await producer.flush()
    except IcecoreError as error:
        failure = failure or error
    except OSError as error:  # nobody reads where records are
        failure = _lost_output(error)
    except asyncio.CancelledError:  # a signal; a second Ctrl-C is not waited for
        is_interrupted = True
    finally:
        watching.cancel()
        # Whatever is wrong by now is an outcome of a record, and so in the ledger.
        with contextlib.suppress(IcecoreError, TimeoutError):
            async with asyncio.timeout(_GRACE_S if is_interrupted else None):
                await producer.close()
        try:
            await ledger.close()
        except OSError as error:
            failure = failure or _lost_output(error)
            await ledger.close()
    if is_interrupted:
        return _End(is_interrupted=True)
    return _End(failure or ledger.failure)


def _lost_output(error: OSError) -> OutputLostError:
    """Nothing more is printed there; what is acknowledged is still said on stderr."""
    drop_output()
    return OutputLostError(f"the output can't be written: {error.strerror}")


async def _send_all(job: _Job, producer: Producer) -> None:
    is_shown = not any(map(is_typed, job.sources))
    if not is_shown:
        job.output.note("one record per line; Ctrl-D ends")
    with job.output.progress(is_shown=is_shown) as progress:
        task = progress.add_task(job.topic, total=None)
        first = job.from_line
        # Nothing is sent before it is known how large a record may be, and so a line.
        limits = await limits_of(producer, job.topic)
        line_bytes_max = job.form.line_bytes_max(limits.record_bytes_max)
        for source in job.sources:
            async for count in _send(job, producer, source, first, line_bytes_max):
                progress.advance(task, count)
                await job.ledger.settle()
                if job.ledger.failure is not None:
                    return
            first = 1


async def _send(
    job: _Job, producer: Producer, source: Path, first: int, line_bytes_max: int
) -> Any:
    """Yields how many were sent since the last time."""
    name, number, count = name_of(source), 1, 0
    hints = _Hints(job.output)
    is_json = job.form.is_ndjson
    async for lines in read_lines(source, line_bytes_max, first_line=first, is_json=is_json):
        skipped = min(max(0, first - number), len(lines))
        at = number + skipped
        for line, record in parse_lines(lines[skipped:], name, job.form, at):
            hints.look(job.form, record)
            try:
                handle = await _send_record(job, producer, record)
            except InvalidRequestError as error:
                what = f"{name}, line {line}: {error.message}"
                raise error_from_reason(error.reason, what, error.metadata) from error
            job.ledger.sent(name, line, handle)
            count += 1
            if count == _LOOK_EVERY:
                yield count
                count = 0
        number += len(lines)
        yield count
        count = 0
    if first > number:
        raise _BeyondEndError(
            f"{name} has {counted(number - 1, 'line')}: --from-line {first} is beyond its end"
        )


async def _send_record(job: _Job, producer: Producer, record: Record) -> SendHandle:
    return await producer.send_wait(
        job.topic,
        record.value,
        key=record.key,
        tags=record.tags,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        partition=record.partition if job.keeps_partition else job.partition,
    )


class _Hints:
    """Says once what is probably a slip."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._is_said = False

    def look(self, form: LineFormat, record: Record) -> None:
        """A number of seconds taken for milliseconds is a day in January 1970."""
        is_number = form.time_field and not form.has_encodings  # what fetch prints is exact
        if is_number and not self._is_said and 0 <= record.timestamp_ms < _YEAR_2000_MS:
            self._is_said = True
            self._output.note("there are times before the year 2000: is --time-unit right?")


async def _watch(job: _Job, producer: Producer) -> None:
    """Say it when nothing is acknowledged for long."""
    ledger, before, since_s, said_s = job.ledger, -1, time.monotonic(), 0.0
    while True:
        await asyncio.sleep(_SILENCE_S / 6)
        with contextlib.suppress(OSError):  # who sends finds the same out
            await ledger.settle()
        now_s = time.monotonic()
        if ledger.records != before or not ledger.waiting:
            before, since_s, said_s = ledger.records, now_s, 0.0
        elif now_s - since_s >= max(_SILENCE_S, 2 * said_s):
            said_s = now_s - since_s
            waiting = counted(ledger.waiting, "record")
            last = producer.metrics().last_retry
            why = f" ({_place(last)}{last.error.message})" if last is not None else ""
            job.output.note(
                f"waiting: {waiting} not acknowledged for {said_s:.0f} s{why}; "
                "`icecore cluster health` says what is wrong"
            )


def _place(retry: Retry) -> str:
    return f"{retry.topic}/{retry.partition}: " if retry.topic else ""


def _print_offset(source: str, line: int, found: RecordMetadata) -> None:
    row = {"file": source, "line": line, "partition": found.partition, "offset": found.offset}
    sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _say_offset(output: Output, source: str, line: int, found: RecordMetadata) -> None:
    """For who types: below the line that was typed."""
    output.note(f"  partition {found.partition}, offset {found.offset}")


def _conclude(job: _Job, end: _End, *, is_json: bool) -> None:
    """Say what is acknowledged, however it ended."""
    ledger, failure = job.ledger, end.failure
    why = "interrupted" if end.is_interrupted else failure.message if failure else ""
    if job.output.is_json and is_json:
        document = {
            "topic": job.topic,
            "records": ledger.records,
            "file": ledger.source,
            "through_line": ledger.line,
            "behind": ledger.behind,
            "error": why,
        }
        try:
            job.output.json(document)
            sys.stdout.flush()
        except OSError as error:
            failure = failure or _lost_output(error)
            why = why or failure.message
    if not why:
        job.output.note(f"{counted(ledger.records, 'record')} in {job.topic}")
        return
    status = EXIT_INTERRUPTED if end.is_interrupted else end.status
    if isinstance(failure, _BeyondEndError):
        job.output.failure(f"{why}; nothing was sent", EXIT_USAGE, failure.reason)
        raise typer.Exit(EXIT_USAGE)
    reason = failure.reason if failure is not None else "INTERRUPTED"
    said = ledger.sentence(name_of(job.sources[0]), job.from_line)
    job.output.failure(f"{why}; {said}", status, reason)
    raise typer.Exit(status)
