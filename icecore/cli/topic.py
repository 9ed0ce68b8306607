"""``icecore topic``: create, look at and change topics."""

from enum import StrEnum
from typing import Annotated

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from icecore.cli import topic_shown
from icecore.cli.output import plain
from icecore.cli.session import TopicName, confirm_final, session_of
from icecore.cli.times import duration
from icecore.client.types import TopicSettings
from icecore.model import FlushMode

app = typer.Typer(no_args_is_help=True, help="Create, describe, change, delete topics.")

_SIZE: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)


class Flush(StrEnum):
    """What an ack waits for."""

    SYNC = "sync"
    ASYNC = "async"


_MODES = {Flush.SYNC: FlushMode.SYNC, Flush.ASYNC: FlushMode.ASYNC, None: None}


def parse_size(text: str) -> int:
    """Bytes of ``64MiB`` and the like."""
    try:
        return int(_SIZE.validate_python(text))
    except ValidationError as error:
        raise typer.BadParameter(f"{text!r} is not a size; write 64MiB or 67108864") from error


def parse_limit(text: str) -> int:
    """As ``parse_size``, or -1."""
    return -1 if text == "-1" else parse_size(text)


def parse_topic_id(text: str) -> bytes:
    """The 16 bytes of a topic id in hex."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise typer.BadParameter(f"{text!r} is no topic id: 32 hexadecimal digits")
    return found


Name = TopicName
Replicas = Annotated[
    int, typer.Option("--replication-factor", "--replicas", min=0, help="Copies of each segment.")
]
MinInsync = Annotated[
    int, typer.Option(min=0, help="Fewest in-sync copies that acks=all accepts; 0 = 2 of 3.")
]
FlushOption = Annotated[
    Flush | None, typer.Option("--flush", help="fsync before each ack, or at intervals.")
]
FlushInterval = Annotated[
    int, typer.Option(min=0, help="With --flush async: longest time to the fsync; 1 s by default.")
]
FlushBytes = Annotated[
    int,
    typer.Option(
        parser=parse_size,
        metavar="SIZE",
        help="With --flush async: most bytes of a segment without fsync; 16MiB by default.",
    ),
]
EngineOption = Annotated[
    str, typer.Option(help="Who keeps active segments: segment, rocksdb or memory.")
]
FileModel = Annotated[
    str, typer.Option(help="Files of active segments: one per partition, or shared.")
]
OnTotalLoss = Annotated[
    str,
    typer.Option(help="When no copy of an active segment is left: unavailable or restart_empty."),
]
SegmentBytes = Annotated[
    int, typer.Option(parser=parse_size, metavar="SIZE", help="Seal at this size.")
]
SegmentAge = Annotated[int, typer.Option(min=0, help="Seal at this age in milliseconds.")]
RecordBytes = Annotated[
    int, typer.Option(parser=parse_size, metavar="SIZE", help="Largest record; 1MiB by default.")
]
BatchBytes = Annotated[
    int, typer.Option(parser=parse_size, metavar="SIZE", help="Largest batch; 4MiB by default.")
]
UncompressedBytes = Annotated[
    int,
    typer.Option(parser=parse_size, metavar="SIZE", help="Largest payload; 32MiB by default."),
]

IndexedHeader = Annotated[
    list[str] | None,
    typer.Option(
        "--indexed-header",
        metavar="NAME",
        help="Find records by the values of this header; may be repeated.",
    ),
]
DeleteGrace = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How long a deleted topic can be undeleted, in milliseconds; 0 = not at all.",
        show_default="24 h",
    ),
]
RetentionTime = Annotated[
    int | None,
    typer.Option(min=-1, help="Segments go so long after their last record; -1 = never."),
]
RetentionBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_limit,
        metavar="SIZE",
        help="The newest so many bytes of each partition stay; -1 = all.",
    ),
]
OnFull = Annotated[
    str, typer.Option(help="When a disk is nearly full: refuse, or delete_oldest segments.")
]
Tier = Annotated[str, typer.Option(help="Copy sealed segments into object storage: off or on.")]
TierFormat = Annotated[str, typer.Option(help="Of those copies: parquet or segment.")]
TierAfter = Annotated[
    int | None, typer.Option(min=0, help="Copy segments so many milliseconds after their seal.")
]
LocalTime = Annotated[
    int | None,
    typer.Option(min=-1, help="Copied segments leave the nodes so long after it; -1 = never."),
]
LocalBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_limit,
        metavar="SIZE",
        help="The newest so many bytes of each partition stay on nodes; -1 = all.",
    ),
]
TopicId = Annotated[
    bytes | None,
    typer.Option(parser=parse_topic_id, metavar="HEX", help="Instead of the name."),
]
DeletedName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the topic.", show_default=False)
]


@app.command()
def create(
    context: typer.Context,
    name: Name,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1)] = 1,
    replication_factor: Replicas = 0,
    min_insync: MinInsync = 0,
    flush: FlushOption = None,
    flush_interval_ms: FlushInterval = 0,
    flush_bytes: FlushBytes = 0,
    engine: EngineOption = "",
    file_model: FileModel = "",
    on_total_loss: OnTotalLoss = "",
    segment_bytes: SegmentBytes = 0,
    segment_age_ms: SegmentAge = 0,
    record_bytes_max: RecordBytes = 0,
    batch_bytes_max: BatchBytes = 0,
    uncompressed_bytes_max: UncompressedBytes = 0,
    partitioner: Annotated[str, typer.Option(help="xxh64, or custom.")] = "xxh64",
    delete_grace_ms: DeleteGrace = None,
    retention_ms: RetentionTime = None,
    retention_bytes: RetentionBytes = None,
    on_full: OnFull = "",
    tier: Tier = "",
    tier_format: TierFormat = "",
    tier_after_ms: TierAfter = None,
    local_retention_ms: LocalTime = None,
    local_retention_bytes: LocalBytes = None,
    indexed_header: IndexedHeader = None,
    if_not_exists: Annotated[bool, typer.Option(help="Fine when it exists already.")] = False,
) -> None:
    """Create a topic. 0 takes the cluster's default."""
    session = session_of(context)
    settings = TopicSettings(
        partitions=partitions,
        replication_factor=replication_factor,
        min_insync=min_insync,
        flush_mode=_MODES[flush],
        flush_interval_ms=flush_interval_ms,
        flush_bytes=flush_bytes,
        engine=engine,
        file_model=file_model,
        on_total_loss=on_total_loss,
        segment_bytes=segment_bytes,
        segment_age_ms=segment_age_ms,
        record_bytes_max=record_bytes_max,
        batch_bytes_max=batch_bytes_max,
        uncompressed_bytes_max=uncompressed_bytes_max,
        partitioner=partitioner,
        delete_grace_ms=delete_grace_ms,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        on_full=on_full,
        tier=tier,
        tier_format=tier_format,
        tier_after_ms=tier_after_ms,
        local_retention_ms=local_retention_ms,
        local_retention_bytes=local_retention_bytes,
        indexed_headers=tuple(indexed_header or ()),
    )
    topic = session.admin(
        lambda admin: admin.create_topic(name, settings, if_not_exists=if_not_exists)
    )
    topic_shown.show(session.output, topic)


