"""A TCP proxy in front of every port, for machines without network namespaces.

Every process advertises its proxies, so all links pass through here. A cut holds back what one
process sends to another: as with lost packets, neither end is told, and what was sent before the
heal may still arrive after it. Who connects is found by its pid, which the kernel knows for each
socket of this machine; connections of anybody else (the clients) are never held back.
"""

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from icecore.dev import HOST
from icecore.process.members import Member
from tests.chaos.links import Links
from tests.support.ports import free_port_block

_CHUNK_BYTES = 64 << 10
_COORDINATOR = "coordinator"
_START_S = 10.0

Link = tuple[str, str]
"""From one process to another."""


class Proxies(Links):
    """Stands in for :class:`tests.chaos.network.Network`.

    Args:
        names: Of the processes.
    """

    insecure_bind = False

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        ports = itertools.count(free_port_block(range(2 * len(self._names))))
        self._behind = {name: next(ports) for name in self._names}
        self._native_behind = {name: next(ports) for name in self._names if name != _COORDINATOR}
        self._fronts: dict[str, int] = {}
        self._native_fronts: dict[str, int] = {}
        self._members: list[Member] = []
        self._open: dict[Link, asyncio.Event] = {}
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(_START_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def host(self) -> str:
        """See ``Links.host``."""
        return HOST

    def attach(self, member: Member) -> None:
        """See ``Links.attach``: others reach it through its proxy."""
        self._members.append(member)
        member.listen = f"{HOST}:{self._behind[member.name]}"
        if member.name != _COORDINATOR:
            member.extra += ["--advertise", f"{HOST}:{self._fronts[member.name]}"]
            member.extra += ["--native-listen", f"{HOST}:{self._native_behind[member.name]}"]
            member.extra += ["--native-advertise", f"{HOST}:{self._native_fronts[member.name]}"]
            member.extra += ["--coordinator", f"{HOST}:{self._fronts[_COORDINATOR]}"]

    # --- faults ---------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """See ``Links.cut``."""
        self._loop.call_soon_threadsafe(self._gate((source, target)).clear)

    def heal(self) -> None:
        """See ``Links.heal``."""
        for gate in list(self._open.values()):
            self._loop.call_soon_threadsafe(gate.set)

    def _gate(self, link: Link) -> asyncio.Event:
        if link not in self._open:
            self._open[link] = asyncio.Event()
            self._open[link].set()
        return self._open[link]

    # --- in the thread --------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._servers: list[asyncio.Server] = []
        for behind, fronts in (
            (self._behind, self._fronts),
            (self._native_behind, self._native_fronts),
        ):
            for name, port in behind.items():
                server = await self._front(name, port)
                fronts[name] = server.sockets[0].getsockname()[1]
                self._servers.append(server)

    async def _front(self, target: str, port: int) -> asyncio.Server:
        """A proxy of one port of a process."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            # Either end may go at any moment; a cancelled connection is the end of the run.
            with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
                source = self._who(writer)
                there = await asyncio.open_connection(HOST, port)
                with contextlib.closing(there[1]):
                    await self._join((source, target), (reader, writer), there)

        return await asyncio.start_server(connected, HOST, 0)

    async def _join(
        self,
        link: Link,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass bytes both ways until either end is gone."""
        ways = (
            asyncio.create_task(self._pass(link, here[0], there[1])),
            asyncio.create_task(self._pass((link[1], link[0]), there[0], here[1])),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self, link: Link, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        gate = self._gate(link)
        while piece := await source.read(_CHUNK_BYTES):
            await gate.wait()
            target.write(piece)
            await target.drain()
        await gate.wait()  # the end of a connection is a packet, too

    def _who(self, writer: asyncio.StreamWriter) -> str:
        """The process at the other end; empty when it is none of ours."""
        port, front = (writer.get_extra_info(key)[1] for key in ("peername", "sockname"))
        inode = _inode(port, front)
        pids = {member.name: member.pid for member in self._members if member.is_running}
        return next((name for name, pid in pids.items() if inode in _sockets(pid)), "")

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


def _inode(local_port: int, remote_port: int) -> str:
    """Return the socket with these ports as ``/proc/PID/fd`` names it; empty when it is gone."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        ports = [int(columns[at].rpartition(":")[2], 16) for at in (1, 2)]
        if ports == [local_port, remote_port]:
            return f"socket:[{columns[9]}]"
    return ""


def _sockets(pid: int) -> set[str]:
    """The open files of a process."""
    folder = f"/proc/{pid}/fd"
    found = set()
    with contextlib.suppress(OSError):  # the process has just ended
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # or closed a file
                found.add(os.readlink(f"{folder}/{name}"))
    return found
