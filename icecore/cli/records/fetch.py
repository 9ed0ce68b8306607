"""``icecore fetch``: the records of a topic on stdout, as NDJSON or as the caller lays them out."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import typer

from icecore.cli.options import OnlyPartitions
from icecore.cli.output import counted
from icecore.cli.records import fetch_options as options
from icecore.cli.records.conditions import with_conditions
from icecore.cli.records.fetch_options import OnCorrupt, OnOutOfRange, Shown
from icecore.cli.records.times import parse_position, position_of
from icecore.cli.session import CommandSession, session_of
from icecore.client.consume.consumer import Consumer
from icecore.errors import OffsetOutOfRangeError

_POLL_S = 0.5
_POLL_RECORDS = 1000
EXIT_INTERRUPTED = 130


@with_conditions
def fetch(
    context: typer.Context,
    topic: options.Topics = None,
    start: options.Start = "earliest",
    until: options.Until = None,
    partition: OnlyPartitions = None,
    max_records: options.MaxRecords = 0,
    output_format: options.OutputFormat = "json",
    *,
    conditions: dict[str, Any],
    on_corrupt: options.Corrupt = OnCorrupt.FAIL,
    on_out_of_range: options.OutOfRange = OnOutOfRange.ERROR,
    follow: options.Follow = False,
    pattern: options.Pattern = None,
    saved_position: options.SavedPosition = None,
) -> None:
    """Print records, one JSON object per line.

    Without --follow it ends at what was committed when it began. Records of a partition come in
    order. Those of several topics say theirs. A key or value that is not UTF-8 is base64, and says
    so beside it. With conditions, nodes send only the records for which all of them hold.
    """
    session = session_of(context)
    kind, value = parse_position(start)
    if until is not None and follow:
        raise typer.BadParameter(
            "ends, and --follow does not: give one of them", param_hint="--until"
        )
    if topic and pattern is not None:
        raise typer.BadParameter(
            "names topics, as TOPIC does: give one of them", param_hint="--pattern"
        )
    if not topic and pattern is None:
        raise typer.BadParameter("name topics, or give --pattern REGEX", param_hint="TOPIC")
    consumer = Consumer(
        session.bootstrap,
        topics=topic or None,
        pattern=pattern,
        position=saved_position,
        partitions=partition or None,
        start=position_of(kind, value),
        stop_at_end=not follow,
        until=None if until is None else position_of(*until),
        on_corrupt=on_corrupt.value,
        on_out_of_range=on_out_of_range.value,
        **conditions,
        timeout_s=session.timeout_s,
    )
    if topic:  # else a missing one would be waited for
        session.check_topics(topic)
    label = ",".join(topic or [str(pattern)])
    if len(topic or ()) != 1 and output_format == options.show_json:
        output_format = options.show_json_with_topic
    job = _Job(session, consumer, label, output_format, max_records)
    is_checked = (
        saved_position is None and kind == "offset" and on_out_of_range is OnOutOfRange.ERROR
    )
    is_interrupted = False
    try:
        asyncio.run(job.run(value if is_checked else 0))
    except KeyboardInterrupt:
        is_interrupted = True
    output = session.output
    output.note(counted(job.count, "record"))
    if skipped := consumer.corrupt_batches:
        output.note(f"{counted(skipped, 'batch')} that can't be decoded skipped")
    if gone := _skipped(consumer):
        output.note(f"{counted(gone, 'record')} that had been deleted meanwhile skipped")
    if is_interrupted and not follow:  # which has no other end
        raise typer.Exit(EXIT_INTERRUPTED)


def _skipped(consumer: Consumer) -> int:
    return sum(sum(consumer.skipped_records(topic).values()) for topic in consumer.topics)


@dataclass(slots=True)
class _Job:
    """One fetch: the records to print, and how many were printed."""

    session: CommandSession
    consumer: Consumer
    label: str
    show: Shown
    max_records: int
    count: int = 0

    async def run(self, first_offset: int) -> None:
        """Args: ``first_offset``: at least one partition must reach so far."""
        async with self.consumer:
            if first_offset:
                await self._check(first_offset)
            # Lines that scroll by are progress enough, and a display beside them would fold them.
            with self.session.output.progress(is_shown=not sys.stdout.isatty()) as progress:
                task = progress.add_task(self.label, total=None)
                while not self._is_done():
                    await self._print_some()
                    progress.update(task, completed=self.count)

    def _is_done(self) -> bool:
        has_all = bool(self.max_records) and self.count >= self.max_records
        return has_all or self.consumer.is_at_end

    async def _print_some(self) -> None:
        room = self.max_records - self.count if self.max_records else _POLL_RECORDS
        records = await self.consumer.poll(_POLL_S, min(room, _POLL_RECORDS))
        if records:
            self.show(records)
            self.count += len(records)

    async def _check(self, first_offset: int) -> None:
        """A consumer that stops at the end would print nothing, and say nothing."""
        ends = []
        for topic in self.consumer.topics:
            for number in self.consumer.position(topic):
                await self.consumer.seek(number, "latest", topic=topic)
                ends.append(self.consumer.position(topic)[number])
                await self.consumer.seek(number, first_offset, topic=topic)
        if first_offset > (end := max(ends, default=0)):
            raise OffsetOutOfRangeError(f"offset {first_offset} is behind the end, {end}")
