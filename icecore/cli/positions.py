"""``icecore position``: how far readers with a name have come and are behind, and moving them.

A reader that runs while its position is changed is ended when it saves next, so that it takes
nothing back.
"""

from typing import Annotated

import typer

from icecore.cli.options import DryRun, OnlyPartitions, OnlyTopics, TopicName, Yes, complete_topic
from icecore.cli.output import counted, plain
from icecore.cli.records.times import iso_time, parse_position, position_of
from icecore.cli.session import CommandSession, confirm_final, session_of
from icecore.client.types import OffsetResult, SavedPosition
from icecore.model import OffsetSpans, records_between

app = typer.Typer(no_args_is_help=True, help="How far readers with a name have come.")

Name = Annotated[str, typer.Argument(help="Name of the position.", show_default=False)]
COLUMNS = ("name", "topic", "partition", "offset", "saved_at")


def _row(each: SavedPosition) -> dict[str, object]:
    return {**plain(each), "saved_at": iso_time(each.saved_at_ms)}


@app.command("list")
def list_saved(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="Only under this name.", show_default=False)] = "",
    topic: OnlyTopics = None,
) -> None:
    """Show what is saved: by name, topic and partition, the offset of the next record to read."""
    session = session_of(context)
    found = session.admin(lambda admin: admin.list_positions(name, topic or ()))
    session.output.rows(map(_row, found), COLUMNS)


@app.command()
def lag(context: typer.Context, name: Name, topic: OnlyTopics = None) -> None:
    """Show how many records lie between what is saved and the end of each partition."""
    session = session_of(context)
    found = session.admin(lambda admin: admin.list_positions(name, topic or ()))
    ends = _ends(session, found)
    left_out = _left_out(session, sorted(ends))
    rows, behind = [], 0
    for each in found:
        end = ends[each.topic][each.partition].offset
        missing = records_between(each.offset, end, left_out.get((each.topic, each.partition), ()))
        rows.append({**_row(each), "end": end, "lag": missing})
        behind += missing
    session.output.rows(rows, ("topic", "partition", "offset", "end", "lag", "saved_at"))
    if rows:
        session.output.note(f"{name} is {counted(behind, 'record')} behind")
    else:
        session.output.note(f"nothing is saved under {name}{' of these topics' if topic else ''}")


def _ends(
    session: CommandSession, found: list[SavedPosition]
) -> dict[str, dict[int, OffsetResult]]:
    partitions: dict[str, list[int]] = {}
    for each in found:
        partitions.setdefault(each.topic, []).append(each.partition)
    return {
        topic: session.admin(lambda admin, t=topic, n=numbers: admin.list_offsets(t, "latest", n))  # type: ignore[misc]
        for topic, numbers in partitions.items()
    }


def _left_out(session: CommandSession, topics: list[str]) -> dict[tuple[str, int], OffsetSpans]:
    if not topics:
        return {}
    described = session.admin(lambda admin: admin.describe_topics(topics))
    return {
        (topic.name, each.partition): each.left_out
        for topic in described
        for each in topic.partitions
    }


@app.command()
def reset(
    context: typer.Context,
    name: Name,
    topic: TopicName,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="earliest, latest, an offset, -N for the last N records, or an append time.",
            show_default=False,
        ),
    ],
    partition: OnlyPartitions = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let readers of a name go on elsewhere in a topic. First shows what changes, then asks."""
    session, target = session_of(context), position_of(*parse_position(to))

    def change(*, is_dry_run: bool) -> list[dict[str, object]]:
        found = session.admin(
            lambda admin: admin.reset_position(
                name, topic, target, partition or None, dry_run=is_dry_run
            )
        )
        return [
            {
                "name": name,
                "topic": topic,
                "partition": number,
                "offset": each.before,
                "to": each.to,
            }
            for number, each in found.items()
        ]

    if dry_run or not yes:
        session.output.rows(change(is_dry_run=True), ("partition", "offset", "to"), f"{name}")
    if dry_run:
        return
    confirm_final(f"Let {name} go on there in {topic}?", yes=yes)
    done = change(is_dry_run=False)
    if yes:
        session.output.rows(done, ("partition", "offset", "to"), f"{name}")
    session.output.note(f"{counted(len(done), 'partition')} of {topic} reset")


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    topic: Annotated[
        str,
        typer.Option(help="Only of this one.", autocompletion=complete_topic, show_default=False),
    ] = "",
    yes: Yes = False,
) -> None:
    """Forget how far the readers of a name have come; the next one starts as if it were new."""
    session = session_of(context)
    confirm_final(f"Forget how far {name} has come in {topic or 'all topics'}?", yes=yes)
    deleted = session.admin(lambda admin: admin.delete_positions(name, topic))
    if session.output.is_json:
        session.output.json({"deleted": deleted})
    session.output.note(f"{counted(deleted, 'position')} of {name} deleted")