@app.command("list")
def list_topics(
    context: typer.Context,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Those that are deleted and can be undeleted.")
    ] = False,
) -> None:
    """List all topics, or those that can be undeleted."""
    session = session_of(context)
    topics = session.admin(lambda admin: admin.describe_topics(deleted=deleted))
    if deleted:
        session.output.rows(map(topic_shown.deleted_summary, topics), topic_shown.DELETED.split())
    else:
        topic_shown.show_list(session.output, topics)


@app.command()
def describe(context: typer.Context, name: Name) -> None:
    """Show one topic: settings, and leader, replicas and offsets of each partition."""
    session = session_of(context)
    topic_shown.show(session.output, session.admin(lambda admin: admin.describe_topics([name]))[0])


@app.command()
def alter(
    context: typer.Context,
    name: Name,
    replication_factor: Replicas = 0,
    min_insync: MinInsync = 0,
    flush: FlushOption = None,
    flush_interval_ms: FlushInterval = 0,
    flush_bytes: FlushBytes = 0,
    engine: EngineOption = "",
    file_model: FileModel = "",
    on_total_loss: OnTotalLoss = "",
    segment_bytes: SegmentBytes = 0,
    segment_age_ms: SegmentAge = 0,
    record_bytes_max: RecordBytes = 0,
    batch_bytes_max: BatchBytes = 0,
    uncompressed_bytes_max: UncompressedBytes = 0,
    delete_grace_ms: DeleteGrace = None,
    retention_ms: RetentionTime = None,
    retention_bytes: RetentionBytes = None,
    on_full: OnFull = "",
    tier: Tier = "",
    tier_format: TierFormat = "",
    tier_after_ms: TierAfter = None,
    local_retention_ms: LocalTime = None,
    local_retention_bytes: LocalBytes = None,
    indexed_header: IndexedHeader = None,
    no_indexed_headers: Annotated[
        bool, typer.Option("--no-indexed-headers", help="Index no headers from now on.")
    ] = False,
) -> None:
    """Change settings; what is not given stays. Rolls the active segments, which then obey.

    Retention, tiering, --on-full and --delete-grace-ms hold at once, and roll
    nothing.
    """
    session = session_of(context)
    if no_indexed_headers and indexed_header:
        raise typer.BadParameter("--indexed-header and --no-indexed-headers contradict each other")
    settings = TopicSettings(
        replication_factor=replication_factor,
        min_insync=min_insync,
        flush_mode=_MODES[flush],
        flush_interval_ms=flush_interval_ms,
        flush_bytes=flush_bytes,
        engine=engine,
        file_model=file_model,
        on_total_loss=on_total_loss,
        segment_bytes=segment_bytes,
        segment_age_ms=segment_age_ms,
        record_bytes_max=record_bytes_max,
        batch_bytes_max=batch_bytes_max,
        uncompressed_bytes_max=uncompressed_bytes_max,
        delete_grace_ms=delete_grace_ms,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        on_full=on_full,
        tier=tier,
        tier_format=tier_format,
        tier_after_ms=tier_after_ms,
        local_retention_ms=local_retention_ms,
        local_retention_bytes=local_retention_bytes,
        indexed_headers=() if no_indexed_headers else tuple(indexed_header or ()) or None,
    )
    topic_shown.show(session.output, session.admin(lambda admin: admin.alter_topic(name, settings)))


