"""``icecore tier``: object storage of a cluster, and buckets with or without one.

What reads a bucket is the servers' code, in a process of its own: clients don't import it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from icecore.cli.bucket import Endpoint, Region, bucket_place, run_on_bucket
from icecore.cli.options import DryRun, TopicName, Yes
from icecore.cli.output import plain
from icecore.cli.session import CommandSession, confirm_final, session_of
from icecore.client.admin.topic_settings import settings_of_plan
from icecore.client.types import MERGED_BYTES
from icecore.errors import (
    ConflictError,
    IcecoreError,
    InvalidRequestError,
    WrongClusterError,
)
from icecore.topic_settings import TopicSettings

if TYPE_CHECKING:
    from icecore.client.admin.tiering import MergeGroup

app = typer.Typer(
    no_args_is_help=True, help="Object storage: its state, proofs of a bucket, restoring, merging."
)

Url = Annotated[
    str, typer.Argument(help="As in tier_url, such as s3://bucket/prefix.", metavar="URL")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this one, by name or UUID; may repeat.")
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Make the bucket this cluster's; the one it belongs to is gone for good.",
    ),
]
Adopted = Annotated[
    list[str] | None,
    typer.Option(
        "--adopt",
        help="For a bucket that has lost its marker: a cluster, gone for good, whose it was; "
        "may repeat.",
        metavar="CLUSTER",
    ),
]
_MERGE_S = 1_800.0
"""For one group."""
_MERGE_COLUMNS = (
    "partition",
    "segments",
    "records",
    "length_bytes",
    "merged_segment_id",
    "merged_bytes",
    "problem",
)
_LOOKS = 5
"""At a bucket whose cluster goes on publishing."""
_STATUS_COLUMNS = (
    "name",
    "is_on",
    "waiting_segments",
    "uploading_segments",
    "published_segments",
    "remote_only_segments",
    "unswept_attempts",
    "local_bytes",
    "remote_bytes",
    "lag_ms",
    "stale_tables",
    "last_error",
    "table",
)
_COPY_COLUMNS = (
    "topic",
    "partition",
    "base_offset",
    "end_offset",
    "segment_id",
    "attempt",
    "records",
    "length_bytes",
    "is_published",
    "problem",
)


@app.command()
def status(context: typer.Context, topic: Topics = None) -> None:
    """Show what of topics is in object storage, what waits to be, and what fails."""
    session = session_of(context)
    found = session.admin(lambda admin: admin.describe_tiering(topic or ()))
    if session.output.is_json:
        session.output.json(plain(found))
        return
    urls = ", ".join(found.tier_urls) or "no node has an object store"
    session.output.table([plain(each) for each in found.topics], _STATUS_COLUMNS, urls)
    if found.gone_topics:
        session.output.note(f"{found.gone_topics} deleted topics still have objects")


@app.command()
def verify(
    context: typer.Context,
    url: Url,
    topic: Topics = None,
    region: Region = "",
    endpoint: Endpoint = "",
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no cluster: the table says what is published.")
    ] = False,
) -> None:
    """Prove every published copy in a bucket, reading all of it. Changes nothing.

    Objects are compared with manifests, records with digests, and what is published with the table
    and with the metadata of the cluster. Ends with status 1 when anything is damaged. What is only
    strange (files nobody knows, unfinished uploads) is told.
    """
    session = session_of(context)
    arguments = [*_topics(topic), *bucket_place(region, endpoint)]
    words = ["verify", url, *arguments]
    found = run_on_bucket(session, words) if offline else _proof(session, words, topic)
    strange = [*found["strange"], *(s for each in found["topics"] for s in each["strange"])]
    if session.output.is_json:
        session.output.json(found)
    else:
        copies = [copy for each in found["topics"] for copy in each["copies"]]
        session.output.table(
            copies,
            _COPY_COLUMNS,
            f"{url}: {found['objects']} objects, {found['length_bytes']:,} bytes; read "
            f"{found['read_bytes']:,} bytes in {found['requests']} requests; "
            f"{found['damaged']} damaged",
        )
        for each in found["topics"]:
            for line in each["damage"]:
                session.output.error(line)
    for line in strange:
        session.output.note(f"strange: {line}")
    if found["damaged"]:
        raise typer.Exit(1)


@app.command()
def restore(
    context: typer.Context,
    url: Url,
    topic: Topics = None,
    region: Region = "",
    endpoint: Endpoint = "",
    partitions: Annotated[
        int,
        typer.Option(
            min=0, help="How many the topic had; 0 = as the bucket says, or as have a copy."
        ),
    ] = 0,
    replication_factor: Annotated[
        int, typer.Option(min=0, help="Another one than the topic had; 0 = as it had.")
    ] = 0,
    skip_gaps: Annotated[
        bool,
        typer.Option(
            "--skip-gaps", help="Begin behind the last hole of a partition; lost copies are holes."
        ),
    ] = False,
    with_deleted: Annotated[
        bool,
        typer.Option("--with-deleted", help="Deleted topics, too; or name one by its UUID."),
    ] = False,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    adopt: Adopted = None,
    yes: Yes = False,
) -> None:
    """Rebuild topics from a bucket alone, in a new cluster.

    What was tiered comes back, readable from object storage; what was not is lost. Deleted topics
    and records stay deleted. Of several topics those that can't come back are named, and the
    status is 1. The bucket must belong to this cluster: --take-over gives it to it. Two clusters
    in one bucket would delete each other's objects, so the old one must never run again.
    """
    session = session_of(context)
    arguments = [*_topics(topic), *bucket_place(region, endpoint)]
    arguments += ["--partitions", str(partitions), *["--skip-gaps"] * skip_gaps]
    arguments += ["--with-deleted"] * with_deleted
    arguments += _adopt(adopt or ())
    found = run_on_bucket(session, ["plan", url, *arguments])
    problems = [
        f"{each['topic'] or each['topic_id']}: {what}"
        for each in found["topics"]
        for what in each["problems"]
    ]
    left = _left_out(found)
    if dry_run:
        _show_plan(session, found, problems)
        for line in left:
            session.output.note(line)
        if problems:
            raise typer.Exit(1)
        return
    whole = [each for each in found["topics"] if not each["problems"]]
    if not whole and problems:
        _tell_missing(session, problems)
    if not whole:
        raise ConflictError("; ".join(left[:5]) or f"no topic is in {url}")
    where = bucket_place(region, endpoint)
    _claim(session, url, found, where, adopt or (), is_meant=take_over, yes=yes)
    for line in left:
        session.output.note(line)
    refused = (_bring_back(session, each, partitions, replication_factor) for each in whole)
    _tell_missing(session, [*problems, *filter(None, refused)])


def _bring_back(
    session: CommandSession, plan: dict[str, Any], partitions: int, replication_factor: int
) -> str:
    """Import a topic. Return why the cluster refuses it; empty = it is back. Raises IcecoreError
    where no answer came: then the others would not come back either."""
    try:
        _import(session, plan, _settings(session, plan, partitions, replication_factor))
    except IcecoreError as error:
        if error.indeterminate:
            raise
        return f"{plan['topic']}: {error.message}"
    count = len(plan["segments"])
    session.output.note(f"topic {plan['topic']} is back with {count} segments")
    return ""


def _tell_missing(session: CommandSession, problems: list[str]) -> None:
    """Say last which topics are not back. Raises typer.Exit where there are some."""
    for line in problems:
        session.output.error(f"not restored: {line}")
    if problems:
        session.output.note("repeat the restore once that is mended: it passes by what is back")
        raise typer.Exit(1)


def _left_out(found: dict[str, Any]) -> list[str]:
    """Return what the plan leaves out: topics, and parts of those that come back."""
    topics = [
        f"topic {each['topic']} ({each['topic_id']}) is left out: {each['why']}"
        for each in found["left_out"]
    ]
    return [*topics, *(line for each in found["topics"] for line in each["left_out"])]


def _import(session: CommandSession, plan: dict[str, Any], settings: TopicSettings) -> None:
    session.admin(lambda admin: admin.import_tiered(plan, settings))


def _settings(
    session: CommandSession, plan: dict[str, Any], partitions: int, replication_factor: int
) -> TopicSettings:
    """As the bucket says, and as the operator does; those of a new topic where it says nothing."""
    found = settings_of_plan(plan)
    if found is None:
        session.output.note(
            f"the bucket has no settings of topic {plan['topic']}: it gets those of a new one with "
            "tier=on, alter it afterwards"
        )
        found = TopicSettings(tier="on")
    count = max(partitions, plan["partitions"], found.partitions or 0)
    factor, in_sync = replication_factor or found.replication_factor, found.min_insync_replicas
    if factor is not None and in_sync is not None:
        in_sync = min(in_sync, factor)
    return replace(found, partitions=count, replication_factor=factor, min_insync_replicas=in_sync)


def _show_plan(session: CommandSession, found: dict[str, Any], problems: list[str]) -> None:
    if session.output.is_json:
        session.output.json(found)
    else:
        rows = [
            {"topic": each["topic"], **segment}
            for each in found["topics"]
            for segment in each["segments"]
        ]
        session.output.table(
            rows, _COPY_COLUMNS, f"{found['url']}, of {found['cluster_id'] or '?'}"
        )
    for line in problems:
        session.output.error(line)


def _claim(
    session: CommandSession,
    url: str,
    found: dict[str, Any],
    where: list[str],
    adopted: Sequence[str],
    *,
    is_meant: bool,
    yes: bool,
) -> None:
    """See that the bucket is this cluster's. Raises WrongClusterError."""
    mine = session.admin(lambda admin: admin.describe_tiering()).cluster_id.hex()
    owner = found["cluster_id"]
    is_other = owner not in ("", mine)
    if owner == mine and not adopted and not found.get("other_tables"):
        return
    if is_other and not is_meant:
        raise WrongClusterError(
            f"{url} belongs to cluster {owner}, this one is {mine}. If that one is gone for good, "
            "say --take-over; should it still run, both would delete each other's objects"
        )
    if is_other:
        confirm_final(f"Take {url} from cluster {owner}, which must never run again?", yes=yes)
    for each in adopted:
        confirm_final(f"Take what cluster {each} left, which must never run again?", yes=yes)
    claim = ["take-over", url, *where, "--cluster", mine, *(["--old", owner] if owner else [])]
    claim += _adopt(adopted)
    run_on_bucket(session, claim)


