"""Connections and calls of one server. An error that a handler raises arrives as itself.

A connection is for calls until its first OPEN frame, then it is one stream, which the client closes
when it has read its end. A handler always runs to its end: when its caller gives up or is gone, the
answer is dropped.

**Bounds.** Calls of a service that run (``calls_max``) or are parked (``parked_max``), connections
(``connections_max``), half of each for one host; bytes of requests that are being received
(``receiving_bytes_max``) and of answers that callers have not read (``answers_bytes_max``, by
method): beyond them a call is refused with THROTTLED, without taking memory for its body. So is a
call whose header its direct handler does not admit. A caller with many unread answers is not read
until it has taken them, nor one with many calls that run (``call_limit.py``). A connection is
closed that does not say hello in time or takes none of its answers.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    ThrottledError,
    UnavailableError,
    UnsupportedError,
)
from icecore.process.log import event
from icecore.rpc import framing
from icecore.rpc.bounds import bound_of
from icecore.rpc.handling import failure_of, unread
from icecore.rpc.native.accepting import Acceptor, Peer
from icecore.rpc.native.call_limit import ConnectionCalls, CountedSlot
from icecore.rpc.native.connection import UNSENT_HIGH_BYTES, NativeConnection, Timeouts
from icecore.rpc.native.frame import (
    Call,
    Frame,
    FrameError,
    FrameKind,
    Head,
    read_call,
)
from icecore.rpc.native.handlers import (
    LATE,
    checked,
    context_of,
    in_time,
    run_direct,
    run_stream,
    send_error,
)
from icecore.rpc.native.stream import NativeStream
from icecore.rpc.native.tls import TlsSocket
from icecore.rpc.ports import (
    NO_SLOT,
    Admitted,
    Answer,
    CallContext,
    Handlers,
    Outcome,
    UnaryHandler,
    join,
)
from icecore.rpc.slots import HeldSlot, Slots, host_of

_log = logging.getLogger(__name__)

_BREAK_GRACE_S: Final = 5.0
_CONNECTIONS_OF_HOST_MIN: Final = 64
"""Connections that any host may have, even where half of all connections is less."""
_CALLS: Final = frozenset({FrameKind.CALL, FrameKind.BULK})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits on the memory and calls that a server holds for its callers."""

    calls_max: int = 4096
    parked_max: int = 8192
    calls_per_connection_max: int = 128
    """Maximum running, unparked client calls of a connection; direct handlers bound their calls
    themselves."""
    connections_max: int = 16_384
    receiving_bytes_max: int = 256 << 20
    answers_bytes_max: int = 64 << 20


