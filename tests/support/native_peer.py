"""Both sides of the native transport for its tests: a server to torment, a peer of bare sockets.

The server is left as it was found: when the tormentors are gone, nothing of them is counted, no
task is left, and a neighbour is served all the while.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from icecore.errors import IcecoreError, UnavailableError
from icecore.rpc.native.client import error_of
from icecore.rpc.native.connection import NativeConnection, Timeouts
from icecore.rpc.native.frame import Frame, FrameKind, pack_call, pack_head, pack_hello
from icecore.rpc.native.inbox import Inbox
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.server import NativeServer, ServerLimits
from icecore.rpc.ports import Body, CallContext, Handlers, Received, ServerStream
from tests.support.waiting import until

PATIENT = Timeouts(check_every_s=0.05)
CONNECT_TRIES = 5
IMPATIENT = Timeouts(
    check_every_s=0.05,
    hello_within_s=0.3,
    ping_after_s=0.3,
    pong_within_s=0.3,
    message_within_s=0.5,
    answers_within_s=0.5,
)
MIB = 1 << 20


class RawPeer:
    """A socket that says what a test wants, at the pace that it wants."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._inbox = Inbox(lambda head, meta: True)
        self._frames: list[Frame] = []

    @staticmethod
    async def connect(address: str, *, receive_buffer_bytes: int | None = None) -> "RawPeer":
        """Connected, and silent so far."""
        host, _, port = address.rpartition(":")
        peer = RawPeer(socket.socket())
        if receive_buffer_bytes is not None:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(peer.socket, (host, int(port)))
        return peer

    async def send(self, *parts: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, b"".join(parts))

    async def greet(self) -> None:
        await self.send(pack_hello())

    async def call(self, call_id: int, method: str, body: bytes = b"") -> None:
        await self.send(call_head(call_id, method, len(body)), body)

    async def frame(self) -> Frame | None:
        """The next frame that is no hello; None when the other side has closed."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            while True:
                while self._frames:
                    frame = self._frames.pop(0)
                    if frame.kind != FrameKind.HELLO:
                        return frame
                targets = self._inbox.targets()
                try:
                    count = await loop.sock_recv_into(self.socket, targets[0])
                except ConnectionError:
                    return None
                if not count:
                    return None
                self._frames += self._inbox.received(count)

    async def error(self) -> tuple[int, IcecoreError]:
        """The next frame, which is an error: of which call, and what it says."""
        frame = await self.frame()
        assert frame is not None and frame.kind == FrameKind.ERROR, frame
        return frame.call_id, error_of(frame.body)

    def has_more(self) -> bool:
        """Return whether something has arrived that nobody has read."""
        try:
            return bool(self._frames or self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    async def is_closed(self) -> bool:
        """Read to the end, which comes."""
        while await self.frame() is not None:
            pass
        self.socket.close()
        return True

    def reset(self) -> None:
        """RST instead of FIN."""
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()


class RawListener:
    """A server of bare sockets, to which a client of ours connects."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._peers: list[RawPeer] = []

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    async def accept(self) -> RawPeer:
        sock, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        self._peers.append(RawPeer(sock))
        return self._peers[-1]

    def close(self) -> None:
        for each in self._peers:
            each.socket.close()
        self._socket.close()


def call_head(call_id: int, method: str, body_bytes: int) -> bytes:
    """Head and meta of a call, whose body is still to come."""
    return pack_head(FrameKind.CALL, call_id, pack_call(60, method.encode()), body_bytes)


class Tormented:
    """A server, its handlers, and a neighbour of those who torment it."""

    def __init__(self, net: NativeNet, more: Handlers) -> None:
        self.net = net
        self._more = more
        self.neighbour = NativeNet()
        self.started = 0
        self.finished = 0
        self.go = asyncio.Event()
        self.streams: list[ServerStream] = []
        self.server: NativeServer

    @property
    def address(self) -> str:
        return self.server.address

    async def echo(self, body: Received, context: CallContext) -> Body:
        self.started += 1
        return body

    async def wait(self, body: Received, context: CallContext) -> Body:
        self.started += 1
        await self.go.wait()
        self.finished += 1
        return body

    async def bulk(self, body: Received, context: CallContext) -> Body:
        """1 MiB, whatever was asked."""
        self.started += 1
        return bytes(MIB)

    async def nonsense(self, body: Received, context: CallContext) -> Body:
        return 7  # type: ignore[return-value]

    async def idle(self, stream: ServerStream, context: CallContext) -> None:
        """A stream that reads nothing until the test lets it go."""
        self.streams.append(stream)
        await self.go.wait()

    async def serve(self) -> None:
        unary = (self.echo, self.wait, self.bulk, self.nonsense)
        handlers = Handlers(
            {f"/t.T/{each.__name__}": each for each in unary},
            {"/t.T/idle": self.idle},
            self._more.direct,
        )
        self.server = await self.net.serve("127.0.0.1:0", handlers)

    async def neighbour_connects(self) -> None:
        """As it does before anything torments the server: a busy machine may let it wait."""
        for _ in range(CONNECT_TRIES):
            with suppress(UnavailableError):
                await self.neighbour_is_served()
                return
        await self.neighbour_is_served()

    async def neighbour_is_served(self) -> None:
        body = bytes(100_000)
        assert await self.neighbour.call(self.address, "/t.T/echo", body, timeout_s=5) == body

    def connection_of(self, peer: RawPeer) -> NativeConnection:
        """The server's end of a peer's connection, which it has accepted."""
        host, port = peer.socket.getsockname()
        (found,) = [each for each in self.server._peers if each.peer == f"ipv4:{host}:{port}"]
        return found

    def held(self) -> dict[str, int]:
        """Return the server's counts above zero, without its neighbour's connection."""
        server = self.server
        counted = {
            "connections": len(server._peers) - len(self.neighbour._keys),
            "tasks": len(server._tasks),
            "running": server._running,
            "receiving_bytes": server._receiving_bytes,
            "unsent_bytes": sum(map(abs, server._unsent_bytes.values())),
        }
        return {name: count for name, count in counted.items() if count}

    async def nothing_is_held(self, within_s: float = 3.0) -> None:
        with suppress(AssertionError):  # the one below says what it is
            await until(lambda: not self.held(), within_s)
        assert not self.held()


@asynccontextmanager
async def tormented(
    limits: ServerLimits | None = None,
    timeouts: Timeouts = PATIENT,
    more: Handlers | None = None,
) -> AsyncIterator[Tormented]:
    """A server, with more direct handlers, that is as it was when its tormentors are gone."""
    house = Tormented(NativeNet(limits=limits, timeouts=timeouts), more or Handlers({}, {}))
    await house.serve()
    try:
        await house.neighbour_connects()
        yield house
        house.go.set()
        await house.neighbour_is_served()
        await house.nothing_is_held()
    finally:
        await house.server.stop(0)
        await house.neighbour.close()
        await house.net.close()
