"""``icecore dev``: a cluster on this machine until Ctrl-C, and what can be done with it."""

import asyncio
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from icecore.cli import dev_requests
from icecore.cli.output import Output, counted
from icecore.cli.records import sample
from icecore.cli.session import session_of
from icecore.dev import HOST, LocalCluster
from icecore.errors import ConfigurationError, IcecoreError, UnavailableError
from icecore.process.members import Member

_POLL_S = 0.2
_TIER_LIBRARIES = ("obstore", "deltalake", "pyarrow")


_TierUrl = Annotated[
    str | None,
    typer.Option(
        help="Object store of all nodes; none = no object store. By default a folder beside "
        "the nodes', unless --config is given or icecore[tier] is not installed."
    ),
]
_Advertise = Annotated[
    str,
    typer.Option(
        metavar="HOST", help="Name or address that clients connect to.  [default: --host]"
    ),
]
_InsecureBind = Annotated[
    bool, typer.Option("--insecure-bind", help="Allow a host that others reach, without TLS.")
]
_FOLDER = Path(".icecore")
_RESTART_S = 120.0

app = typer.Typer(invoke_without_command=True, subcommand_metavar="[COMMAND] [ARGS]...")


def _folder(given: str | Path) -> Path:
    if not str(given).strip():
        raise typer.BadParameter("it is empty: name a folder")
    return Path(given)


Data = Annotated[
    Path, typer.Option(parser=_folder, metavar="PATH", help="Folder of the cluster; kept.")
]


class _Stopped(BaseException):
    """Raised by a signal, also in the middle of a start; not an Exception, so nothing eats it."""


@app.callback()
def dev(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=1, max=50, help="How many nodes.")] = 3,
    data: Data = _FOLDER,
    port: Annotated[
        int, typer.Option(min=1, max=65_000, help="Of the coordinator; nodes take the next ones.")
    ] = 7400,
    host: Annotated[str, typer.Option(help="Name or address to listen on.")] = HOST,
    advertise: _Advertise = "",
    config: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, metavar="FILE", help="TOML file for all processes."
        ),
    ] = None,
    tier_url: _TierUrl = None,
    insecure_bind: _InsecureBind = False,
    with_sample: Annotated[
        bool,
        typer.Option("--sample", help=f"Make the topic {sample.TOPIC}, with records to try."),
    ] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    It has one coordinator and some nodes. The folder holds data, logs and pids; starting again
    continues with the same data. A process that ends by itself is reported, and the others go on:
    `icecore dev restart NAME` starts it again.
    """
    if context.invoked_subcommand is not None:
        return
    output = session_of(context).output
    cluster = LocalCluster(
        data,
        nodes,
        base_port=port,
        host=host,
        advertise=advertise,
        insecure_bind=insecure_bind,
        config_path=config,
        tier_url=_tier_url(tier_url, data, has_config=config is not None),
        with_metrics=True,
    )
    failure = ""
    is_whole = True
    with _signals():
        try:
            output.note(f"starting 1 coordinator and {counted(nodes, 'node')} in {cluster.folder}")
            cluster.start()
            _say_addresses(output, cluster)
            if with_sample:
                _fill(output, cluster)
            output.note("ready; stop with Ctrl-C")
            _watch(output, cluster)
        except _Stopped:
            is_whole = not cluster.dead()
            output.note("stopping")
        except UnavailableError as error:
            failure = error.message
        finally:
            # A second Ctrl-C must not leave processes behind.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            warnings = cluster.stop()
    for problem in filter(None, (failure, *warnings)):
        output.error(problem)
    if failure or warnings or not is_whole:
        raise typer.Exit(1)
    output.note("stopped")


def _tier_url(given: str | None, data: Path, *, has_config: bool) -> str:
    """Empty = what the configuration says, which is none by default."""
    if given is not None:
        return "" if given == "none" else given
    has_libraries = all(importlib.util.find_spec(name) for name in _TIER_LIBRARIES)
    return (
        (Path(os.path.realpath(data)) / "tier").as_uri() if has_libraries and not has_config else ""
    )


@app.command()
def restart(
    name: Annotated[
        str, typer.Argument(help="coordinator, node-1, node-2 and so on.", show_default=False)
    ],
    context: typer.Context,
    data: Data = _FOLDER,
) -> None:
    """Start a process of the running `icecore dev` again; stop it first if it runs."""
    dev_requests.ask(data.resolve(), name, _RESTART_S)
    session_of(context).output.note(f"{name} was started again")


@app.command("sample")
def print_sample(
    count: Annotated[int, typer.Option(min=0, help="How many lines.")] = sample.COUNT,
) -> None:
    """Print sample data to produce: departures, one JSON object per line, the same each time."""
    for line in sample.lines(count):
        sys.stdout.write(line + "\n")


def _say_addresses(output: Output, cluster: LocalCluster) -> None:
    metrics = cluster.coordinator.metrics_listen
    output.note(f"coordinator  {cluster.bootstrap}  metrics http://{metrics}/metrics")
    for i, address in cluster.addresses.items():
        metrics = cluster.node(i).metrics_listen
        output.note(f"node {i}       {address}  metrics http://{metrics}/metrics")


def _fill(output: Output, cluster: LocalCluster) -> None:
    count = asyncio.run(sample.fill(cluster.bootstrap))
    said = f"{counted(count, 'record')} in" if count else "there is already"
    output.note(f"{said} topic {sample.TOPIC}: icecore fetch {sample.TOPIC} -n 3")


def _watch(output: Output, cluster: LocalCluster) -> None:
    """Report what ends, and start again what somebody asks for, until a signal."""
    dev_requests.clear(cluster.folder)
    reported: set[int] = set()
    while True:
        for member in cluster.dead():
            if member.pid not in reported:
                reported.add(member.pid)
                output.error(_obituary(member, cluster.folder))
        for name in list(dev_requests.asked(cluster.folder)):
            try:
                _start_again(cluster, name)
            except IcecoreError as error:
                output.error(f"{name} was not started again: {error.message}")
                dev_requests.answer(cluster.folder, name, error.message)
            else:
                output.note(f"{name} was started again")
                dev_requests.answer(cluster.folder, name)
        time.sleep(_POLL_S)


def _start_again(cluster: LocalCluster, name: str) -> None:
    """Raises ConfigurationError when there is no such process, and UnavailableError."""
    if name == "coordinator":
        cluster.kill_coordinator()  # it stores each decision before anybody hears of it
        cluster.start_coordinator()
        return
    numbers = {f"node-{node_id}": node_id for node_id in cluster.addresses}
    if name not in numbers:
        raise ConfigurationError(f"no process {name!r}: there are {', '.join(numbers)}")
    if cluster.node(numbers[name]).is_running:
        cluster.stop_node(numbers[name])
    cluster.start_node(numbers[name])


def _obituary(member: Member, folder: Path) -> str:
    here = "" if folder == _FOLDER.resolve() else f" --data {folder}"
    return (
        f"{member.name} {member.end}, the others go on; see {member.log_path}; "
        f"start it again with: icecore dev restart {member.name}{here}"
    )


@contextmanager
def _signals() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
