"""The ``icecore`` command: global options, the commands, and how errors end the process.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 no such topic, 4 an answer to a query that is not
complete. Errors are one line on stderr that says what to do; a traceback means a bug.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from icecore.cli import cluster, config, explain, segment, topic
from icecore.cli.delete_records import delete_records, delete_segments
from icecore.cli.dev import dev
from icecore.cli.fetch import fetch
from icecore.cli.output import Output
from icecore.cli.produce import produce
from icecore.cli.query import query
from icecore.cli.session import Session
from icecore.errors import (
    IcecoreError,
    RequestTimeoutError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.process.system import tune_process

EXIT_ERROR, EXIT_USAGE, EXIT_NOT_FOUND = 1, 2, 3

app = typer.Typer(
    name="icecore",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="A replicated segment store for event streams.",
)
app.add_typer(topic.app, name="topic")
app.add_typer(cluster.app, name="cluster")
app.add_typer(segment.app, name="segment")
app.add_typer(config.app, name="config")
app.add_typer(explain.app, name="explain")
topic.app.command("delete-records")(delete_records)
segment.app.command("delete")(delete_segments)
app.command()(produce)
app.command()(fetch)
app.command()(query)
app.command()(dev)


@app.callback()
def _globals(
    context: typer.Context,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap", "-b", envvar="ICECORE_BOOTSTRAP", help="HOST:PORT of the coordinator."
        ),
    ] = "127.0.0.1:7400",
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON (the default when stdout is no terminal).")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes, no progress.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for one answer.", metavar="SECONDS")
    ] = 30.0,
) -> None:
    """Options of all commands; they may stand after the command as well."""
    context.obj = Session(bootstrap, timeout, Output(is_json=json, is_quiet=quiet))


def _hoist_globals(arguments: Sequence[str]) -> list[str]:
    """Move the global options to the front, so that ``icecore topic list --json`` works."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in ("--json", "--quiet", "-q") or word.startswith("--bootstrap="):
            front.append(word)
        elif word in ("--bootstrap", "-b", "--timeout"):
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            rest.append(word)
    return front + rest


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its status."""
    tune_process()
    words = _hoist_globals(sys.argv[1:] if arguments is None else arguments)
    try:
        app(words, prog_name="icecore")
    except BrokenPipeError:
        # The reader of our output (``| head``) has seen enough; nothing may be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except UnknownTopicError as error:
        _fail(error.message, EXIT_NOT_FOUND)
    except (UnavailableError, RequestTimeoutError) as error:
        _fail(f"{error.message} (is the cluster running? `icecore dev` starts one here)")
    except IcecoreError as error:
        _fail(error.message)


def _fail(message: str, status: int = EXIT_ERROR) -> None:
    Output(is_json=False, is_quiet=False).error(message)
    sys.exit(status)
