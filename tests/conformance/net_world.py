"""The place where the suites of the network port run: a client, servers, and a wire to cut.

A real transport runs on an asyncio loop of its own for each test, the simulator's on its loop with
virtual time. A world tells what nobody expected: failures that a server met, tasks that are left.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from icecore.rpc.ports import Handlers, Net, Server
from tests.support.fair_loop import FairLoop

LOOPBACK = "127.0.0.1:0"


class World(ABC):
    """The client, servers and wire that a test of the port gets."""

    client: Net
    unreachable: str
    """An address where nobody listens."""
    stall_s: float
    """Longer than any keep-alive of this transport, where a test can wait that long."""
    quiet_s: float = 0.2
    """Seconds without progress after which a writer counts as waiting."""

    @abstractmethod
    async def serve(self, handlers: Handlers, address: str | None = None) -> Server:
        """A server of a process of its own; the world stops it in the end."""

    @abstractmethod
    async def serve_mortal(self, handlers: Handlers) -> tuple[str, Callable[[], None]]:
        """A server's address, and what breaks all connections to it at once."""

    @abstractmethod
    def failures(self) -> str:
        """Return the unexpected failures in the servers' logs, and forget them."""


class _Wire:
    """Passes bytes on to a server, until somebody cuts it."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead_reader, ahead_writer = await asyncio.open_connection(self._host, int(self._port))
        self._writers |= {writer, ahead_writer}
        for pair in ((reader, ahead_writer), (ahead_reader, writer)):
            task = asyncio.ensure_future(self._pass_on(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while some := await reader.read(1 << 16):
                writer.write(some)
                await writer.drain()
        except ConnectionError:
            pass  # one side is gone; the other hears of it below
        writer.close()

    def cut(self) -> None:
        """RST to both sides, and nobody listens any more."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        while self._tasks:
            await asyncio.wait(set(self._tasks))


class RealWorld(World):
    """Sockets on loopback.

    Args:
        make_net: The transport.
        stall_s: See ``World``.
    """

    unreachable = "127.0.0.1:1"

    def __init__(self, make_net: Callable[[], Net], stall_s: float) -> None:
        self.client = make_net()
        self.stall_s = stall_s
        self._server_net = make_net()
        self._servers: list[Server] = []
        self._wires: list[_Wire] = []
        self._logs = _Logs()

    async def serve(self, handlers: Handlers, address: str | None = None) -> Server:
        server = await self._server_net.serve(address or LOOPBACK, handlers)
        self._servers.append(server)
        return server

    async def serve_mortal(self, handlers: Handlers) -> tuple[str, Callable[[], None]]:
        wire = _Wire((await self.serve(handlers)).address)
        self._wires.append(wire)
        return await wire.open(), wire.cut

    def failures(self) -> str:
        return self._logs.taken()

    async def close(self) -> None:
        for server in self._servers:
            await server.stop(0)
        await self.client.close()
        await self._server_net.close()
        for wire in self._wires:
            await wire.close()
        assert not self._logs.taken()
        self._logs.remove()


class _Logs(logging.Handler):
    """Errors that were logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: list[str] = []
        logging.getLogger().addHandler(self)
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if "ExecuteBatchError" not in text:  # gRPC's words for a caller that left before its answer
            self._lines.append(text)

    def taken(self) -> str:
        lines, self._lines = self._lines, []
        return "\n".join(lines)

    def remove(self) -> None:
        logging.getLogger().removeHandler(self)


def run_really(
    make_net: Callable[[], Net],
    main: Callable[[World], Awaitable[None]],
    stall_s: float,
    make_loop: Callable[[], asyncio.AbstractEventLoop] = FairLoop,
) -> None:
    """Run a test on a loop of its own; nothing of the transport may be left behind."""

    async def run() -> None:
        world = RealWorld(make_net, stall_s)
        try:
            async with asyncio.timeout(60):
                await main(world)
        finally:
            await world.close()
        await nothing_is_left()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())


async def nothing_is_left(within_s: float = 2.0) -> None:
    """All tasks but this one have ended."""

    def left() -> set[asyncio.Task[Any]]:
        return {each for each in asyncio.all_tasks() if each is not asyncio.current_task()}

    async with asyncio.timeout(within_s):
        while tasks := {each for each in left() if "poller" not in repr(each).lower()}:
            await asyncio.wait(tasks, timeout=0.05)
