"""Accepts connections for a server, as many as it may have, with TLS if it has any, and keeps the
state of each.

When the system is short of descriptors or memory, accepting rests for a moment. A handshake that
fails or takes too long closes its connection and is logged, for the caller can't be told more.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from icecore.process.log import event
from icecore.rpc.native.call_limit import ConnectionCalls
from icecore.rpc.native.sockets import prepare
from icecore.rpc.native.stream import NativeStream
from icecore.rpc.native.tls import TlsSocket, shake_hands
from icecore.rpc.ports import Admitted

_log = logging.getLogger(__name__)

_ACCEPT_AGAIN_S: Final = 0.1
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


class Acceptor:
    """Begins at once.

    Args:
        listener: Bound and listening.
        security: TLS; None for none.
        within_s: How long a handshake may take.
        has_room: Given how many handshakes go on, and the peer: whether one more connection is
            allowed.
        welcome: Gets each connection that is ready, and its peer, for people.
    """

    def __init__(
        self,
        listener: socket.socket,
        security: ssl.SSLContext | None,
        within_s: float,
        has_room: Callable[[int, str], bool],
        welcome: Callable[[socket.socket | TlsSocket, str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._security = security
        self._within_s = within_s
        self._has_room = has_room
        self._welcome = welcome
        self._again: asyncio.TimerHandle | None = None
        """While it rests."""
        self._shaking: set[asyncio.Task[None]] = set()
        self._loop.add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        while True:
            try:
                sock, where = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                event(_log, logging.WARNING, "accept_failed", error=error)
                self.rest(_ACCEPT_AGAIN_S)
                return
            peer = f"ipv4:{where[0]}:{where[1]}" if len(where) == 2 else f"ipv6:{where[0]}"
            if not self._has_room(len(self._shaking), peer):
                event(_log, logging.WARNING, "connection_refused", peer=peer)
                sock.close()
                continue
            prepare(sock)
            if self._security is None:
                self._welcome(sock, peer)
                continue
            task = self._loop.create_task(self._shake_hands(sock, peer, self._security))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, sock: socket.socket, peer: str, security: ssl.SSLContext) -> None:
        try:
            shaken = await shake_hands(sock, security, self._within_s)
        except OSError as error:
            event(_log, logging.INFO, "handshake_failed", peer=peer, error=error)
        else:
            self._welcome(shaken, peer)

    def rest(self, for_s: float) -> None:
        """Accept nobody for a while; who connects waits in the system's queue."""
        self._loop.remove_reader(self._listener.fileno())
        self._again = self._loop.call_later(for_s, self._accept_again)

    def _accept_again(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        """Accept nobody any more; handshakes that go on are given up."""
        if self._again is not None:
            self._again.cancel()
        else:
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for task in self._shaking:
            task.cancel()
        if self._shaking:
            await asyncio.wait(set(self._shaking))


# --- connections ----------------------------------------------------------------------------------


class Peer:
    """One connection.

    Args:
        host: Where it comes from.
        accepted_s: When, by the loop.
        calls: Counts those that run.
    """

    __slots__ = (
        "accepted_s",
        "admitted",
        "calls",
        "host",
        "reads",
        "receiving_bytes",
        "stream",
        "task",
        "unsent",
    )

    def __init__(self, host: str, accepted_s: float, calls: ConnectionCalls) -> None:
        self.host = host
        self.accepted_s = accepted_s
        self.calls = calls
        self.reads: set[asyncio.Task[None]] = set()
        """Handlers that stop with the connection."""
        self.admitted: deque[Admitted] = deque()
        """Calls whose large bodies are on their way, in the order of these."""
        self.receiving_bytes = 0
        self.stream: NativeStream | None = None
        self.task: asyncio.Task[None] | None = None
        self.unsent: Counter[str] = Counter()
        """Bytes of answers that wait, by method."""
