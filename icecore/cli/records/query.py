"""``icecore query``: records by key, tag, header, time, offset or id, as NDJSON on stdout.

What was searched, and whether that is all, is one line on stderr; the exit status is 4 when
something could not be searched.
"""

import asyncio
import base64
import binascii
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from icecore.cli.options import TopicName, given_options
from icecore.cli.output import Output, counted
from icecore.cli.records.conditions import NewestFirst, with_conditions, with_ranges
from icecore.cli.records.record_lines import format_record
from icecore.cli.session import CommandSession, session_of
from icecore.client.lookup.lookup import COUNT_MAX, Lookup
from icecore.client.types import LookupPage, SearchOutcome, SegmentOutcome

EXIT_INCOMPLETE = 4
_BESIDE_ID = ("--id", "--newest-first", "--max-count", "--all")
AGE_TOLD_MS = 3_000
"""While a coordinator answers, nothing is planned on what is so old."""


def parse_id(text: str) -> tuple[int, int]:
    """Partition and offset of ``PARTITION@OFFSET``."""
    partition, separator, offset = text.partition("@")
    if not (separator and partition.isdecimal() and offset.isdecimal()):
        raise typer.BadParameter(f"{text!r} is no id of a record: write PARTITION@OFFSET")
    return int(partition), int(offset)


def parse_continuation(text: str) -> bytes:
    """A continuation as it was printed."""
    try:
        return base64.urlsafe_b64decode(text.encode("ascii"))
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise typer.BadParameter(f"{text[:60]!r} is no continuation of this command") from error


@with_conditions
@with_ranges
def query(
    context: typer.Context,
    topic: TopicName,
    *,
    conditions: dict[str, Any],
    ranges: dict[str, Any],
    record_id: Annotated[
        Any,
        typer.Option(
            "--id",
            parser=parse_id,
            metavar="PARTITION@OFFSET",
            help="The one record there, instead of all other conditions.",
        ),
    ] = None,
    newest_first: NewestFirst = False,
    max_count: Annotated[
        int, typer.Option("--max-count", "-n", min=1, max=COUNT_MAX, help="Records of one page.")
    ] = 100,
    continuation: Annotated[
        Any,
        typer.Option(
            "--continue",
            parser=parse_continuation,
            metavar="CONTINUATION",
            help="The page after the one that printed it, with the same options.",
        ),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All pages, one after the other.")] = False,
) -> None:
    """Find records and print them, one JSON object per line, by append time.

    All conditions must hold. A line on stderr says what was searched.

    Ends with status 4 when a segment could not be searched: records may be missing.
    """
    session = session_of(context)
    given = conditions | ranges
    if record_id is not None:
        said = given | {"from_offset": given["from_offset"] or None}
        if any(each is not None for each in said.values()) or continuation:
            others = [each for each in given_options(context) if each not in _BESIDE_ID]
            shown = f"names one record: leave out {', '.join(others)}"
            raise typer.BadParameter(shown, param_hint="--id")
        number, offset = record_id
        given |= {"partitions": [number], "from_offset": offset, "to_offset": offset + 1}
    given["newest_first"] = newest_first
    given |= {"max_count": max_count, "continuation": continuation or b""}
    session.check_topics([topic])
    began_s = time.monotonic()
    pages = asyncio.run(_print_pages(session, topic, given, is_all=is_all))
    _conclude(session.output, pages, (time.monotonic() - began_s) * 1000)


async def _print_pages(
    session: CommandSession, topic: str, given: dict[str, Any], *, is_all: bool
) -> list[LookupPage]:
    pages = []
    async with Lookup(session.bootstrap, topic, timeout_s=session.timeout_s) as lookup:
        async for page in lookup.pages(**given):
            sys.stdout.write("".join(f"{format_record(each)}\n" for each in page.records))
            sys.stdout.flush()
            pages.append(page)
            if not is_all:
                break
    return pages


def _conclude(output: Output, pages: list[LookupPage], took_ms: float) -> None:
    """Say what was done; end with a status of its own when that is not all."""
    count = sum(len(page.records) for page in pages)
    segments = [each for page in pages for each in page.segments]
    said = [counted(count, "record"), searched(segments), *planned_long_ago(pages, took_ms)]
    if pages[-1].continuation:
        given = base64.urlsafe_b64encode(pages[-1].continuation).decode()
        said.append(f"next page: --continue {given}")
    if all(page.complete for page in pages):
        output.note("; ".join(["complete", *said]))
        return
    missing = [each for page in pages for each in page.unavailable]
    message = "; ".join(["not complete", *said, *map(why_missing, missing[:3])])
    output.failure(message, EXIT_INCOMPLETE, "NOT_COMPLETE")
    raise typer.Exit(EXIT_INCOMPLETE)


def searched(segments: Iterable[SegmentOutcome]) -> str:
    """Segments by what became of them, in words."""
    counts = Counter({each.segment_id: each.outcome for each in segments}.values())
    words = {
        SearchOutcome.INDEX: "by index",
        SearchOutcome.SCAN: "by reading",
        SearchOutcome.SKIPPED_TIME: "skipped by time",
        SearchOutcome.SKIPPED_HASH: "skipped by hash",
        SearchOutcome.UNAVAILABLE: "unavailable",
    }
    parts = [f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome]]
    return f"segments: {', '.join(parts) or 'none'}"


def planned_long_ago(pages: Iterable[LookupPage], took_ms: float) -> list[str]:
    """In words, how old was what they were planned on, if nobody knew anything newer.

    Args:
        pages: The pages.
        took_ms: Milliseconds of the search: they make what it was planned on older, too, and say
            nothing about coordinators.
    """
    age_ms = max((page.planned_age_ms for page in pages), default=0)
    if age_ms - took_ms < AGE_TOLD_MS:
        return []
    return [f"planned on what was known {age_ms / 1000:.1f} s ago: no coordinator answers"]


def why_missing(each: SegmentOutcome) -> str:
    """Return which records may be missing, and why."""
    end = "" if each.end_offset < 0 else f" to {each.end_offset}"
    return f"partition {each.partition} from {each.base_offset}{end}: {each.error}"
