"""``icecore cluster``: nodes and health."""

import typer
from rich.filesize import decimal

from icecore.cli.output import Output, plain
from icecore.cli.session import session_of
from icecore.client.types import ClusterDescription, NodeDescription

app = typer.Typer(no_args_is_help=True, help="Nodes and health of the cluster.")


@app.callback()
def _group() -> None:
    """Keeps ``describe`` a subcommand although it is the only one."""


@app.command()
def describe(context: typer.Context) -> None:
    """Show the nodes, and how many copies are missing."""
    session = session_of(context)
    cluster = session.admin(lambda admin: admin.describe_cluster())
    if session.output.is_json:
        session.output.json(plain(cluster))
    else:
        show_cluster(session.output, cluster)


def show_cluster(output: Output, cluster: ClusterDescription) -> None:
    """Print a table of the nodes, and the totals above it."""
    rows = [
        {
            **plain(each),
            **plain(each.node),
            "disk_used": decimal(each.disk_used_bytes),
            "disk_free": decimal(each.disk_free_bytes),
        }
        for each in sorted(cluster.nodes, key=_by_id)
    ]
    totals = {key: value for key, value in plain(cluster).items() if key not in ("nodes", "pages")}
    columns = (
        *("node_id", "address", "state", "rack", "leads", "replicas"),
        *("disk_used", "disk_free"),
    )
    title = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in totals.items())
    output.table(rows, columns, title)
    if cluster.pages:
        pages = [plain(each) for each in cluster.pages]
        output.table(pages, ("segment_id", "why", "first_at_ms", "last_at_ms"), "look at these")


def _by_id(node: NodeDescription) -> int:
    return node.node.node_id
