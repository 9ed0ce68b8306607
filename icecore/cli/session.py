"""Shared parts of all commands: the global options, and the way to the cluster."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import typer

from icecore.cli.output import Output
from icecore.errors import IcecoreError

if TYPE_CHECKING:
    from icecore.client.admin.admin import Admin
    from icecore.client.cluster.connection import Connection

T = TypeVar("T")
_CONNECT_S = 5.0
_SILENT_S = 0.8
"""A server greets at once, also while it is busy."""
_BEHIND_S = 1.5
"""So long after a topic was made, each node that hears of the coordinator has heard of it."""


@dataclass(frozen=True, slots=True)
class CommandSession:
    """The global options of one invocation."""

    bootstrap: str
    timeout_s: float
    output: Output

    def admin(self, action: "Callable[[Admin], Awaitable[T]]") -> T:
        """Run ``action`` with an Admin. Raises what it raises, and UnavailableError at once when
        nothing listens on any bootstrap address: people should not wait for a typo."""
        # Loaded only here: `icecore --help` answers without numpy and gRPC.
        from icecore.client.admin.admin import Admin

        _check_reachable(self.bootstrap, min(_CONNECT_S, self.timeout_s))

        async def run() -> T:
            async with Admin(self.bootstrap, timeout_s=self.timeout_s) as admin:
                return await action(admin)

        return asyncio.run(run())

    def check_topics(self, names: Sequence[str]) -> None:
        """Raises UnknownTopicError at once where a client would wait for the topic. Any node can
        say so; one that is behind has a moment to hear of what was just created."""
        from icecore.client.cluster.connection import Connection

        _check_reachable(self.bootstrap, min(_CONNECT_S, self.timeout_s))

        async def run() -> None:
            async with Connection(self.bootstrap) as connection:
                give_up_ms = connection.deadline_ms(_BEHIND_S)
                while (error := await _unknown(connection, names, self.timeout_s)) is not None:
                    if connection.clock.monotonic_ms() >= give_up_ms:
                        raise error
                    await asyncio.sleep(_BEHIND_S / 10)

        asyncio.run(run())


async def _unknown(
    connection: "Connection", names: Sequence[str], timeout_s: float
) -> IcecoreError | None:
    """Return why one of the topics can't be used, if an answer that may be out of date says so.

    Raises what an answer says that is not.
    """
    from icecore.rpc import convert
    from icecore.v1 import admin_pb2

    answer = await connection.admin(
        "GetMetadata",
        admin_pb2.GetMetadataRequest(topics=names),
        admin_pb2.GetMetadataResponse,
        timeout_s=timeout_s,
    )
    errors = [convert.error_from_proto(each.error) for each in answer.topics]
    first = next((each for each in errors if each is not None), None)
    if first is not None and not answer.age_ms:
        raise first
    return first


def _check_reachable(bootstrap: str, within_s: float) -> None:
    from icecore.client.cluster.bootstrap import Bootstrap
    from icecore.rpc.knocking import knock

    problem: IcecoreError | None = None
    for address in str(Bootstrap(bootstrap)).split(","):
        try:
            knock(address, within_s, _SILENT_S)
            return
        except IcecoreError as error:
            problem = error
    assert problem is not None  # there is an address
    raise problem


def session_of(context: typer.Context) -> CommandSession:
    """The session the main callback has stored."""
    session = context.obj
    assert isinstance(session, CommandSession)
    return session


def confirm_final(question: str, *, yes: bool) -> None:
    """Ask before what takes something away; without a terminal ``--yes`` has to be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: say --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)
