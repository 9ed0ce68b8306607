"""``icecore explain``: what a query or a filtered fetch would read, and what it reads.

A table for people, one JSON document for programs.
"""

import asyncio
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from icecore.cli.options import OnlyPartitions, TopicName
from icecore.cli.output import Output, counted
from icecore.cli.records.conditions import NewestFirst, with_conditions, with_ranges
from icecore.cli.records.query import EXIT_INCOMPLETE, planned_long_ago, searched, why_missing
from icecore.cli.records.times import parse_position
from icecore.cli.session import CommandSession, session_of
from icecore.client.lookup.lookup import COUNT_MAX, Lookup
from icecore.client.lookup.search_answer import merged
from icecore.client.types import LookupPage, SegmentOutcome

app = typer.Typer(
    no_args_is_help=True, help="Show which segments and indexes a query or a fetch would read."
)
_COLUMNS = (
    "partition",
    "segment",
    "offsets",
    "node",
    "how",
    "index_bytes",
    "data_bytes",
    "candidates",
    "records",
)
_TOTALS = ("index_bytes", "data_bytes", "candidates", "records")

Analyze = Annotated[
    bool, typer.Option("--analyze", help="Run it, and show what it did instead of estimates.")
]


@app.command("query")
@with_conditions
@with_ranges
def explain_query(
    context: typer.Context,
    topic: TopicName,
    *,
    conditions: dict[str, Any],
    ranges: dict[str, Any],
    newest_first: NewestFirst = False,
    max_count: Annotated[
        int,
        typer.Option(
            "--max-count", "-n", min=1, max=COUNT_MAX, help="With --analyze: of its page."
        ),
    ] = 100,
    analyze: Analyze = False,
) -> None:
    """Show what `icecore query` with the same options would read, if it looked at everything."""
    given = {**conditions, **ranges, "newest_first": newest_first}
    _explain(session_of(context), topic, given, max_count if analyze else 0, is_all=False)


@app.command("fetch")
@with_conditions
def explain_fetch(
    context: typer.Context,
    topic: TopicName,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="POSITION",
            help="earliest, an offset, or an append time: ISO 8601 or @milliseconds.",
        ),
    ] = "earliest",
    partition: OnlyPartitions = None,
    *,
    conditions: dict[str, Any],
    analyze: Analyze = False,
) -> None:
    """Show what `icecore fetch` with the same options would read. A fetch reads every partition,
    whatever the keys."""
    session = session_of(context)
    kind, value = parse_position(start)
    if kind in ("latest", "last"):
        raise typer.BadParameter(f"{start} is a matter of the moment", param_hint="--from")
    numbers = partition or [
        each.partition
        for each in session.admin(lambda admin: admin.describe_topics([topic]))[0].partitions
    ]
    given = {
        **conditions,
        "from_append_time": value if kind == "time" else None,
        "from_offset": value if kind == "offset" else 0,
        "partitions": numbers,
    }
    _explain(session, topic, given, COUNT_MAX if analyze else 0, is_all=True)


def _explain(
    session: CommandSession, topic: str, given: dict[str, Any], max_count: int, *, is_all: bool
) -> None:
    """Args: ``max_count`` of each page; 0 = run nothing."""
    session.check_topics([topic])
    began_s = time.monotonic()
    pages = asyncio.run(_pages(session, topic, given, max_count, is_all=is_all))
    elapsed_ms = (time.monotonic() - began_s) * 1000 if max_count else None
    _show(session.output, pages, elapsed_ms)
    if not all(page.complete for page in pages):
        raise typer.Exit(EXIT_INCOMPLETE)


async def _pages(
    session: CommandSession, topic: str, given: dict[str, Any], max_count: int, *, is_all: bool
) -> list[LookupPage]:
    async with Lookup(session.bootstrap, topic, timeout_s=session.timeout_s) as lookup:
        if not max_count:
            return [await lookup.explain(**given)]
        pages = []
        async for page in lookup.pages(**given, max_count=max_count):
            pages.append(page)
            if not is_all:
                break
        return pages


def _show(output: Output, pages: list[LookupPage], elapsed_ms: float | None) -> None:
    found: dict[tuple[int, int], SegmentOutcome] = {}
    for page in pages:
        for each in page.segments:
            key = each.partition, each.segment_id
            found[key] = merged(found.get(key), each)
    rows = [asdict(each) | {"outcome": each.outcome.value} for each in found.values()]
    totals = {name: sum(row[name] for row in rows) for name in _TOTALS}
    is_complete = all(page.complete for page in pages)
    if output.is_json:
        said = {"analyzed": elapsed_ms is not None, "complete": is_complete, **totals}
        said["planned_age_ms"] = max(page.planned_age_ms for page in pages)
        if elapsed_ms is not None:
            said |= {"elapsed_ms": round(elapsed_ms, 3), "pages": len(pages)}
        output.json({**said, "segments": rows})
        return
    output.table(map(_row, found.values()), _COLUMNS)
    verb = "would read" if elapsed_ms is None else "read"
    index_bytes, data_bytes = totals["index_bytes"], totals["data_bytes"]
    words = [
        searched(found.values()),
        f"{verb} {index_bytes} bytes of indexes and {data_bytes} of segments",
    ]
    if elapsed_ms is not None:
        words.append(f"{counted(totals['records'], 'record')} in {elapsed_ms:.1f} ms")
    output.note("; ".join([*words, *planned_long_ago(pages, elapsed_ms or 0)]))
    for each in found.values():
        if each.error:
            output.error(f"not complete: {why_missing(each)}")


def _row(each: SegmentOutcome) -> dict[str, object]:
    """A segment for people."""
    how = each.outcome.value.replace("_", " by ")
    if each.index != "none":
        how += f" ({each.index}, {each.index_runs} runs)"
    if each.is_remote:
        how += f", remote: {each.remote_requests} requests, {each.remote_bytes:,} bytes"
    return {
        "partition": each.partition,
        "segment": each.segment_id,
        "offsets": f"{each.base_offset}–{'' if each.end_offset < 0 else each.end_offset}",
        "node": each.node_id or None,
        "how": how,
        "index_bytes": each.index_bytes,
        "data_bytes": each.data_bytes,
        "candidates": each.candidates,
        "records": each.records,
    }
