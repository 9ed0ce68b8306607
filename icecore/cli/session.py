"""What all commands share: the global options, and the way to the cluster."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import typer

from icecore.cli.output import Output
from icecore.client.admin import Admin
from icecore.errors import UnavailableError
from icecore.process.settings import split_address
from icecore.rpc.addresses import NATIVE

T = TypeVar("T")
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Session:
    """The global options of one invocation."""

    bootstrap: str
    timeout_s: float
    output: Output

    def admin(self, action: Callable[[Admin], Awaitable[T]]) -> T:
        """Run ``action`` with an Admin. Raises what it raises, and UnavailableError at once when
        nothing listens on any bootstrap address: people should not wait for a typo."""
        _check_reachable(self.bootstrap)

        async def run() -> T:
            async with Admin(self.bootstrap, timeout_s=self.timeout_s) as admin:
                return await action(admin)

        return asyncio.run(run())


def _check_reachable(bootstrap: str) -> None:
    for address in bootstrap.split(","):
        try:
            bare = address.strip().removeprefix(NATIVE)
            with socket.create_connection(split_address(bare), _CONNECT_S):
                return
        except OSError as error:
            problem = error.strerror or str(error)
    raise UnavailableError(f"can't connect to {bootstrap}: {problem}")


def session_of(context: typer.Context) -> Session:
    """The session the main callback has stored."""
    session = context.obj
    assert isinstance(session, Session)
    return session


def confirm_final(question: str, *, yes: bool) -> None:
    """Ask before what can't be undone; without a terminal ``--yes`` has to be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("this is final: say --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)
