"""``icecore segment``: the segments of a topic, and an offline check of a node's data folder."""

import json
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from icecore.cli.options import OnlyPartitions, PartitionNumber, TopicName, Yes
from icecore.cli.output import plain
from icecore.cli.session import confirm_final, session_of
from icecore.errors import StorageError
from icecore.process import launch

app = typer.Typer(no_args_is_help=True, help="Segments of topics and of data folders.")


@app.command("list")
def list_segments(
    context: typer.Context,
    topic: TopicName,
    partition: OnlyPartitions = None,
) -> None:
    """List the segments of a topic in the order of their offsets."""
    session = session_of(context)
    segments = session.admin(lambda admin: admin.list_segments(topic, partition or []))
    rows = [{**plain(each), "copies": len(each.replicas)} for each in segments]
    if session.output.is_json:
        session.output.json(rows)
        return
    session.output.table(
        [
            {
                **row,
                "length_bytes": row["length_bytes"] or None,
                "lossy": "lossy" if row["lossy"] else "",
            }
            for row in rows
        ],
        (
            "partition",
            "segment_id",
            "state",
            "epoch",
            "base_offset",
            "end_offset",
            "length_bytes",
            "leader",
            "replicas",
            "isr",
            "lossy",
        ),
    )


SegmentId = Annotated[int, typer.Argument(help="As `segment list` shows it.", show_default=False)]


@app.command("declare-lost")
def declare_lost(
    context: typer.Context,
    topic: TopicName,
    partition: PartitionNumber,
    segment_id: SegmentId,
    yes: Yes = False,
) -> None:
    """Give up a sealed segment whose every copy is gone: consumers skip its records."""
    session = session_of(context)
    confirm_final(f"Give up segment {segment_id} of {topic}/{partition} for ever?", yes=yes)
    segment = session.admin(lambda admin: admin.declare_lost(topic, partition, segment_id))
    session.output.note(f"records [{segment.base_offset}, {segment.end_offset}) are given up")


@app.command("recover-unclean")
def recover_unclean(
    context: typer.Context,
    topic: TopicName,
    partition: PartitionNumber,
    segment_id: SegmentId,
    yes: Yes = False,
) -> None:
    """End a segment that can't be recovered safely at the longest copy left of it.

    Copies that count for nothing (a failed sync, an old disk) are used as far as their checksums
    prove them. Start every node that had a copy first: the longest one that answers is taken.
    """
    session = session_of(context)
    confirm_final(f"Accept that acknowledged records of {topic}/{partition} are lost?", yes=yes)
    segment = session.admin(lambda admin: admin.recover_unclean(topic, partition, segment_id))
    if segment is None:
        session.output.note("nothing was left of it")
    elif segment.is_lost:
        session.output.note(f"nothing was left of it; {segment.end_offset} had been read")
    else:
        session.output.note(f"sealed at {segment.end_offset} by the longest copy left")
    session.output.note(f"{topic}/{partition} goes on above all offsets that anybody has read")


@app.command()
def verify(
    context: typer.Context,
    data_folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="--data of a stopped node.")
    ],
) -> None:
    """Check a data folder offline: file headers, chain, CRCs, digests and indexes. Changes nothing.

    Ends with status 1 when any replica is damaged. A damaged index is told and costs nothing: the
    node makes another one.
    """
    session = session_of(context)
    # The node's own code does it, in a process of its own: the client package doesn't import it.
    done = subprocess.run(
        [*launch.command("icecore_node.storage.inspect"), str(data_folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(done.stdout)
    except ValueError as error:
        why = done.stderr.strip().splitlines() or ["no report"]
        raise StorageError(why[-1].removeprefix("icecore: ")) from error
    if session.output.is_json:
        session.output.json(report)
    else:
        session.output.table(
            report["replicas"],
            (
                "topic_id",
                "partition",
                "segment_id",
                "state",
                "base_offset",
                "end_offset",
                "batches",
                "bytes",
                "problem",
                "index",
            ),
            f"{data_folder}: {len(report['replicas'])} replicas, {report['damaged']} damaged",
        )
    if done.returncode:
        raise typer.Exit(1)
