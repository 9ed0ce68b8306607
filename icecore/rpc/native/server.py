"""Accepts connections and runs the handlers; an error that a handler raises arrives as itself.

A connection is for calls until its first OPEN frame, then it is one stream. A handler always runs
to its end: when its caller gives up or is gone, the answer is dropped.

**Bounds.** Calls that run (``calls_max``), connections (``connections_max``), bytes of requests
that are being received (``receiving_bytes_max``) and of answers that callers have not read
(``answers_bytes_max``, by method): beyond them a call is refused with THROTTLED, without taking
memory for its body. A caller with many unread answers is not read until it has taken them. A
connection that does not say hello in time is closed.
"""

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    ThrottledError,
    UnavailableError,
    UnsupportedError,
)
from icecore.process.log import event
from icecore.rpc import convert
from icecore.rpc.handling import failure_of
from icecore.rpc.native.connection import UNSENT_HIGH_BYTES, Connection
from icecore.rpc.native.frame import MESSAGE_BYTES_MAX, Frame, FrameError, Head, Kind, read_call
from icecore.rpc.native.stream import NativeStream
from icecore.rpc.ports import Body, CallContext, Handlers, Outcome, UnaryHandler, buffers_of

_log = logging.getLogger(__name__)

_CHECK_EVERY_S: Final = 1.0
_HELLO_WITHIN_S: Final = 5.0
_BREAK_GRACE_S: Final = 5.0
_ACCEPT_AGAIN_S: Final = 0.1
_END_WITHIN_S: Final = 2.0
"""How long the last frames of a stream may take before its connection is closed."""
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_MESSAGE_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server holds for its callers at most."""

    calls_max: int = 4096
    connections_max: int = 16_384
    receiving_bytes_max: int = 256 << 20
    answers_bytes_max: int = 64 << 20


class _Peer:
    """What the server knows of one connection."""

    __slots__ = ("accepted_s", "receiving_bytes", "stream", "task", "unsent")

    def __init__(self, accepted_s: float) -> None:
        self.accepted_s = accepted_s
        self.receiving_bytes = 0
        self.stream: NativeStream | None = None
        self.task: asyncio.Task[None] | None = None
        self.unsent: Counter[str] = Counter()
        """Bytes of answers that wait, by method."""


class NativeServer:
    """See ``icecore.rpc.ports.Server``.

    Args:
        listener: Bound and listening.
        address: As it is announced.
        handlers: Of all methods.
        limits: See above.
    """

    def __init__(
        self, listener: socket.socket, address: str, handlers: Handlers, limits: ServerLimits
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._address = address
        self._limits = limits
        self._methods = {name.encode(): (name, each) for name, each in handlers.unary.items()}
        self._direct = {name.encode(): (name, each) for name, each in handlers.direct.items()}
        self._streams = {name.encode(): (name, each) for name, each in handlers.streams.items()}
        self._peers: dict[Connection, _Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._receiving_bytes = 0
        self._unsent_bytes: Counter[str] = Counter()
        self._is_stopping = False
        self._idle: asyncio.Future[None] | None = None
        """Done when no call runs any more; made by ``stop``."""
        self._accepting: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener.fileno(), self._accept)
        self._checking = self._loop.call_later(_CHECK_EVERY_S, self._check)

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    # --- connections ----------------------------------------------------------------------------

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
                self._loop.remove_reader(self._listener.fileno())
                self._accepting = self._loop.call_later(_ACCEPT_AGAIN_S, self._accept_again)
                return
            if len(self._peers) >= self._limits.connections_max:
                event(_log, logging.WARNING, "connection_refused", connections=len(self._peers))
                sock.close()
                continue
            peer = f"ipv4:{where[0]}:{where[1]}" if len(where) == 2 else f"ipv6:{where[0]}"
            self._peers[Connection(sock, self, peer)] = _Peer(self._loop.time())

    def _accept_again(self) -> None:
        self._accepting = None
        if not self._is_stopping:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _check(self) -> None:
        """Ask silent peers, close those that never said hello."""
        now_s = self._loop.time()
        for connection, peer in list(self._peers.items()):
            if not connection.has_greeted and now_s - peer.accepted_s > _HELLO_WITHIN_S:
                connection.lose("the peer never said hello")
            else:
                connection.check(now_s)
        self._checking = self._loop.call_later(_CHECK_EVERY_S, self._check)

    def lost(self, connection: Connection, error: IcecoreError) -> None:
        """Of ``Owner``: a handler of a stream may tidy up for a while."""
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        self._receiving_bytes -= peer.receiving_bytes
        self._unsent_bytes.subtract(peer.unsent)
        if peer.stream is not None:
            peer.stream.fail(error, at_once=True)
        if peer.task is not None and not peer.task.done():
            self._loop.call_later(_BREAK_GRACE_S, peer.task.cancel)

    # --- frames ---------------------------------------------------------------------------------

    def admit(self, connection: Connection, head: Head, meta: bytes) -> bool:
        """Of ``Owner``."""
        peer = self._peers[connection]
        if self._receiving_bytes + head.body_bytes > self._limits.receiving_bytes_max:
            busy = ThrottledError(
                f"{self._receiving_bytes} bytes of requests are being received already",
                retry_after_ms=50,
            )
            if head.kind != Kind.CALL:
                connection.lose(busy.message)
            else:
                self._refuse(connection, head.call_id, busy)
            return False
        peer.receiving_bytes += head.body_bytes
        self._receiving_bytes += head.body_bytes
        return True

    def arrived(self, connection: Connection, frame: Frame) -> None:
        """Of ``Owner``."""
        peer = self._peers[connection]
        if peer.receiving_bytes:  # one message at a time arrives on a connection
            self._receiving_bytes -= peer.receiving_bytes
            peer.receiving_bytes = 0
        if frame.kind == Kind.CALL and peer.stream is None:
            self._call(connection, peer, frame)
        elif frame.kind == Kind.OPEN and peer.stream is None:
            self._open(connection, peer, frame)
        elif frame.kind == Kind.DATA and peer.stream is not None:
            peer.stream.arrived(frame.body)
        else:
            raise FrameError(f"kind {frame.kind} is not expected here")

    def _call(self, connection: Connection, peer: _Peer, frame: Frame) -> None:
        timeout_s, path = read_call(frame.meta)
        if path in self._direct:
            self._call_direct(connection, frame, path, timeout_s)
            return
        found = self._methods.get(path)
        if found is None:
            unknown = UnsupportedError(f"no method {path.decode(errors='replace')}")
            self._refuse(connection, frame.call_id, unknown)
            return
        method, handler = found
        error = self._busy(method)
        if error is not None:
            self._refuse(connection, frame.call_id, error)
            return
        context = CallContext(connection.peer, "anonymous", timeout_s)
        self._running += 1
        task = self._start(self._answer(connection, frame, method, handler, context))
        task.add_done_callback(self._finished)

    def _busy(self, method: str) -> IcecoreError | None:
        """Why no call of this method may begin now."""
        if self._is_stopping:
            return UnavailableError("the server is stopping")
        if self._running >= self._limits.calls_max:
            return ThrottledError(f"{self._running} calls are running", retry_after_ms=50)
        if self._unsent_bytes[method] > self._limits.answers_bytes_max:
            return ThrottledError(
                f"{self._unsent_bytes[method]} bytes of answers wait for clients to read them",
                retry_after_ms=50,
            )
        return None

    def _call_direct(
        self, connection: Connection, frame: Frame, path: bytes, timeout_s: float
    ) -> None:
        method, handler = self._direct[path]
        call_id = frame.call_id
        error = self._busy(method)
        if error is not None:
            self._refuse(connection, call_id, error)
            return

        is_answered = False

        def answer(outcome: Outcome) -> None:
            nonlocal is_answered
            assert not is_answered, f"{method} was answered twice"
            is_answered = True
            self._finished()
            if isinstance(outcome, IcecoreError):
                self._refuse(connection, call_id, outcome)
            else:
                self._send_answer(connection, call_id, method, outcome)

        self._running += 1
        try:
            handler(frame.body, CallContext(connection.peer, "anonymous", timeout_s), answer)
        except Exception as caught:  # whatever it is, the caller hears of it
            failure = failure_of(method, caught)
            if not is_answered:
                answer(failure)

    async def _answer(
        self,
        connection: Connection,
        frame: Frame,
        method: str,
        handler: UnaryHandler,
        context: CallContext,
    ) -> None:
        try:
            body = await handler(frame.body, context)
        except asyncio.CancelledError:
            self._refuse(connection, frame.call_id, UnavailableError("the server is stopping"))
            raise
        except Exception as error:  # whatever it is, the caller hears of it
            self._refuse(connection, frame.call_id, failure_of(method, error))
        else:
            self._send_answer(connection, frame.call_id, method, body)

    def _finished(self, _: object = None) -> None:
        self._running -= 1
        if self._running == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _send_answer(self, connection: Connection, call_id: int, method: str, body: Body) -> None:
        buffers = buffers_of(body)
        size_bytes = sum(map(len, buffers))
        if size_bytes > MESSAGE_BYTES_MAX:
            what = f"an answer of {size_bytes} bytes, larger than max {MESSAGE_BYTES_MAX}"
            self._refuse(connection, call_id, InvalidRequestError(what))
            return
        connection.send(Kind.ANSWER, call_id, b"", buffers)
        peer = self._peers.get(connection)
        if peer is not None and connection.unsent_bytes > UNSENT_HIGH_BYTES:
            self._wait_for_reader(connection, peer, method)

    def _wait_for_reader(self, connection: Connection, peer: _Peer, method: str) -> None:
        """Count what a caller does not take, and take no more requests from it meanwhile."""
        if not peer.unsent:
            connection.pause()
            connection.when_drained(lambda: self._reader_is_back(connection, peer))
        more = connection.unsent_bytes - peer.unsent.total()
        peer.unsent[method] += more
        self._unsent_bytes[method] += more

    def _reader_is_back(self, connection: Connection, peer: _Peer) -> None:
        if connection in self._peers:
            self._unsent_bytes.subtract(peer.unsent)
            peer.unsent.clear()
            connection.resume()

    def _refuse(self, connection: Connection, call_id: int, error: IcecoreError) -> None:
        message = convert.error_to_proto(error)
        message.message = message.message[:_MESSAGE_CHARACTERS_MAX]
        connection.send(Kind.ERROR, call_id, b"", (message.SerializeToString(),))

    # --- streams --------------------------------------------------------------------------------

    def _open(self, connection: Connection, peer: _Peer, frame: Frame) -> None:
        found = self._streams.get(frame.meta)
        if found is None or self._is_stopping:
            what = f"no stream {frame.meta.decode(errors='replace')}"
            error = UnsupportedError(what) if found is None else self._busy("")
            assert error is not None
            self._refuse(connection, 0, error)
            self._close_later(connection)
            return
        method, handler = found
        stream = peer.stream = NativeStream(connection)
        context = CallContext(connection.peer, "anonymous", None)
        peer.task = self._start(self._run_stream(connection, method, handler(stream, context)))

    async def _run_stream(
        self, connection: Connection, method: str, running: Coroutine[Any, Any, None] | Any
    ) -> None:
        try:
            await running
        except asyncio.CancelledError:
            self._refuse(connection, 0, UnavailableError("the server is stopping"))
            raise
        except Exception as error:  # whatever it is, the caller hears of it
            self._refuse(connection, 0, failure_of(method, error))
        else:
            connection.send(Kind.END, 0, b"", ())
        finally:
            self._close_later(connection)

    def _close_later(self, connection: Connection) -> None:
        """Once the last frames are gone: the client closes first, as soon as it has them."""
        peer = self._peers.get(connection)
        if peer is not None and peer.stream is not None:
            peer.stream.fail(UnavailableError("the handler has returned"))
        self._loop.call_later(_END_WITHIN_S, connection.lose, "the stream has ended")

    # --- the end --------------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, grace_s: float) -> None:
        """As the port says."""
        self._is_stopping = True
        if self._accepting is not None:
            self._accepting.cancel()
        else:
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        ends: set[asyncio.Future[None]] = {*self._tasks}
        if self._running:
            self._idle = self._loop.create_future()
            ends.add(self._idle)
        if ends:
            await asyncio.wait(ends, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self._checking.cancel()
        for connection in list(self._peers):
            connection.lose("the server has stopped")