@app.command("add-partitions")
def add_partitions(
    context: typer.Context,
    name: Name,
    partitions: Annotated[int, typer.Argument(min=1, help="The new total.", show_default=False)],
) -> None:
    """Raise the number of partitions. Keys may then go to other partitions than before."""
    session = session_of(context)
    topic_shown.show(
        session.output, session.admin(lambda admin: admin.add_partitions(name, partitions))
    )


@app.command()
def roll(context: typer.Context, name: Name) -> None:
    """Seal the active segments now and open successors."""
    session = session_of(context)
    result = session.admin(lambda admin: admin.roll_topic(name))
    if session.output.is_json:
        session.output.json(plain(result))
    else:
        session.output.note(f"{result.rolled} segments rolled")
    for error in result.errors:
        session.output.error(f"not rolled: {error}")
    if result.errors:
        raise typer.Exit(1)


@app.command()
def delete(
    context: typer.Context,
    name: DeletedName = "",
    now: Annotated[
        bool, typer.Option("--now", help="Free the space at once: it can't be undeleted.")
    ] = False,
    topic_id: TopicId = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic. Until its grace is over it can be undeleted, unless --now is given.

    To free the space of a topic that was deleted without --now: --now --topic-id HEX, with the id
    that `icecore topic list --deleted` shows.
    """
    session = session_of(context)
    what = _what(name, topic_id)
    if topic_id is None:  # a name that is not there needs no --yes
        session.admin(lambda admin: admin.describe_topics([name]))
    end = " and all its records, for good" if now else ""
    confirm_final(f"Delete {what}{end}?", yes=yes)
    left = session.admin(lambda admin: admin.delete_topic(name, now=now, topic_id=topic_id or b""))
    if not left.grace_ms:
        session.output.note(f"{what} deleted for good")
        return
    session.output.note(
        f"{what} deleted; for {duration(left.grace_ms)} it can be brought back: "
        f"icecore topic undelete --topic-id {left.topic_id.hex()}"
    )


@app.command()
def undelete(
    context: typer.Context,
    name: DeletedName = "",
    topic_id: TopicId = None,
    new_name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Call it so from now on.")
    ] = "",
) -> None:
    """Bring back a deleted topic with all its records, until its grace is over."""
    session = session_of(context)
    _what(name, topic_id)
    topic = session.admin(
        lambda admin: admin.undelete_topic(name, topic_id=topic_id or b"", new_name=new_name)
    )
    topic_shown.show(session.output, topic)


def _what(name: str, topic_id: bytes | None) -> str:
    """How to speak of the topic. Raises BadParameter when nothing says which one."""
    if not name and topic_id is None:
        raise typer.BadParameter("say which topic: its name, or --topic-id")
    return name or (topic_id or b"").hex()