@app.command("forget-store")
def forget_store(
    context: typer.Context,
    store_id: Annotated[
        str, typer.Argument(help="Its id, as `icecore tier status --json` shows it.")
    ],
    yes: Yes = False,
) -> None:
    """Give up an object store that is gone for good, so that nodes begin another one.

    Nodes refuse every other store until then. Segments that only this store had stay listed, and
    can't be read unless it comes back; what nodes still have is uploaded into the next one.
    """
    session = session_of(context)
    if not re.fullmatch("[0-9a-fA-F]{32}", store_id):
        raise typer.BadParameter("an id is 32 hexadecimal digits", param_hint="STORE_ID")
    meant = bytes.fromhex(store_id)
    found = session.admin(lambda admin: admin.describe_tiering())
    alone = sum(each.remote_only_segments for each in found.topics)
    confirm_final(f"Give up the object store, which alone has {alone} segments?", yes=yes)
    session.admin(lambda admin: admin.forget_store(meant))
    session.output.note(f"object store {store_id} is given up")


@app.command("export-manifest")
def export_manifest(
    context: typer.Context,
    url: Url,
    topic: Topics = None,
    region: Region = "",
    endpoint: Endpoint = "",
) -> None:
    """Write the list of a table's files for engines that read Hive's symlink format.

    It holds for this moment; whoever reads Delta tables does not need it.
    """
    session = session_of(context)
    found = run_on_bucket(session, ["hive", url, *_topics(topic), *bucket_place(region, endpoint)])
    session.output.rows(found["manifests"], ("topic", "url", "files"))


