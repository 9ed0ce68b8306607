"""``icecore config``: the settings of the servers, effective and possible."""

import json
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icecore.cli.output import size
from icecore.cli.session import CommandSession, session_of
from icecore.errors import ConfigurationError
from icecore.process import launch

if TYPE_CHECKING:
    from icecore.client.admin.admin import Admin
    from icecore.v1 import data_pb2

app = typer.Typer(no_args_is_help=True, help="Settings of the servers.")


class Process(StrEnum):
    """The kind of server whose settings are shown."""

    NODE = "node"
    COORDINATOR = "coordinator"


_CLASSES = {
    Process.NODE: "icecore_node.config:NodeSettings",
    Process.COORDINATOR: "icecore_coordinator.config:CoordinatorSettings",
}
Whose = Annotated[Process, typer.Argument(help="Whose settings.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", exists=True, dir_okay=False, help="TOML file to read.")
]
RunningNode = Annotated[
    int | None,
    typer.Option("--node", metavar="ID", help="What this node of the cluster runs with."),
]


@app.command()
def show(
    context: typer.Context,
    whose: Whose = Process.NODE,
    config: ConfigFile = None,
    node: RunningNode = None,
) -> None:
    """Show settings, and where each of them is from.

    They are those that a server would take from a file and this environment; with --node those
    that a node of the cluster has taken. Required settings that nobody gives are empty.
    """
    session = session_of(context)
    if node is None:
        rows = _ask(whose, *([str(config)] if config else []))["settings"]
        title = f"[{whose}]"
    elif whose is not Process.NODE or config is not None:
        other = "--config" if config is not None else str(whose)
        raise typer.BadParameter(f"asks a node that runs: leave out {other}", param_hint="--node")
    else:
        rows, title = _rows_of_node(session, node), f"node {node}"
    if not session.output.is_json:
        rows = [{**each, "value": _shown(each["setting"], each["value"])} for each in rows]
    session.output.rows(rows, ("setting", "value", "from", "meaning"), title)


@app.command()
def schema(context: typer.Context, whose: Whose = Process.NODE) -> None:
    """Print the JSON schema of the settings."""
    typer.echo(json.dumps(_ask(whose)["schema"], indent=2))  # a standard of its own


def _shown(setting: str, value: Any) -> Any:
    """Sizes as they are typed."""
    return size(value) if "_bytes" in setting and isinstance(value, int) else value


def _rows_of_node(session: CommandSession, node_id: int) -> list[dict[str, Any]]:
    found = session.admin(lambda admin: _ask_node(session, admin, node_id))
    return [
        {"setting": each.name, "value": json.loads(each.value), "from": each.source}
        for each in found.settings
    ]


async def _ask_node(
    session: CommandSession, admin: "Admin", node_id: int
) -> "data_pb2.DescribeSettingsResponse":
    """Ask a node for its effective settings.

    Raises:
        ConfigurationError: The cluster has no such node.
    """
    # Loaded only here: `icecore config schema` answers without numpy and gRPC.
    from icecore.client.cluster.connection import Connection
    from icecore.rpc.addresses import peer_address
    from icecore.v1 import data_pb2

    cluster = await admin.describe_cluster()
    nodes = {int(each.node.node_id): each.node for each in cluster.nodes}
    if node_id not in nodes:
        known = ", ".join(map(str, sorted(nodes)))
        raise ConfigurationError(f"no node {node_id} in the cluster: there are {known}")
    async with Connection(session.bootstrap) as connection:
        return await connection.data(
            peer_address(nodes[node_id], connection.transport),
            "DescribeSettings",
            data_pb2.DescribeSettingsRequest(cluster_id=cluster.cluster_id),
            data_pb2.DescribeSettingsResponse,
            timeout_s=session.timeout_s,
        )


def _ask(whose: Process, *arguments: str) -> dict[str, Any]:
    """The server answers itself: this package doesn't import it."""
    done = subprocess.run(
        [*launch.command("icecore.cli.server_settings"), _CLASSES[whose], *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{whose} settings can't be shown"]
        raise ConfigurationError(lines[-1])
    values: dict[str, Any] = json.loads(done.stdout)
    return values