class NativeServer:
    """See ``icecore.rpc.ports.Server``.

    Args:
        listener: Bound and listening.
        address: As it is announced.
        handlers: Of all methods.
        limits: See above.
        timeouts: Of its connections.
        security: TLS; None for none.
    """

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        handlers: Handlers,
        limits: ServerLimits,
        timeouts: Timeouts,
        security: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._limits = limits
        self._timeouts = timeouts
        self._methods = {name.encode(): (name, each) for name, each in handlers.unary.items()}
        self._direct = {name.encode(): (name, each) for name, each in handlers.direct.items()}
        self._streams = {name.encode(): (name, each) for name, each in handlers.streams.items()}
        self._names = {name.encode(): name for name in (*handlers.unary, *handlers.direct)}
        self._peers: dict[NativeConnection, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = Slots(limits.calls_max, limits.parked_max)
        self._hosts: Counter[str] = Counter()
        """Connections of each."""
        self._running = 0
        self._receiving_bytes = 0
        self._unsent_bytes: Counter[str] = Counter()
        self._is_stopping = False
        self._is_over = False
        """Calls that have not begun are not begun any more."""
        self._idle: asyncio.Future[None] | None = None
        """Done when no call runs any more; made by ``stop``."""
        self._all_gone = asyncio.Event()
        """Nobody is connected, while it stops."""
        within_s = timeouts.hello_within_s
        self.acceptor = Acceptor(listener, security, within_s, self._has_room, self._welcome)
        self._checking = self._loop.call_later(timeouts.check_every_s, self._check)

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    # --- connections ----------------------------------------------------------------------------

    def _has_room(self, handshakes: int, peer: str) -> bool:
        most = self._limits.connections_max
        share = max(most // 2, _CONNECTIONS_OF_HOST_MIN)
        return len(self._peers) + handshakes < most and self._hosts[host_of(peer)] < share

    def _welcome(self, sock: socket.socket | TlsSocket, peer: str) -> None:
        connection, host = NativeConnection(sock, self, peer, self._timeouts), host_of(peer)
        calls = ConnectionCalls(connection, self._limits.calls_per_connection_max)
        self._peers[connection] = Peer(host, self._loop.time(), calls)
        self._hosts[host] += 1

    def _check(self) -> None:
        """Ask silent peers, close those that never said hello or take nothing."""
        now_s, timeouts = self._loop.time(), self._timeouts
        stirring = [each for each in self._peers if each.rests_until_s <= now_s]
        for connection in stirring:
            peer = self._peers.get(connection)
            if peer is None:
                continue  # lost with another one
            silent_s = now_s - connection.heard_s
            if not connection.has_greeted and now_s - peer.accepted_s > timeouts.hello_within_s:
                connection.lose("the peer never said hello")
            elif peer.unsent and silent_s > timeouts.answers_within_s:
                connection.lose("the peer takes no answers")
            else:
                is_awaited = peer.stream is not None
                ask_after_s = timeouts.awaited_ping_after_s if is_awaited else None
                connection.check(now_s, ask_after_s=ask_after_s)
        self._checking = self._loop.call_later(timeouts.check_every_s, self._check)

    def lost(self, connection: NativeConnection, error: IcecoreError) -> None:
        """See ``Owner``. A stream's handler gets a few seconds to tidy up."""
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        self._hosts[peer.host] -= 1
        if not self._hosts[peer.host]:
            del self._hosts[peer.host]
        self._receiving_bytes -= peer.receiving_bytes
        self._unsent_bytes.subtract(peer.unsent)
        for read in peer.reads:
            read.cancel()
        for each in peer.admitted:
            each.abandon()
        if peer.stream is not None:
            peer.stream.fail(error, at_once=True)
        if peer.task is not None and not peer.task.done():
            self._loop.call_later(_BREAK_GRACE_S, peer.task.cancel)
        if not self._peers:
            self._all_gone.set()

    # --- frames ---------------------------------------------------------------------------------

    def admit(self, connection: NativeConnection, head: Head, meta: bytes) -> bool:
        """See ``Owner``."""
        peer = self._peers[connection]
        call = read_call(head.kind, meta) if head.kind in _CALLS else None
        error: IcecoreError | None = None
        if self._receiving_bytes + head.body_bytes > self._limits.receiving_bytes_max:
            error = ThrottledError(
                f"{self._receiving_bytes} bytes of requests are being received already",
                retry_after_ms=50,
            )
        elif call is not None:
            error = self._why_not(call, peer.host)
            if error is None and head.body_bytes > bound_of(call.method.decode()).bytes_max:
                error = InvalidRequestError(f"a request of {head.body_bytes} bytes is too large")
        if error is not None:
            if call is None:
                connection.lose(error.message)
            else:
                self._refuse(connection, head.call_id, error)
            return False
        if call is not None and call.header is not None and call.method in self._direct:
            admitted = self._admitted(connection, head, call, call.header)
            if admitted is None:
                return False
            peer.admitted.append(admitted)
        peer.receiving_bytes += head.body_bytes
        self._receiving_bytes += head.body_bytes
        return True

    def _admitted(
        self, connection: NativeConnection, head: Head, call: Call, header: bytes
    ) -> Admitted | None:
        """Pass the header of a large request to its handler. Return None when the handler answers
        at once or fails."""
        method, handler = self._direct[call.method]
        try:
            admitted = handler.admit(
                header, head.body_bytes, context_of(connection, call.timeout_s, NO_SLOT)
            )
            if isinstance(admitted, Admitted):
                return admitted
            buffers = checked(admitted)
        except Exception as error:  # whatever it is, the caller hears of it
            self._refuse(connection, head.call_id, failure_of(method, error))
        else:
            connection.send(FrameKind.ANSWER, head.call_id, b"", buffers)
            self._mind_reader(connection, method)
        return None

    def arrived(self, connection: NativeConnection, frame: Frame) -> None:
        """See ``Owner``."""
        peer = self._peers[connection]
        if isinstance(frame.body, memoryview):  # it was admitted, and maybe the next one already
            self._receiving_bytes -= len(frame.body)
            peer.receiving_bytes -= len(frame.body)
        if frame.kind in _CALLS and peer.stream is None:
            self._call(connection, peer, frame)
        elif frame.kind == FrameKind.OPEN and peer.stream is None:
            self._open(connection, peer, frame)
        elif frame.kind == FrameKind.DATA and peer.stream is not None:
            peer.stream.arrived(frame.body)
        else:
            raise FrameError(f"kind {frame.kind} is not expected here")

    def _call(self, connection: NativeConnection, peer: Peer, frame: Frame) -> None:
        call = read_call(frame.kind, frame.meta)
        admitted: Admitted | None = None
        is_asked = call.header is not None and call.method in self._direct
        if is_asked and isinstance(frame.body, memoryview):
            admitted = peer.admitted.popleft()
        error = self._why_not(call, peer.host)
        if error is not None:
            if admitted is not None:
                admitted.abandon()
            self._refuse(connection, frame.call_id, error)
            return
        self._running += 1
        slot = self._slots.take(self._names[call.method], peer.host)
        if call.method in self._direct:
            method, direct = self._direct[call.method]
            run = partial(
                run_direct,
                direct,
                call,
                frame.body,
                context_of(connection, call.timeout_s, slot),
                admitted,
            )
            self._answer_directly(connection, frame.call_id, method, run, slot)
            return
        method, handler = self._methods[call.method]
        if call.header is not None:  # this handler knows only whole messages
            frame = frame._replace(body=join(framing.frame_bulk(call.header, [frame.body])))
        if not bound_of(method).is_for_clients:
            context = context_of(connection, call.timeout_s, slot)
            self._run(connection, frame, method, handler, context, slot)
            return
        counted = CountedSlot(slot, peer.calls)
        until_s = self._loop.time() + call.timeout_s
        called = (method, handler)
        counted.begin(partial(self._begin, connection, frame, called, counted, until_s))

    def _begin(
        self,
        connection: NativeConnection,
        frame: Frame,
        called: tuple[str, UnaryHandler],
        slot: CountedSlot,
        until_s: float,
    ) -> None:
        """It is the turn of a call that has waited for it; who gave up meanwhile costs little."""
        peer, left_s = self._peers.get(connection), until_s - self._loop.time()
        method, bound = called[0], bound_of(called[0])
        refusal = self._why_slow(method)
        if peer is None or self._is_over or left_s <= 0 or refusal is not None:
            slot.end()
            self._finished()
            self._refuse(connection, frame.call_id, refusal or RequestTimeoutError(LATE))
            return
        context = context_of(connection, left_s, slot)
        timed = in_time(called[1], slot, bound)
        task = self._run(connection, frame, method, timed, context, slot)
        if bound.is_read:
            peer.reads.add(task)
            task.add_done_callback(peer.reads.discard)

    def _run(
        self,
        connection: NativeConnection,
        frame: Frame,
        method: str,
        handler: UnaryHandler,
        context: CallContext,
        slot: HeldSlot | CountedSlot,
    ) -> "asyncio.Task[None]":
        task = self._start(self._answer(connection, frame, method, handler, context))
        task.add_done_callback(self._finished)
        task.add_done_callback(slot.end)
        return task

    def _why_not(self, call: Call, host: str = "") -> IcecoreError | None:
        """Return why this call may not begin now."""
        method = self._names.get(call.method)
        if method is None:
            return UnsupportedError(f"no method {call.method.decode(errors='replace')}")
        if self._is_stopping:
            return UnavailableError("the server is stopping")
        if (busy := self._slots.why_not(method, host)) is not None:
            return busy
        return self._why_slow(method)

    def _why_slow(self, method: str) -> IcecoreError | None:
        return unread(self._unsent_bytes[method], self._limits.answers_bytes_max)

    def _answer_directly(
        self,
        connection: NativeConnection,
        call_id: int,
        method: str,
        run: Callable[[Answer], None],
        slot: HeldSlot,
    ) -> None:
        """In this callback, unless the handler answers later."""
        is_answered = False

        def answer(outcome: Outcome) -> None:
            nonlocal is_answered
            assert not is_answered, f"{method} was answered twice"
            is_answered = True
            slot.end()
            self._finished()
            try:
                if isinstance(outcome, IcecoreError):
                    raise outcome
                buffers = checked(outcome)
            except IcecoreError as error:
                self._refuse(connection, call_id, error)
            else:
                connection.send(FrameKind.ANSWER, call_id, b"", buffers)
                self._mind_reader(connection, method)

        try:
            run(answer)
        except Exception as caught:  # whatever it is, the caller hears of it
            failure = failure_of(method, caught)
            if not is_answered:
                answer(failure)

    async def _answer(
        self,
        connection: NativeConnection,
        frame: Frame,
        method: str,
        handler: UnaryHandler,
        context: CallContext,
    ) -> None:
        try:
            buffers = checked(await handler(frame.body, context))
        except asyncio.CancelledError:
            self._refuse(connection, frame.call_id, UnavailableError("the server is stopping"))
            raise
        except Exception as error:  # whatever it is, the caller hears of it
            self._refuse(connection, frame.call_id, failure_of(method, error))
        else:
            if bound_of(method).is_read and (slow := self._why_slow(method)) is not None:
                self._refuse(connection, frame.call_id, slow)
                return
            connection.send(FrameKind.ANSWER, frame.call_id, b"", buffers)
            self._mind_reader(connection, method)

    def _finished(self, _: object = None) -> None:
        self._running -= 1
        if self._running == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _mind_reader(self, connection: NativeConnection, method: str) -> None:
        """Count what a caller does not take; when it is much, take no more requests from it."""
        peer = self._peers.get(connection)
        if peer is None or not connection.unsent_bytes:
            return
        if not peer.unsent:
            connection.when_sent(lambda: self._reader_is_back(connection, peer))
        more = connection.unsent_bytes - peer.unsent.total()
        peer.unsent[method] += more
        self._unsent_bytes[method] += more
        if connection.unsent_bytes > UNSENT_HIGH_BYTES:
            connection.pause()

    def _reader_is_back(self, connection: NativeConnection, peer: Peer) -> None:
        self._unsent_bytes.subtract(peer.unsent)
        peer.unsent.clear()
        if not peer.calls.are_full:
            connection.resume()

    def _refuse(self, connection: NativeConnection, call_id: int, error: IcecoreError) -> None:
        send_error(connection, call_id, error)
        self._mind_reader(connection, "")

    # --- streams --------------------------------------------------------------------------------

    def _open(self, connection: NativeConnection, peer: Peer, frame: Frame) -> None:
        stream = peer.stream = NativeStream(connection)
        connection.rests_until_s = 0.0  # who streams is asked sooner
        found = self._streams.get(frame.meta)
        if found is None or self._is_stopping:
            what = f"no stream {frame.meta.decode(errors='replace')}"
            unknown, stopping = UnsupportedError(what), UnavailableError("the server is stopping")
            send_error(connection, 0, unknown if found is None else stopping)
            stream.fail(stopping, at_once=True)
            return
        method, handler = found
        context = context_of(connection, None, NO_SLOT)
        peer.task = self._start(run_stream(connection, method, stream, handler(stream, context)))

    # --- the end --------------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, grace_s: float) -> None:
        """As the port says."""
        if not self._is_stopping:
            self._is_stopping = True
            await self.acceptor.close()
        until_s = self._loop.time() + grace_s
        ends: set[asyncio.Future[None]] = {*self._tasks}
        if self._running:
            self._idle = self._loop.create_future()
            ends.add(self._idle)
        if ends:
            await asyncio.wait(ends, timeout=grace_s)
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await self._say_goodbye(until_s - self._loop.time())
        self._checking.cancel()
        for connection in list(self._peers):
            connection.lose("the server has stopped")

    async def _say_goodbye(self, within_s: float) -> None:
        """Let callers take their last answers: each closes its connection when it has them."""
        if not self._peers or within_s <= 0:
            return
        self._all_gone.clear()
        for connection, peer in self._peers.items():
            if peer.stream is None:
                send_error(connection, 0, UnavailableError("the server has stopped"))
        try:
            async with asyncio.timeout(within_s):
                await self._all_gone.wait()
        except TimeoutError:
            event(_log, logging.INFO, "answers_not_taken", connections=len(self._peers))
