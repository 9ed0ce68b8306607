"""What all commands share: the global options, and the way to the cluster."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from icecore.cli.output import Output
from icecore.errors import IcecoreError, UnavailableError

if TYPE_CHECKING:
    from icecore.client.admin import Admin

T = TypeVar("T")
_CONNECT_S = 5.0
_COMPLETION_S = 2.0


@dataclass(frozen=True, slots=True)
class Session:
    """The global options of one invocation."""

    bootstrap: str
    timeout_s: float
    output: Output

    def admin(self, action: "Callable[[Admin], Awaitable[T]]") -> T:
        """Run ``action`` with an Admin. Raises what it raises, and UnavailableError at once when
        nothing listens on any bootstrap address: people should not wait for a typo."""
        # Loaded only here: `icecore --help` answers without numpy and gRPC.
        from icecore.client.admin import Admin

        _check_reachable(self.bootstrap, min(_CONNECT_S, self.timeout_s))

        async def run() -> T:
            async with Admin(self.bootstrap, timeout_s=self.timeout_s) as admin:
                return await action(admin)

        return asyncio.run(run())


def _check_reachable(bootstrap: str, within_s: float) -> None:
    from icecore.process.settings import split_address
    from icecore.rpc.addresses import NATIVE

    problem = "no address is given"
    for address in bootstrap.split(","):
        try:
            bare = address.strip().removeprefix(NATIVE)
            with socket.create_connection(split_address(bare), within_s):
                return
        except OSError as error:
            problem = error.strerror or str(error)
    raise UnavailableError(f"can't connect to {bootstrap}: {problem}")


def session_of(context: typer.Context) -> Session:
    """The session the main callback has stored."""
    session = context.obj
    assert isinstance(session, Session)
    return session


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that begin so, for the shell; none when the cluster does not answer."""
    from icecore.cli import profiles

    given = context.find_root().params
    try:
        profile = profiles.load(given.get("profile") or "")
        session = Session(
            given.get("bootstrap") or profile.bootstrap,
            _COMPLETION_S,
            Output(is_json=True, is_quiet=True),
        )
        topics = session.admin(lambda admin: admin.describe_topics())
    except IcecoreError:
        return []  # a shell that waits for a TAB has no place for a message
    return sorted(each.name for each in topics if each.name.startswith(incomplete))


TopicName = Annotated[
    str,
    typer.Argument(help="Name of the topic.", show_default=False, autocompletion=complete_topic),
]


def confirm_final(question: str, *, yes: bool) -> None:
    """Ask before what takes something away; without a terminal ``--yes`` has to be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: say --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)
