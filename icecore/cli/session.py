"""What all commands share: the global options, and the way to the cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import typer

from icecore.cli.output import Output
from icecore.client.admin import Admin

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """The global options of one invocation."""

    bootstrap: str
    timeout_s: float
    output: Output

    def admin(self, action: Callable[[Admin], Awaitable[T]]) -> T:
        """Run ``action`` with an Admin. Raises what it raises."""

        async def run() -> T:
            async with Admin(self.bootstrap, timeout_s=self.timeout_s) as admin:
                return await action(admin)

        return asyncio.run(run())


def session_of(context: typer.Context) -> Session:
    """The session the main callback has stored."""
    session = context.obj
    assert isinstance(session, Session)
    return session
