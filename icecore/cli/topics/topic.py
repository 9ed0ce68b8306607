"""``icecore topic``: create, look at and change topics."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from icecore.cli.options import TopicName, Yes
from icecore.cli.output import plain
from icecore.cli.records.times import duration
from icecore.cli.session import confirm_final, session_of
from icecore.cli.topics import topic_shown
from icecore.cli.topics.topic_options import with_settings
from icecore.topic_settings import TopicSettings

if TYPE_CHECKING:
    from icecore.client.admin.admin import Admin
    from icecore.client.types import TopicDescription

app = typer.Typer(no_args_is_help=True, help="Create, describe, change, delete topics.")


def parse_topic_id(text: str) -> bytes:
    """The 16 bytes of a topic id in hex."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise typer.BadParameter(f"{text!r} is no topic id: 32 hexadecimal digits")
    return found


TopicId = Annotated[
    bytes | None,
    typer.Option(parser=parse_topic_id, metavar="HEX", help="Instead of the name."),
]
DeletedName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the topic.", show_default=False)
]


@app.command()
@with_settings(is_new=True)
def create(
    context: typer.Context,
    name: TopicName,
    settings: TopicSettings,
    if_not_exists: Annotated[bool, typer.Option(help="Fine when it exists already.")] = False,
) -> None:
    """Create a topic. Settings that are not given take the cluster's defaults."""
    session = session_of(context)
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
def describe(context: typer.Context, name: TopicName) -> None:
    """Show one topic: settings, and leader, replicas and offsets of each partition."""
    session = session_of(context)

    async def ask(admin: "Admin") -> "tuple[TopicDescription, str]":
        [topic] = await admin.describe_topics([name])
        if not any(each.tiered_segments for each in topic.partitions):
            return topic, ""
        return topic, (await admin.describe_tiering([name])).topics[0].table

    topic_shown.show(session.output, *session.admin(ask))


@app.command()
@with_settings(is_new=False)
def alter(
    context: typer.Context,
    name: TopicName,
    settings: TopicSettings,
    no_indexed_headers: Annotated[
        bool, typer.Option("--no-indexed-headers", help="Index no headers from now on.")
    ] = False,
    wanted: Annotated[int | None, typer.Option("--partitions", "-p", hidden=True)] = None,
) -> None:
    """Change settings; what is not given stays. Rolls the active segments, which then obey.

    Retention, tiering, --on-full and --delete-grace-ms hold at once, and roll
    nothing.
    """
    session = session_of(context)
    if wanted is not None:  # other systems alter the number like a setting
        raise typer.BadParameter(
            f"partitions are only added: icecore topic add-partitions {name} {wanted}"
        )
    if no_indexed_headers and settings.indexed_headers:
        raise typer.BadParameter("give --indexed-header or --no-indexed-headers, and not both")
    if no_indexed_headers:
        settings = replace(settings, indexed_headers=())
    topic_shown.show(session.output, session.admin(lambda admin: admin.alter_topic(name, settings)))


@app.command("add-partitions")
def add_partitions(
    context: typer.Context,
    name: TopicName,
    partitions: Annotated[int, typer.Argument(min=1, help="The new total.", show_default=False)],
) -> None:
    """Raise the number of partitions. Keys may then go to other partitions than before."""
    session = session_of(context)
    topic_shown.show(
        session.output, session.admin(lambda admin: admin.add_partitions(name, partitions))
    )


@app.command()
def roll(context: typer.Context, name: TopicName) -> None:
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
    yes: Yes = False,
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
    """Return how to speak of the topic. Raises BadParameter when nothing says which one."""
    if not name and topic_id is None:
        raise typer.BadParameter("say which topic: its name, or --topic-id")
    return name or (topic_id or b"").hex()
