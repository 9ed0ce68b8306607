"""``icecore node``: storage nodes that come, are emptied, and go."""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from icecore.cli.cluster import node_document, show_nodes
from icecore.cli.options import Yes
from icecore.cli.output import counted
from icecore.cli.session import CommandSession, confirm_final, session_of
from icecore.client.cluster_types import NodeDescription

if TYPE_CHECKING:
    from icecore.client.admin.admin import Admin

app = typer.Typer(no_args_is_help=True, help="Storage nodes that come, are emptied, and go.")
_LOOK_S: Final = 1.0
_SAID_EVERY_S: Final = 10.0
NodeNumber = Annotated[int, typer.Argument(help="Number of the node.", show_default=False)]


@app.command("list")
def list_nodes(context: typer.Context) -> None:
    """Show the nodes, what they hold, and which are to be empty."""
    session = session_of(context)
    found = session.admin(_nodes)
    if session.output.is_json:
        session.output.json({"items": [node_document(each) for each in found]})
        return
    show_nodes(session.output, found)


@app.command()
def drain(
    context: typer.Context,
    node_id: NodeNumber,
    allow_fewer_copies: Annotated[
        bool,
        typer.Option("--allow-fewer-copies", help="Also where too few other nodes are left."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait so long until it is empty.", show_default=False
        ),
    ] = 0,
) -> None:
    """Have a node emptied: it gets nothing new, and other nodes take what it has.

    The cluster goes on meanwhile, and has no copy less at any time. An empty node can be stopped
    and removed. It stays as it is over restarts, until `icecore node undrain`. With --wait it ends
    with status 1 when the node is not empty in time; the work goes on.
    """
    session = session_of(context)
    session.admin(lambda admin: admin.drain_node(node_id, allow_fewer_copies=allow_fewer_copies))
    if not wait:
        session.output.note(f"node {node_id} is being emptied: icecore node list shows how far")
        return
    left = _wait_empty(session, node_id, wait)
    if left:
        session.output.note(f"node {node_id} still holds {counted(left, 'segment')}")
        raise typer.Exit(1)
    session.output.note(f"node {node_id} is empty: stop it, then icecore node remove {node_id}")


def _wait_empty(session: CommandSession, node_id: int, within_s: float) -> int:
    """Return how many segments the node still holds at the end."""
    deadline, said_s = time.monotonic() + within_s, 0.0
    while True:
        (found,) = (each for each in session.admin(_nodes) if each.node.node_id == node_id)
        left, now_s = max(found.held, found.replicas), time.monotonic()
        if not left or now_s >= deadline:
            return left
        if now_s - said_s >= _SAID_EVERY_S:
            session.output.note(f"node {node_id} holds {counted(left, 'segment')}")
            said_s = now_s
        time.sleep(min(_LOOK_S, deadline - now_s))


@app.command()
def undrain(context: typer.Context, node_id: NodeNumber) -> None:
    """Let a node get new segments again."""
    session = session_of(context)
    session.admin(lambda admin: admin.undrain_node(node_id))
    session.output.note(f"node {node_id} gets new segments again")


@app.command()
def remove(
    context: typer.Context,
    node_id: NodeNumber,
    disk_gone: Annotated[
        bool,
        typer.Option("--disk-gone", help="Its disk never comes back: give up what is on it."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Take a node that is down and gone for good out of the cluster.

    It is refused while the node holds something, and the error says what. With --disk-gone its
    copies are given up, as far as other nodes that are up have them.
    """
    session = session_of(context)
    what = "and give up all that is on its disk, for ever" if disk_gone else "for ever"
    confirm_final(f"Remove node {node_id}, {what}?", yes=yes)
    given_up = session.admin(lambda admin: admin.remove_node(node_id, disk_gone=disk_gone))
    session.output.note(
        f"node {node_id} is removed; {given_up} of its copies were given up. Who comes with its "
        "id is a new node"
    )


async def _nodes(admin: "Admin") -> tuple[NodeDescription, ...]:
    found = await admin.describe_cluster()
    return tuple(sorted(found.nodes, key=lambda each: each.node.node_id))
