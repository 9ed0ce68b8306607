"""The ``icecore`` command: global options, and how a command ends the process.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 no such topic, 4 an answer to a query that is not
complete, 10 and 20 a cluster that is degraded or unavailable, 130 interrupted. Errors are one line
on stderr that says what to do, or a JSON object with ``--json``; a traceback means a bug.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

import icecore
from icecore.cli import profiles
from icecore.cli.commands import Commands, explain_option
from icecore.cli.output import Output, drop_output, use_utf8
from icecore.cli.session import CommandSession
from icecore.errors import (
    IcecoreError,
    RequestTimeoutError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.process.system import open_standard_streams, raise_descriptor_limit, tune_process

_DESCRIPTORS_MIN = 32
"""With fewer than about thirteen gRPC ends the process; the rest is for connections to nodes."""
EXIT_ERROR, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_INTERRUPTED = 1, 2, 3, 130
_COMPLETE = "_ICECORE_COMPLETE"
_USAGE_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""Base class of usage errors: click's, or that of the copy inside newer versions of typer."""

app = typer.Typer(
    name="icecore",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A replicated segment store for event streams.",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"icecore {icecore.__version__} (Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            envvar="ICECORE_BOOTSTRAP",
            metavar="HOST:PORT",
            help="Coordinators or nodes.  [default: 127.0.0.1:7400]",
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            envvar="ICECORE_PROFILE",
            metavar="NAME",
            help="Cluster by its name in ~/.config/icecore/config.toml.",
            show_default=False,
        ),
    ] = "",
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON (the default when stdout is no terminal).")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes, no progress.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="How long to wait for one answer.  [default: 30]"
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Options of all commands; they may stand after the command as well."""
    raise_descriptor_limit(_DESCRIPTORS_MIN)
    output = Output(is_json=json, is_quiet=quiet)
    given = profiles.load(profile, output.note)
    context.obj = CommandSession(
        bootstrap or given.bootstrap,
        given.timeout_s if timeout is None else timeout,
        output,
    )


_FLAGS = ("--json", "--quiet", "-q")
_OPTIONS = ("--bootstrap", "-b", "--timeout", "--profile")
_GIVEN = ("--bootstrap=", "--timeout=", "--profile=")


def _hoist_globals(arguments: Sequence[str]) -> list[str]:
    """Move the global options to the front, so that ``icecore topic list --json`` works."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _FLAGS or word.startswith(_GIVEN):
            front.append(word)
        elif word in _OPTIONS:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            rest.append(word)
    return front + rest


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its status."""
    open_standard_streams()
    use_utf8()
    tune_process()
    words = _hoist_globals(sys.argv[1:] if arguments is None else arguments)
    is_json = "--json" in words
    try:
        status = _run(words, is_json=is_json)
        try:
            sys.stdout.flush()  # here, where a full disk can still be reported
        except BrokenPipeError:  # the reader has seen enough, and the status stays what it is
            drop_output()
    except typer.Abort:
        _fail("nothing was done", EXIT_ERROR, is_json=is_json)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED, is_json=is_json)
    except IcecoreError as error:
        _fail(_sentence(error), _status_of(error), reason=error.reason, is_json=is_json)
    except UnicodeError as error:  # of an argument: what is read is decoded where it is read
        _fail(f"something that was given is not UTF-8: {error}", EXIT_USAGE, is_json=is_json)
    except OSError as error:
        if error.errno != errno.EPIPE:
            drop_output()
            _fail(_trouble(error), is_json=is_json)
        # The reader of our output (``| head``) has seen enough; nothing may be flushed to it.
        drop_output()
        status = 0
    sys.exit(status)


def _run(words: list[str], *, is_json: bool) -> int:
    """The status of a command that did not fail."""
    command: Any = get_command(app)
    if _COMPLETE in os.environ:
        with contextlib.suppress(KeyError):  # a shell sets more variables than that one
            command(words, prog_name="icecore", complete_var=_COMPLETE)
        return EXIT_USAGE
    try:
        with command.make_context("icecore", words) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except _USAGE_ERROR as error:
        status = int(error.exit_code)
        explain_option(error)
        if is_json:
            _fail(_usage_of(error), status, reason="USAGE", is_json=True)
        error.show()
        return status
    return 0


def _usage_of(error: Any) -> str:
    """One sentence; a command without arguments is answered with its whole help elsewhere."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return f"{error.ctx.command_path} needs a command or arguments: see its --help"
    message: str = error.format_message()
    return message


def _status_of(error: IcecoreError) -> int:
    return EXIT_NOT_FOUND if isinstance(error, UnknownTopicError) else EXIT_ERROR


def _sentence(error: IcecoreError) -> str:
    if isinstance(error, UnavailableError | RequestTimeoutError):
        return f"{error.message} (is the cluster running? `icecore dev` starts one here)"
    return error.message


def _trouble(error: OSError) -> str:
    why = error.strerror or str(error)
    if error.errno == errno.ENOENT and not error.filename:  # of os.getcwd
        return "the working folder is gone: go to another one"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{why}: raise the limit of this process or machine (ulimit -n)"
    return f"{error.filename}: {why}" if error.filename else f"the output can't be written: {why}"


def _fail(
    message: str, status: int = EXIT_ERROR, *, reason: str = "FAILED", is_json: bool = False
) -> NoReturn:
    Output(is_json=is_json, is_quiet=False).failure(message, status, reason)
    sys.exit(status)
