"""``icecore cluster``: nodes and health."""

from typing import Annotated

import typer

from icecore.cli.output import Output, plain, size
from icecore.cli.session import confirm_final, session_of
from icecore.client.types import ClusterDescription, NodeDescription

app = typer.Typer(no_args_is_help=True, help="Nodes and health of the cluster.")


@app.command()
def describe(context: typer.Context) -> None:
    """Show the nodes, and how many copies are missing."""
    session = session_of(context)
    cluster = session.admin(lambda admin: admin.describe_cluster())
    if session.output.is_json:
        session.output.json(plain(cluster))
    else:
        show_cluster(session.output, cluster)


@app.command("accept-disk")
def accept_disk(
    context: typer.Context,
    node_id: Annotated[int, typer.Option(help="The node that comes with another disk.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
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


def show_cluster(output: Output, cluster: ClusterDescription) -> None:
    """Print a table of the nodes, and the totals above it."""
    rows = [
        {
            **plain(each),
            **plain(each.node),
            "disk_used": size(each.disk_used_bytes),
            "disk_free": size(each.disk_free_bytes),
        }
        for each in sorted(cluster.nodes, key=_by_id)
    ]
    totals = {key: value for key, value in plain(cluster).items() if key not in ("nodes", "pages")}
    columns = (
        "node_id",
        "address",
        "native_address",
        "state",
        "rack",
        "leads",
        "replicas",
        "disk_used",
        "disk_free",
    )
    if not cluster.sealed_segments:
        totals["min_copies"] = "-"  # of sealed segments: there are none
    title = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in totals.items())
    output.table(rows, columns, title)
    disks = [
        {
            "node_id": each.node.node_id,
            "path": disk.path,
            "used": size(disk.used_bytes),
            "free": size(disk.free_bytes),
            "problem": disk.problem,
        }
        for each in sorted(cluster.nodes, key=_by_id)
        if len(each.disks) > 1
        for disk in each.disks
    ]
    if disks:
        output.table(disks, ("node_id", "path", "used", "free", "problem"), "disks")
    if cluster.pages:
        pages = [plain(each) for each in cluster.pages]
        output.table(pages, ("segment_id", "why", "first_at_ms", "last_at_ms"), "look at these")


def _by_id(node: NodeDescription) -> int:
    return node.node.node_id
