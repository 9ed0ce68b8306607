"""Run a server as a process: settings, log, limits, signals, pages for monitors, the end.

Both servers do it alike: ``run`` in ``main``, and ``ServerProcess`` while they serve. A server that
can't start or go on ends with status 1 and one line on stderr; SIGTERM and SIGINT end it with 0.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import uvloop

from icecore.errors import IcecoreError
from icecore.process.log import LogFormat, set_up
from icecore.process.memory import MemoryReturn
from icecore.process.status_page import Pages, StatusServer
from icecore.process.system import open_standard_streams, raise_descriptor_limit, tune_process


class StartSettings(Protocol):
    """Settings that each server has."""

    @property
    def log_level(self) -> str: ...
    @property
    def log_format(self) -> LogFormat: ...
    @property
    def descriptors_min(self) -> int: ...
    @property
    def metrics_listen(self) -> str: ...
    @property
    def insecure_bind(self) -> bool: ...

    def check_addresses(self) -> None:
        """Raises ConfigurationError when an address is malformed or unsafe to listen on."""


_S = TypeVar("_S", bound=StartSettings)


class ServerProcess:
    """The process of a server, from the start of its loop until ``close``.

    Args:
        program: Name of the command.
        settings: Of the server.
        descriptor_limit: How many files and connections may be open at once.
    """

    def __init__(self, program: str, settings: StartSettings, descriptor_limit: int) -> None:
        self._program = program
        self._settings = settings
        self.descriptor_limit = descriptor_limit
        self._stopping = asyncio.Event()
        self._memory = MemoryReturn()
        self._status: StatusServer | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        self._memory.start()

    def show(self, pages: Callable[[], Pages]) -> None:
        """Serve pages for monitors, where the settings say an address for them.

        Raises:
            ConfigurationError: The address is taken.
        """
        if listen := self._settings.metrics_listen:
            self._status = StatusServer(pages(), listen, insecure_bind=self._settings.insecure_bind)

    def say_ready(self, **known: object) -> None:
        """Print the line for which supervisors wait: the program is ready, and what is known."""
        said = " ".join(f"{name}={value}" for name, value in known.items())
        print(f"{self._program} ready {said}", flush=True)

    async def has_ended(self, work: Coroutine[Any, Any, object]) -> bool:
        """Wait until ``work`` has ended. Return False when a signal came before that: then ``work``
        is cancelled.

        Raises what ended ``work``; after a signal, only what is no IcecoreError.
        """
        loop = asyncio.get_running_loop()
        ended, stopped = loop.create_task(work), loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                return False
            ended.result()
            return True
        finally:
            stopped.cancel()
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError, IcecoreError):
                await ended

    async def close(self) -> None:
        """Show nothing any more, and give no more memory back. Call it before the server stops."""
        if self._status is not None:
            # On a thread: a scrape that is under way may ask this very loop.
            await asyncio.to_thread(self._status.stop)
        await self._memory.stop()


def run(
    program: str,
    load: Callable[[], _S],
    serve: Callable[[_S, ServerProcess], Coroutine[Any, Any, None]],
) -> int:
    """Run a server until SIGTERM or SIGINT, or until it can't go on. Return the exit status.

    Args:
        program: Name of the command, for its errors.
        load: Reads the settings.
        serve: Serves until its end, closes the process that it is given, and stops.
    """
    open_standard_streams()
    tune_process()
    try:
        settings = load()
        set_up(settings.log_level, settings.log_format)
        settings.check_addresses()
        limit = raise_descriptor_limit(settings.descriptors_min)

        async def main() -> None:
            await serve(settings, ServerProcess(program, settings, limit))

        uvloop.run(main())
    except IcecoreError as error:
        print(f"{program}: {error.message}", file=sys.stderr)
        return 1
    return 0