@app.command()
def merge(
    context: typer.Context,
    topic: TopicName,
    target_bytes: Annotated[
        int, typer.Option(min=1, help="Of a merged segment's objects, at most.")
    ] = MERGED_BYTES,
    dry_run: DryRun = False,
) -> None:
    """Make few large segments of many small ones, while readers go on.

    Only segments that object storage alone has are merged, one group after the other; Ctrl-C ends
    after none or all of a group. The job `rewrite` of icecore.spark.jobs merges several at once.
    """
    session = session_of(context)
    patient = replace(session, timeout_s=max(session.timeout_s, _MERGE_S))
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[int, ...], None] = {}
    while True:
        plan = session.admin(lambda admin: admin.plan_merges(topic, target_bytes))
        groups = [each for each in plan.groups if each.segment_ids not in seen]
        for each in groups:
            seen[each.segment_ids] = None
            rows.append(_merged(patient, topic, each, is_dry=dry_run))
            if not dry_run:
                session.output.note(f"{len(rows)}: {_told(rows[-1])}")
        if dry_run or not groups:
            break
    title = f"{topic}: {len(rows)} groups{' fit together' if dry_run else ''}"
    session.output.rows(rows, _MERGE_COLUMNS, title)


def _merged(
    session: CommandSession, topic: str, group: "MergeGroup", *, is_dry: bool
) -> dict[str, Any]:
    """Merge one group and return its row; a dry run merges nothing."""
    row: dict[str, Any] = {
        "partition": group.partition,
        "segments": len(group.segment_ids),
        "segment_ids": [*group.segment_ids],
        "records": group.records,
        "length_bytes": group.length_bytes,
        "merged_segment_id": 0,
        "merged_bytes": 0,
        "problem": "",
    }
    if is_dry:
        return row
    try:
        found = session.admin(lambda admin: admin.merge_segments(topic, group.segment_ids))
    except InvalidRequestError as error:  # others may still be merged
        return {**row, "problem": error.message}
    merged = {"merged_segment_id": found.segment.segment_id, "merged_bytes": found.length_bytes}
    return {**row, **merged}


