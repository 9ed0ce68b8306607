"""The network port over the native transport. See ``icecore.rpc.ports.Net``."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from icecore.errors import (
    ConfigurationError,
    ForkedError,
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.rpc.addresses import (
    PORT_MAX,
    check_listen,
    native,
    refuses,
    split_address,
    why_not_bound,
)
from icecore.rpc.bounds import bounded
from icecore.rpc.native.client import FETCH, Calls, class_of, error_of
from icecore.rpc.native.connection import NativeConnection, Timeouts
from icecore.rpc.native.frame import MESSAGE_BYTES_MAX, Frame, FrameError, FrameKind, Head
from icecore.rpc.native.server import NativeServer, ServerLimits
from icecore.rpc.native.sockets import prepare, spare_pacing
from icecore.rpc.native.stream import NativeStream
from icecore.rpc.native.tls import TlsSocket, TransportSecurity, shake_hands
from icecore.rpc.ports import Body, Done, Handlers, Received, buffers_of

_CONNECT_WITHIN_S: Final = 1.0
_BACKLOG: Final = 1024

_Key = tuple[str, str]
"""Address and class of methods."""


class NativeNet:
    """One connection per address and class of methods, and one for each stream.

    Args:
        insecure_bind: Allow ``serve`` on addresses that other machines reach, without TLS.
        limits: Of servers.
        timeouts: Of all connections.
        security: TLS, for servers and for calls; none if it is left out.
    """

    def __init__(
        self,
        *,
        insecure_bind: bool = False,
        limits: ServerLimits | None = None,
        timeouts: Timeouts | None = None,
        security: TransportSecurity | None = None,
    ) -> None:
        self._insecure_bind = insecure_bind
        self._limits = limits or ServerLimits()
        self._timeouts = timeouts or Timeouts()
        self._security = security or TransportSecurity()
        self._pid = os.getpid()
        self._calls: dict[_Key, Calls] = {}
        self._keys: dict[NativeConnection, _Key] = {}
        self._connecting: dict[_Key, asyncio.Task[Calls]] = {}
        self._streams: dict[NativeConnection, NativeStream] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        """Calls that had to connect first."""
        self._ahead: dict[_Key, set[asyncio.Task[None]]] = {}
        """Those of them that did not begin yet: no later call of their class begins before them."""
        self._checking: asyncio.TimerHandle | None = None
        self._closed = False

    # --- calls ----------------------------------------------------------------------------------

    async def call(self, address: str, method: str, body: Body, *, timeout_s: float) -> Received:
        """As the port says."""
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()

        def done(outcome: Received | IcecoreError) -> None:
            if answer.done():
                return
            if isinstance(outcome, IcecoreError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        give_up = self.start_call(address, method, body, timeout_s=timeout_s, done=done)
        try:
            return await answer
        finally:
            give_up()

    def start_call(
        self, address: str, method: str, body: Body, *, timeout_s: float, done: Done
    ) -> Callable[[], object]:
        """As the port says; what is wrong with the call itself is raised here."""
        self._check_usable()
        if timeout_s <= 0:
            raise RequestTimeoutError(f"no time left to call {method}")
        size_bytes = sum(map(len, buffers_of(body)))
        if size_bytes > MESSAGE_BYTES_MAX:
            raise InvalidRequestError(f"{size_bytes} bytes, larger than max {MESSAGE_BYTES_MAX}")
        key = (address, class_of(method))
        calls = self._calls.get(key)
        if calls is not None and key not in self._ahead:
            return partial(calls.forget, calls.start(method, body, timeout_s, done))
        task = asyncio.ensure_future(self._call_later(key, method, body, timeout_s, done))
        self._waiting.add(task)
        self._ahead.setdefault(key, set()).add(task)
        task.add_done_callback(self._waiting.discard)
        task.add_done_callback(partial(self._begun, key))  # if it was given up before
        return task.cancel

    async def _call_later(
        self, key: _Key, method: str, body: Body, timeout_s: float, done: Done
    ) -> None:
        """Connect first. Cancelled by who gives up, and then nobody is told."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        answered = loop.create_future()

        def settle(outcome: Received | IcecoreError) -> None:
            if answered.done():  # given up, and this task hears of it after the answer
                return
            answered.set_result(None)
            done(outcome)

        try:
            calls = await self._connect(key, timeout_s)
        except IcecoreError as error:
            done(error)
            return
        task = asyncio.current_task()
        assert task is not None
        self._begun(key, task)
        left_s = max(0.001, until_s - loop.time())
        call_id = calls.start(method, body, left_s, settle)
        try:
            await answered
        finally:
            calls.forget(call_id)

    def _begun(self, key: _Key, task: "asyncio.Task[None]") -> None:
        """The call waits no longer for its connection. Idempotent."""
        ahead = self._ahead.get(key)
        if ahead is not None:
            ahead.discard(task)
            if not ahead:
                del self._ahead[key]
                self._forget_attempt(key)

    def _forget_attempt(self, key: _Key) -> None:
        """Nobody needs the outcome of connecting any more."""
        task = self._connecting.get(key)
        if task is not None and task.done() and key not in self._ahead:
            del self._connecting[key]

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                "this process is a fork of one that used icecore: make clients after the fork "
                "only, or begin processes with multiprocessing's start method spawn"
            )
        if self._closed:
            raise UnavailableError("the network is closed")

    def keeps_order(self, address: str) -> bool:
        """As the port says: a class of methods has one connection."""
        return True

    # --- connections ----------------------------------------------------------------------------

    async def _connect(self, key: _Key, timeout_s: float) -> Calls:
        """The connection for a class of methods; who asks meanwhile waits for the same one, and
        all of them go on in the order in which they asked."""
        task = self._connecting.get(key)
        if task is None:
            task = asyncio.ensure_future(self._connected(key))
            self._connecting[key] = task
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            task.add_done_callback(lambda _: self._forget_attempt(key))
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            raise RequestTimeoutError(f"no connection to {key[0]} in time")
        if task.cancelled():
            raise UnavailableError("the network is closed")
        if (error := task.exception()) is not None:
            assert isinstance(error, IcecoreError)
            raise error.again()
        calls = task.result()
        if calls.connection.is_lost:  # in the turn in which it was made
            raise UnavailableError(calls.connection.why_lost)
        return calls

    async def _connected(self, key: _Key) -> Calls:
        sock = await self._socket(key[0])
        connection = NativeConnection(sock, self, key[0], self._timeouts)
        calls = self._calls[key] = Calls(connection, may_park=key[1] == FETCH)
        self._keys[connection] = key
        self._check_later()
        return calls

    async def _socket(self, address: str) -> socket.socket | TlsSocket:
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(address)
            async with asyncio.timeout(_CONNECT_WITHIN_S):
                found = _numeric(host, port)
                found = found or await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                sock = await _first_that_connects(found)
            prepare(sock)
            if self._security.client is None:
                return sock
            within_s = self._timeouts.hello_within_s
            return await shake_hands(sock, self._security.client, within_s, host)
        except TimeoutError as error:
            raise _unreachable(address, "no answer") from error
        except (ConfigurationError, OSError, ValueError) as error:
            raise _unreachable(address, error) from error

    def _check_later(self) -> None:
        if self._checking is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._checking = loop.call_later(self._timeouts.check_every_s, self._check)

    def _check(self) -> None:
        """Ask peers that are silent; as long as there are connections."""
        self._checking = None
        now_s, timeouts = asyncio.get_running_loop().time(), self._timeouts
        for connection in [*self._keys, *self._streams]:
            key = self._keys.get(connection)
            if key is None:
                ask_after_s: float | None = timeouts.awaited_ping_after_s
            else:
                ask_after_s = self._calls[key].ask_after_s(now_s, timeouts)
            connection.check(now_s, ask_after_s=ask_after_s)
        if self._keys or self._streams:
            self._check_later()

    # --- of Owner -------------------------------------------------------------------------------

    def admit(self, connection: NativeConnection, head: Head, meta: bytes) -> bool:
        """See ``Owner``. A client always has room: it asked for the body."""
        return True

    def arrived(self, connection: NativeConnection, frame: Frame) -> None:
        """See ``Owner``."""
        key = self._keys.get(connection)
        if key is not None:
            self._calls[key].arrived(frame)
            return
        stream = self._streams[connection]
        if frame.kind == FrameKind.DATA:
            stream.arrived(frame.body)
        elif frame.kind == FrameKind.END:
            stream.finished()
            connection.lose("the stream has ended")
        elif frame.kind == FrameKind.ERROR:
            stream.fail(error_of(frame.body))
            connection.lose("the stream has failed")
        else:
            raise FrameError(f"kind {frame.kind} is not expected here")

    def lost(self, connection: NativeConnection, error: IcecoreError) -> None:
        """See ``Owner``."""
        key = self._keys.pop(connection, None)
        if key is not None:
            self._calls.pop(key).lost(error)
        stream = self._streams.pop(connection, None)
        if stream is not None:
            stream.fail(error)

    # --- streams --------------------------------------------------------------------------------

    def open_stream(self, address: str, method: str) -> NativeStream:
        """As the port says."""
        self._check_usable()
        stream = NativeStream()
        task = asyncio.ensure_future(self._open(address, method, stream))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        stream.opens(task)
        return stream

    async def _open(self, address: str, method: str, stream: NativeStream) -> None:
        try:
            sock = await self._socket(address)
        except IcecoreError as error:
            stream.fail(error)
            return
        connection = NativeConnection(sock, self, address, self._timeouts)
        self._streams[connection] = stream
        stream.opened(connection)
        connection.send(FrameKind.OPEN, 0, method.encode(), ())
        self._check_later()

    # --- the rest of the port -------------------------------------------------------------------

    async def refuses(self, address: str, *, within_s: float) -> bool:
        """As the port says."""
        return await refuses(address, within_s)

    async def serve(self, address: str, handlers: Handlers) -> NativeServer:
        """As the port says."""
        security = self._security.server
        is_allowed = self._insecure_bind or security is not None
        host, port = check_listen(address, insecure_bind=is_allowed)
        try:
            listener = _listener(host.strip("[]"), port)
        except OSError as error:
            raise ConfigurationError(why_not_bound(host, port)) from error
        listener.setblocking(False)
        bound = listener.getsockname()[1]
        return NativeServer(
            listener, f"{host}:{bound}", bounded(handlers), self._limits, self._timeouts, security
        )

    async def close(self) -> None:
        """As the port says."""
        self._closed = True
        if self._pid != os.getpid():
            return  # the connections are the parent's
        if self._checking is not None:
            self._checking.cancel()
        for connection in [*self._keys, *self._streams]:
            connection.lose("the network is closed")
        opening = {*self._connecting.values(), *self._opening}
        for task in opening:
            task.cancel()
        if opening | self._waiting:
            await asyncio.wait(opening | self._waiting)


