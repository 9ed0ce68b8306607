"""``icecore config``: the settings of the servers, effective and possible."""

import json
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from icecore.cli.session import session_of
from icecore.errors import ConfigurationError
from icecore.process import launch

app = typer.Typer(no_args_is_help=True, help="Settings of the servers.")


class Process(StrEnum):
    """Whose settings."""

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


@app.command()
def show(context: typer.Context, whose: Whose = Process.NODE, config: ConfigFile = None) -> None:
    """Show the settings that a server would take from a file and this environment.

    Settings that must be given and are not show as null.
    """
    output = session_of(context).output
    file = ["--config", str(config)] if config else []
    values = _ask(whose, "--show-config", *file)
    if output.is_json:
        output.json(values)
        return
    described = _ask(whose, "--config-schema")["properties"]
    rows = [
        {"setting": key, "value": str(value), "meaning": described[key].get("description", "")}
        for key, value in values.items()
    ]
    output.table(rows, ("setting", "value", "meaning"), f"[{whose}]")


@app.command()
def schema(context: typer.Context, whose: Whose = Process.NODE) -> None:
    """Print the JSON schema of the settings."""
    typer.echo(json.dumps(_ask(whose, "--config-schema"), indent=2))  # a standard of its own


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