def _told(row: dict[str, Any]) -> str:
    where = f"partition {row['partition']}, {row['segments']} segments"
    if row["problem"]:
        return f"{where} stay as they are: {row['problem']}"
    return f"{where} are segment {row['merged_segment_id']}, {row['records']:,} records"


def _proof(session: CommandSession, words: list[str], topics: list[str] | None) -> dict[str, Any]:
    """Verify the published copies. Look again when damage shows while metadata change: a commit may
    be under way."""
    known = _metadata(session, topics)
    for _ in range(_LOOKS):
        found = run_on_bucket(session, [*words, "--published"], known)
        before, known = known, _metadata(session, topics)
        if not found["damaged"] or known == before:
            break
    return found


def _metadata(session: CommandSession, topics: list[str] | None) -> str:
    """Return the published copies as JSON, in the form that the other process reads."""
    found = session.admin(lambda admin: admin.describe_tiering(with_copies=True))
    wanted = [
        each
        for each in found.topics
        if not topics or {each.name, str(UUID(bytes=each.topic_id))} & {*topics}
    ]
    return json.dumps(
        [{"topic_id": each.topic_id.hex(), "copies": plain(each.copies)} for each in wanted]
    )


def _topics(topics: list[str] | None) -> list[str]:
    return [word for each in topics or () for word in ("--topic", each)]


def _adopt(clusters: Sequence[str]) -> list[str]:
    return [word for each in clusters for word in ("--adopt", each.lower())]
