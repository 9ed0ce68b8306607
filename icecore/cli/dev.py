"""``icecore dev``: a cluster on this machine until Ctrl-C."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from icecore.cli.session import session_of
from icecore.dev import HOST, LocalCluster
from icecore.errors import UnavailableError

_POLL_S = 0.2


class _Stopped(BaseException):
    """Raised by a signal, also in the middle of a start; not an Exception, so nothing eats it."""


def dev(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=1, max=50, help="How many nodes.")] = 3,
    data: Annotated[Path, typer.Option(help="Folder of the cluster; kept.")] = Path(".icecore"),
    port: Annotated[
        int, typer.Option(min=1, max=65_000, help="Of the coordinator; nodes take the next ones.")
    ] = 7400,
    host: Annotated[str, typer.Option(help="What to listen on.")] = HOST,
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="TOML file for all processes.")
    ] = None,
    insecure_bind: Annotated[
        bool, typer.Option(help="Allow a host that other machines reach, without TLS.")
    ] = False,
) -> None:
    """Run a cluster on this machine: one coordinator and some nodes, until Ctrl-C.

    The folder holds data, logs and pids; starting again continues with the same data. A process
    that ends by itself is reported and not restarted.
    """
    output = session_of(context).output
    cluster = LocalCluster(
        data,
        nodes,
        base_port=port,
        host=host,
        insecure_bind=insecure_bind,
        config_path=config,
        with_metrics=True,
    )
    reported: set[int] = set()
    failure = ""
    with _signals():
        try:
            output.note(f"starting 1 coordinator and {nodes} nodes in {cluster.folder}")
            cluster.start()
            output.note(f"coordinator  {cluster.bootstrap}")
            for i, address in cluster.addresses.items():
                metrics = cluster.node(i).metrics_listen
                output.note(f"node {i}       {address}  metrics http://{metrics}/metrics")
            output.note("ready; stop with Ctrl-C")
            while True:
                for member in cluster.dead():
                    if member.pid not in reported:
                        reported.add(member.pid)
                        output.error(f"{member.name} ended: see {member.log_path}")
                if not cluster.coordinator.is_running:
                    raise UnavailableError(
                        f"the coordinator ended:\n{cluster.coordinator.log_tail()}"
                    )
                time.sleep(_POLL_S)
        except _Stopped:
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
    if failure or warnings or reported:
        raise typer.Exit(1)
    output.note("stopped")


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