def _listener(host: str, port: int) -> socket.socket:
    """Raises OSError when nobody can listen there."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(*found[:3])
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        spare_pacing(listener, str(found[4][0]))
        listener.bind(found[4])
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _unreachable(address: str, why: object) -> UnavailableError:
    """Says how to do without, for a firewall may know only the other port of a server."""
    return UnavailableError(
        f"can't connect to {native(address)}: {why} (if only its gRPC port can be reached: "
        "transport=grpc)"
    )


def _numeric(host: str, port: int) -> list[tuple[Any, ...]]:
    """An address in numbers as ``getaddrinfo`` gives it, without a thread and without the files
    that it may read: neither a name server nor a slow disk keeps such a connection waiting."""
    if not 0 <= port <= PORT_MAX:
        return []  # others say what is wrong with it
    for family, where in ((socket.AF_INET, (host, port)), (socket.AF_INET6, (host, port, 0, 0))):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]
    return []


async def _first_that_connects(found: Sequence[tuple[Any, ...]]) -> socket.socket:
    """A connection to one of the addresses of a name. Raises OSError when there is none."""
    last: OSError | None = None
    for family, kind, number, _, where in found:
        sock = socket.socket(family, kind, number)
        try:
            sock.setblocking(False)
            spare_pacing(sock, where[0])
            await asyncio.get_running_loop().sock_connect(sock, where)
            return sock
        except OSError as error:
            sock.close()
            last = error
        except asyncio.CancelledError:
            sock.close()
            raise
    raise last or OSError("the name has no address")
