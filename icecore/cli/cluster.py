"""``icecore cluster``: nodes and health."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icecore.cli.bucket import Endpoint, Region, bucket_place, read_inventory
from icecore.cli.options import DryRun, Yes
from icecore.cli.output import Output, counted, plain, size
from icecore.cli.records.times import iso_time
from icecore.cli.session import confirm_final, session_of
from icecore.client.cluster_types import AdoptedMetadata, ClusterDescription, NodeDescription
from icecore.client.types import TopicDescription
from icecore.errors import ConfigurationError
from icecore.process import launch

if TYPE_CHECKING:
    from icecore.client.admin.admin import Admin

app = typer.Typer(no_args_is_help=True, help="Nodes and health of the cluster.")
_MOVE: Final = "topic partition leader next_leader replicas next_replicas"
_NODE: Final = "node_id address native state rack leads replicas disk_used disk_free"
CoordinatorConfig = Annotated[
    Path | None, typer.Option(help="Settings of that coordinator: its store may be in etcd.")
]
_LISTED: Final = "node_id address state drained rack host leads segments disk_used disk_free"


@app.command()
def describe(context: typer.Context) -> None:
    """Show the nodes, and how many copies are missing."""
    session = session_of(context)
    cluster, topics = session.admin(_ask)
    data_bytes = sum(part.length_bytes for topic in topics for part in topic.partitions)
    if session.output.is_json:
        session.output.json({"data_bytes": data_bytes, **document(cluster)})
        return
    show_cluster(session.output, cluster)
    session.output.note(f"all topics hold {size(data_bytes)}, each copied byte counted once")


async def _ask(admin: "Admin") -> tuple[ClusterDescription, list[TopicDescription]]:
    return await admin.describe_cluster(), await admin.describe_topics()


@app.command()
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Replaced when it is a backup of this cluster.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of a coordinator that does not run: read its store instead."),
    ] = None,
    config: CoordinatorConfig = None,
) -> None:
    """Write the coordinator's metadata into a file, while the cluster runs.

    Records are not in it: they are on the nodes. Take one every day, and keep it on another
    machine. `icecore cluster restore` makes a store of it.
    """
    session = session_of(context)
    if data is not None:
        found = _run_on_store("dump", file, data, config)
    else:
        found = plain(session.admin(lambda admin: admin.backup_metadata(file)))
    if session.output.is_json:
        session.output.json(found)
        return
    session.output.note(
        f"{file} has {found['records']} records of cluster {found['cluster_id']}, at revision "
        f"{found['revision']}"
    )


@app.command()
def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="As `icecore cluster backup` wrote it.")],
    data: Annotated[Path, typer.Option(help="Folder of the new coordinator, without a store.")],
    config: CoordinatorConfig = None,
) -> None:
    """Make the store of a coordinator from a backup, before that coordinator is started.

    For when the newest store is lost, or is to move to another machine or into etcd. Nothing is
    changed where there is a store already.
    """
    session = session_of(context)
    found = _run_on_store("restore", file, data, config)
    if session.output.is_json:
        session.output.json(found)
        return
    session.output.note(
        f"{data} has the metadata of cluster {found['cluster_id']}: {found['topics']} topics, "
        f"{found['segments']} segments. Start its coordinator at the usual address, and all nodes. "
        "If it waits because it is an older copy: icecore cluster adopt --dry-run"
    )


def _run_on_store(command: str, file: Path, data: Path, config: Path | None) -> dict[str, Any]:
    """One command on a store whose coordinator does not run. Raises ConfigurationError."""
    program = launch.command("icecore_coordinator.store_commands")
    where = ["--config", str(config)] if config is not None else []
    done = subprocess.run(
        [*program, command, str(file), "--data", str(data), *where],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines() or ["it ended without a word"]
        raise ConfigurationError(why[-1].removeprefix("icecore: "))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@app.command()
def balance(context: typer.Context, dry_run: DryRun = False) -> None:
    """Even out leaders and replicas now: segments roll, and their successors open elsewhere.

    It happens by itself while no node is away. Sealed segments stay where they are.
    """
    session = session_of(context)
    moves = session.admin(lambda admin: admin.balance_cluster(dry_run=dry_run))
    if session.output.is_json:
        session.output.json({"items": [plain(each) for each in moves]})
        return
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "leader": each.leader,
            "next_leader": each.next_leader,
            "replicas": " ".join(map(str, each.replicas)),
            "next_replicas": " ".join(map(str, each.next_replicas)),
        }
        for each in moves
    ]
    session.output.table(rows, _MOVE.split())
    if not moves:
        session.output.note("leaders and replicas are even: nothing moves")
    elif dry_run:
        session.output.note(f"{counted(len(moves), 'segment')} would roll; nothing was changed")
    else:
        session.output.note(f"{counted(len(moves), 'segment')} roll, a few at a time")


@app.command("accept-disk")
def accept_disk(
    context: typer.Context,
    node_id: Annotated[int, typer.Option(help="The node that comes with another disk.")],
    yes: Yes = False,
) -> None:
    """Give up what was on a node's disk before, though it holds the last copies of segments.

    The node itself says when it needs this. It holds for its next registration.
    """
    session = session_of(context)
    confirm_final(f"Give up what node {node_id} had on its disk before, for ever?", yes=yes)
    lost = session.admin(lambda admin: admin.accept_disk(node_id))
    session.output.note(
        f"node {node_id} may come with another disk; the one before holds the last intact copy of "
        f"{lost} segments"
    )


@app.command()
def adopt(
    context: typer.Context,
    dry_run: DryRun = False,
    without_node: Annotated[
        list[int] | None,
        typer.Option(help="This node is gone for good; what it alone has is lost (repeatable)."),
    ] = None,
    skip_gaps: Annotated[
        bool, typer.Option(help="Offsets that no node has, nor the bucket, count as lost.")
    ] = False,
    bucket: Annotated[
        str,
        typer.Option(
            help="The cluster's own, as in tier_url: what nodes dropped since comes back.",
            metavar="URL",
        ),
    ] = "",
    region: Region = "",
    endpoint: Endpoint = "",
    yes: Yes = False,
) -> None:
    """Go on with the coordinator's store, though it is an older copy, or empty.

    For when the newest store is lost. Nodes tell what they hold, and every number goes above that.
    With --bucket, segments and topics that object storage has come back as well. Start all nodes
    first. Nothing is deleted. Ends with status 1 when nothing was changed.
    """
    session, gone = session_of(context), without_node or []
    topics: list[dict[str, Any]] | None = None
    problems: list[str] = []

    async def ask(admin: "Admin", *, is_dry: bool) -> AdoptedMetadata:
        return await admin.adopt_metadata(
            dry_run=is_dry, without_nodes=gone, skip_gaps=skip_gaps, bucket=topics
        )

    found = session.admin(lambda admin: ask(admin, is_dry=True))
    if bucket and not found.is_done:
        place, cluster_id = bucket_place(region, endpoint), found.cluster_id.hex()
        topics, problems = read_inventory(session, bucket, place, cluster_id, skip_gaps=skip_gaps)
        found = session.admin(lambda admin: ask(admin, is_dry=True))
    _show_adopted(session.output, found)
    why_not = _why_not_adopted(found, problems, skip_gaps=skip_gaps)
    if not (dry_run or why_not or found.is_done):
        confirm_final("Go on with this store, and never with a newer one?", yes=yes)
        found = session.admin(lambda admin: ask(admin, is_dry=False))
    if session.output.is_json:
        session.output.json({**plain(found), "why_not": why_not})
    if found.is_done:
        session.output.note("the cluster goes on; look at it: icecore cluster health --wait 60")
        return
    session.output.note(f"nothing was changed. {why_not or 'Nothing is in the way'}")
    if why_not:
        raise typer.Exit(1)


def _why_not_adopted(found: AdoptedMetadata, problems: Sequence[str], *, skip_gaps: bool) -> str:
    """Return what is in the way of an adoption; empty when nothing is."""
    if found.missing_nodes:
        names = ", ".join(map(str, found.missing_nodes))
        options = " ".join(f"--without-node {each}" for each in found.missing_nodes)
        return (
            f"Nodes that have not told what they hold: {names}. Start them, wait some seconds, and "
            f"repeat the command. If they are gone for good: {options}"
        )
    if problems:
        return (
            f"The bucket has topics that are not whole: {problems[0]}. Mend it, and repeat the "
            "command. To go on, and count as lost what can't be read: --skip-gaps"
        )
    if not skip_gaps and any(each.is_gap for each in found.findings):
        return (
            "Offsets are on no node, or an object store was not read: see above. Start every node "
            "that may have them, or can read it. Offsets of a tiered topic are in its bucket: "
            "--bucket URL brings them back. To go on, and count all of it as lost: --skip-gaps"
        )
    return ""


def _show_adopted(output: Output, found: AdoptedMetadata) -> None:
    """Say what comes back, and print a table of what a person must know."""
    told = ", ".join(map(str, found.told_nodes)) or "none"
    output.note(f"cluster {found.cluster_id.hex()}; nodes that told what they hold: {told}")
    output.note(f"{found.segments_found} segments and {found.topics_found} topics come back")
    if found.findings and not output.is_json:
        rows = [plain(each) for each in found.findings]
        output.table(rows, ("topic", "partition", "segment_id", "why"), "a person must know these")


def document(cluster: ClusterDescription) -> dict[str, Any]:
    """A cluster for programs, nodes in the order of their ids."""
    others = ("nodes", "alerts", "backup_at_ms")
    totals = {key: value for key, value in plain(cluster).items() if key not in others}
    return {
        **totals,
        "min_copies": cluster.min_copies if cluster.sealed_segments else None,
        "backup_at": iso_time(cluster.backup_at_ms) if cluster.backup_at_ms else None,
        "nodes": [node_document(each) for each in sorted(cluster.nodes, key=_by_id)],
        "alerts": [
            {
                "segment_id": each.segment_id,
                "why": each.why,
                "first_at": iso_time(each.first_at_ms),
                "last_at": iso_time(each.last_at_ms),
            }
            for each in cluster.alerts
        ],
    }


def node_document(each: NodeDescription) -> dict[str, Any]:
    """Return a node for programs; a line of a table, too."""
    return {
        "node_id": each.node.node_id,
        "address": each.node.address,
        "native_address": each.node.native_address,
        "state": each.node.state.name.lower(),
        "rack": each.node.rack,
        "host": each.host,
        "leads": each.leads,
        "replicas": each.replicas,
        "held": each.held,
        "drained": each.is_drained,
        "disk_used_bytes": each.disk_used_bytes,
        "disk_free_bytes": each.disk_free_bytes,
        "disks": [plain(disk) for disk in each.disks],
    }


def show_cluster(output: Output, cluster: ClusterDescription) -> None:
    """Print a table of the nodes, and the totals above it."""
    found = document(cluster)
    rows = [_node_row(each) for each in found.pop("nodes")]
    alerts = found.pop("alerts")
    limits = found.pop("limits")
    title = ", ".join(
        f"{key.replace('_', ' ')} {'-' if value is None else value}" for key, value in found.items()
    )
    output.table(rows, _NODE.split(), title)
    disks = [
        {
            "node_id": row["node_id"],
            "path": disk["path"],
            "used": size(disk["used_bytes"]),
            "free": size(disk["free_bytes"]),
            "problem": disk["problem"],
        }
        for row in rows
        if len(row["disks"]) > 1
        for disk in row["disks"]
    ]
    if disks:
        output.table(disks, ("node_id", "path", "used", "free", "problem"), "disks")
    if full := [each for each in limits if each["way_out"]]:
        output.table(full, ("name", "used", "most", "way_out"), "limits that are nearly reached")
    if alerts:
        output.table(
            alerts, ("segment_id", "why", "first_at", "last_at"), "a person must judge these"
        )


def show_nodes(output: Output, nodes: Sequence[NodeDescription]) -> None:
    """Print a table of nodes, with what they hold."""
    rows = [
        {
            **_node_row(node_document(each)),
            "drained": "yes" if each.is_drained else "",
            "segments": max(each.held, each.replicas),
        }
        for each in nodes
    ]
    output.table(rows, _LISTED.split(), "")


def _node_row(each: dict[str, Any]) -> dict[str, Any]:
    return {
        **each,
        "native": _short(each["native_address"], each["address"]),
        "disk_used": size(each["disk_used_bytes"]),
        "disk_free": size(each["disk_free_bytes"]),
    }


def _short(native_address: str, address: str) -> str:
    """The port alone, where the host is the same."""
    return native_address.removeprefix(address.rpartition(":")[0])


def _by_id(node: NodeDescription) -> int:
    return node.node.node_id
