"""``icecore fetch``: the records of a topic as NDJSON on stdout."""

import asyncio
import contextlib
import sys
from enum import StrEnum
from typing import Annotated

import typer

from icecore.cli.conditions import (
    HeadersGiven,
    Keys,
    KeysInBase64,
    Tags,
    TagsAll,
    TagsNone,
    conditions,
)
from icecore.cli.records import format_record
from icecore.cli.session import Session, session_of
from icecore.cli.times import parse_position
from icecore.client.consumer import Consumer
from icecore.client.offsets import Position, time_position

_POLL_S = 0.5
_POLL_RECORDS = 1000


class OnCorrupt(StrEnum):
    """Policies of a consumer."""

    FAIL = "fail"
    SKIP = "skip"


class OnOutOfRange(StrEnum):
    """Policies of a consumer."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


def fetch(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="POSITION",
            help="earliest, latest, an offset, or an append time: ISO 8601 or @milliseconds.",
        ),
    ] = "earliest",
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this one; may be repeated.")
    ] = None,
    max_records: Annotated[int, typer.Option("--max-records", "-n", min=0, help="0 = all.")] = 0,
    key: Keys = None,
    key_base64: KeysInBase64 = None,
    tag: Tags = None,
    tag_all: TagsAll = None,
    tag_none: TagsNone = None,
    header: HeadersGiven = None,
    on_corrupt: Annotated[
        OnCorrupt, typer.Option(help="What to do with a batch that can't be decoded.")
    ] = OnCorrupt.FAIL,
    on_out_of_range: Annotated[
        OnOutOfRange, typer.Option(help="What to do when the next records were deleted.")
    ] = OnOutOfRange.ERROR,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new records instead of ending.")
    ] = False,
) -> None:
    """Print records, one JSON object per line.

    Without --follow it ends at what was committed when it began. Records of a partition come in
    order. A key or value that is not UTF-8 is base64, and says so beside it. With conditions, nodes
    send only the records for which all of them hold.
    """
    session = session_of(context)
    consumer = Consumer(
        session.bootstrap,
        topic,
        partitions=partition or None,
        start=_position(start),
        stop_at_end=not follow,
        on_corrupt=on_corrupt.value,
        on_out_of_range=on_out_of_range.value,
        **conditions(key, key_base64, tag, tag_all, tag_none, header),
        timeout_s=session.timeout_s,
    )
    session.admin(lambda admin: admin.describe_topics([topic]))  # else it would be waited for
    with contextlib.suppress(KeyboardInterrupt):
        count = asyncio.run(_print_records(session, consumer, topic, max_records))
        session.output.note(f"{count:,} records")
        if skipped := consumer.corrupt_batches:
            session.output.note(f"{skipped:,} batches that can't be decoded were skipped")
        if gone := sum(consumer.skipped_records().values()):
            session.output.note(f"{gone:,} records that were deleted meanwhile were skipped")


def _position(text: str) -> Position:
    kind, value = parse_position(text)
    if kind == "offset":
        return value
    if kind == "time":
        return time_position(value)
    return "earliest" if kind == "earliest" else "latest"


async def _print_records(session: Session, consumer: Consumer, topic: str, max_records: int) -> int:
    count = 0
    async with consumer:
        with session.output.progress() as progress:
            # Lines that scroll by are progress enough.
            task = progress.add_task(topic, total=None, visible=not sys.stdout.isatty())
            while not consumer.is_at_end and (not max_records or count < max_records):
                room = max_records - count if max_records else _POLL_RECORDS
                records = await consumer.poll(_POLL_S, min(room, _POLL_RECORDS))
                if not records:
                    continue
                sys.stdout.write("".join(f"{format_record(each)}\n" for each in records))
                sys.stdout.flush()
                count += len(records)
                progress.update(task, completed=count)
    return count
