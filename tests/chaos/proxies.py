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
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from icecore.dev import HOST
from icecore.process.members import Member
from tests.chaos.links import COORDINATORS, ETCD, Links
from tests.support.etcd import EtcdPlace
from tests.support.ports import free_port_block

_CHUNK_BYTES = 64 << 10
_START_S = 10.0
_LOOK_S = 0.05
_SWITCH_S = 0.0002
"""The load runs beside the proxies: each look into ``/proc`` would wait for Python's 5 ms."""

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
        ports = itertools.count(free_port_block(range(3 * len(self._names))))
        self._behind = {name: next(ports) for name in self._names}
        self._second_behind = {name: next(ports) for name in self._names}
        """Native ports of nodes; ports for the other members of etcd."""
        self._metrics = {name: next(ports) for name in self._names}
        self._fronts: dict[str, int] = {}
        self._second_fronts: dict[str, int] = {}
        self._pids: dict[str, Callable[[], int]] = {}
        self._open: dict[Link, asyncio.Event] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self.held: list[Link] = []
        """Each connection that waits for a heal until it is made."""

    def __enter__(self) -> Self:
        sys.setswitchinterval(_SWITCH_S)
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
        self._pids[member.name] = lambda: member.pid if member.is_running else 0
        member.listen = self._at(self._behind[member.name])
        front = self._at(self._fronts[member.name])
        coordinators = [each for each in self._names if each in COORDINATORS]
        if member.name in COORDINATORS:
            member.metrics_listen = self._at(self._metrics[member.name])
            member.extra += ["--advertise", front] * (len(coordinators) > 1)
            return
        member.extra += ["--advertise", front]
        member.extra += ["--native-listen", self._at(self._second_behind[member.name])]
        member.extra += ["--native-advertise", self._at(self._second_fronts[member.name])]
        fronts = (self._at(self._fronts[each]) for each in coordinators)
        member.extra += ["--coordinator", ",".join(fronts)]

    def place(self, name: str, pid: Callable[[], int]) -> EtcdPlace:
        """See ``Links.place``."""
        self._pids[name] = pid
        return EtcdPlace(
            client_listen=self._at(self._behind[name]),
            peer_listen=self._at(self._second_behind[name]),
            metrics_listen=self._at(self._metrics[name]),
            client=self._at(self._fronts[name]),
            peer=self._at(self._second_fronts[name]),
        )

    @staticmethod
    def _at(port: int) -> str:
        return f"{HOST}:{port}"

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
            (self._second_behind, self._second_fronts),
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
                link = (self._who(writer, target), target)
                first = await self._until_open(link, reader)
                there = await asyncio.open_connection(HOST, port)
                there[1].write(first)
                with contextlib.closing(there[1]):
                    await self._join(link, (reader, writer), there)

        return await asyncio.start_server(connected, HOST, 0)

    async def _until_open(self, link: Link, reader: asyncio.StreamReader) -> bytes:
        """Wait until a new connection can be made; return what was sent meanwhile. Whoever is cut
        off dials again and again, and of that nothing may be left.

        Raises ConnectionError: who dialed has given up.
        """
        gates = [self._gate(each) for each in (link, (link[1], link[0]))]
        sent = bytearray()
        self.held.append(link)
        try:
            while not all(gate.is_set() for gate in gates):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        piece = await reader.read(_CHUNK_BYTES)
                    if not piece:
                        raise ConnectionAbortedError("it has given up")
                    sent += piece
        finally:
            self.held.remove(link)
        return bytes(sent)

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

    def _who(self, writer: asyncio.StreamWriter, target: str) -> str:
        """The process at the other end; empty when it is none of ours. Nodes do not dial etcd, and
        it dials none of them."""
        dialers = {*ETCD, *COORDINATORS} if target in ETCD else {*self._names} - {*ETCD}
        port, front = (writer.get_extra_info(key)[1] for key in ("peername", "sockname"))
        inode = _inode(port, front)
        if not inode or inode in _sockets(os.getpid()):  # most are of clients, here
            return ""
        pids = {each: pid for each in dialers & self._pids.keys() if (pid := self._pids[each]())}
        return next((name for name, pid in pids.items() if inode in _sockets(pid)), "")

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


def _inode(local_port: int, remote_port: int) -> str:
    """Return the socket with these ports as ``/proc/PID/fd`` names it; empty when it is gone. gRPC
    dials IPv4 through sockets of IPv6."""
    ends = f":{local_port:04X}", f":{remote_port:04X}"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            if ends[0] in line and ends[1] in line:
                columns = line.split()
                if columns[1].endswith(ends[0]) and columns[2].endswith(ends[1]):
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
