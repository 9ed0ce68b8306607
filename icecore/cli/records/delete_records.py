"""``icecore topic delete-records`` and ``icecore segment delete``: what goes of a topic that stays.

Both first say what would go, then ask. Segments go from the head of a partition only, and only
sealed ones: deleting them is deleting the records before the end of the last one.
"""

from typing import Annotated, Any

import typer

from icecore.cli.options import DryRun, OnlyPartitions, PartitionNumber, TopicName, Yes
from icecore.cli.output import Output, counted, plain
from icecore.cli.records.times import parse_time_ms
from icecore.cli.session import CommandSession, confirm_final, session_of
from icecore.client.cluster.offsets import time_position
from icecore.client.types import DeletedRecords
from icecore.errors import InvalidRequestError
from icecore.model import Segment, SegmentState


def parse_moment(text: str) -> int:
    """Milliseconds of ``--before-time``."""
    try:
        return parse_time_ms(text.removeprefix("@"))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def delete_records(
    context: typer.Context,
    name: TopicName,
    partition: OnlyPartitions = None,
    before_offset: Annotated[
        int | None, typer.Option(min=0, help="The first offset to keep.")
    ] = None,
    before_time: Annotated[
        int | None,
        typer.Option(
            parser=parse_moment,
            metavar="TIME",
            help="Keep what was appended then or later: ISO 8601 or @milliseconds.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete the oldest records of partitions, for good. First shows what goes, then asks.

    Readers see at once where the log starts now. Files go as whole segments: the rest of the one
    that holds the new start goes with it, later.
    """
    if (before_offset is None) == (before_time is None):
        raise typer.BadParameter("give --before-offset or --before-time, and not both")
    session = session_of(context)
    if before_time is not None:
        moment = time_position(before_time)
        found = session.admin(lambda admin: admin.list_offsets(name, moment, partition))
        offsets = {number: each.offset for number, each in found.items()}
    else:
        assert before_offset is not None
        numbers = partition or _partitions(session, name)
        offsets = dict.fromkeys(numbers, before_offset)
    _delete(session, name, offsets, is_dry_run=dry_run, yes=yes)


def delete_segments(
    context: typer.Context,
    topic: TopicName,
    partition: PartitionNumber,
    segment_ids: Annotated[
        list[int], typer.Argument(help="As `segment list` shows them.", show_default=False)
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete the oldest sealed segments of a partition, for good. First shows what goes.

    Only from the head: a log has no holes.
    """
    session = session_of(context)
    segments = session.admin(lambda admin: admin.list_segments(topic, [partition]))
    offset = end_of_head(segments, segment_ids)
    _delete(session, topic, {partition: offset}, is_dry_run=dry_run, yes=yes)


def end_of_head(segments: list[Segment], segment_ids: list[int]) -> int:
    """Return the end of the named segments: the oldest of a partition, all sealed.

    Raises InvalidRequestError, which says of the first one that can't go why.
    """
    wanted = set(segment_ids)
    known: dict[int, Segment] = {each.segment_id: each for each in segments}
    for segment_id in segment_ids:
        segment = known.get(segment_id)
        if segment is None:
            raise InvalidRequestError(f"the partition has no segment {segment_id}")
        if segment.state is not SegmentState.SEALED:
            raise InvalidRequestError(
                f"segment {segment_id} is {segment.state.name} and only sealed ones go: "
                "`icecore topic roll` seals it"
            )
    head: list[Segment] = []
    for segment in segments:
        if segment.segment_id not in wanted:
            break
        head.append(segment)
    left = wanted - {each.segment_id for each in head}
    if left:
        stays = segments[len(head)].segment_id
        raise InvalidRequestError(
            f"segment {min(left)} lies behind segment {stays}, which would stay: segments go from "
            f"the head only, so name {stays} as well"
        )
    return head[-1].end_offset


def _partitions(session: CommandSession, name: str) -> list[int]:
    [topic] = session.admin(lambda admin: admin.describe_topics([name]))
    return [each.partition for each in topic.partitions]


def _delete(
    session: CommandSession, name: str, offsets: dict[int, int], *, is_dry_run: bool, yes: bool
) -> None:
    """Show what goes, ask, and delete."""
    output = session.output
    found = session.admin(lambda admin: admin.delete_records(name, offsets, dry_run=True))
    count = sum(each.log_start_offset - each.from_offset for each in found)
    if is_dry_run or not count:
        _show(output, name, found)
        return
    if not output.is_json:
        _show(output, name, found)
    confirm_final(f"Delete these {counted(count, 'record')} of {name} for good?", yes=yes)
    found = session.admin(lambda admin: admin.delete_records(name, offsets))
    if output.is_json:
        _show(output, name, found)
    output.note(f"{counted(count, 'record')} of {name} deleted")


def _show(output: Output, name: str, found: list[DeletedRecords]) -> None:
    if output.is_json:
        output.json([plain(each) for each in found])
        return
    columns = ("partition", "start", "new_start", "records", "segments", "length_bytes")
    output.table(map(_row, found), columns, f"{name}: what goes")


def _row(each: DeletedRecords) -> dict[str, Any]:
    return {
        "partition": each.partition,
        "start": each.from_offset,
        "new_start": each.log_start_offset,
        "records": each.log_start_offset - each.from_offset,
        "segments": tuple(segment.segment_id for segment in each.segments),
        "length_bytes": sum(segment.length_bytes for segment in each.segments),
    }
