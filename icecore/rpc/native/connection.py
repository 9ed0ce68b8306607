"""One socket of the native transport: what arrives, what is sent, and how it ends.

Everything runs on the loop. Each turn reads and sends about 1 MiB at most, so that neither a fast
peer nor a large message keeps leases and fences waiting. ``send`` never waits: who sends bulk data
looks at ``unsent_bytes`` or waits for ``drained``.

**The end.** ``lose`` happens once: the socket is closed, nothing is delivered any more, and the
owner hears why. A peer that is silent is asked (PING), and lost when it stays silent; a peer that
takes what we send is not silent. It is asked sooner while somebody waits for it, so that idle
connections cost next to nothing: there the kernel notices when a host vanishes (``sockets.py``). A
message that has begun must end, too. ``Timeouts`` has the times; whoever owns connections calls
``check`` about every ``check_every_s``, from one timer for all of them, and may leave out those
that rest (``rests_until_s``).
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from icecore.errors import IcecoreError, UnavailableError
from icecore.rpc.native.frame import (
    Frame,
    FrameError,
    FrameKind,
    Head,
    check_hello,
    pack_head,
    pack_hello,
)
from icecore.rpc.native.inbox import Inbox
from icecore.rpc.native.outbox import TURN_BYTES_MAX, FrameOutbox, one_turn
from icecore.rpc.native.sockets import is_host_silent
from icecore.rpc.native.tls import TlsSocket
from icecore.rpc.ports import STRANGER, Buffer

UNSENT_HIGH_BYTES: Final = 4 << 20
"""Beyond this who sends bulk data waits,"""
UNSENT_LOW_BYTES: Final = 1 << 20
"""until no more than this is left."""
_READ_BYTES_MAX: Final = 1 << 20
_JOIN_BYTES_MAX: Final = 4096
"""Smaller messages are joined: a copy is cheaper than a system call with several buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The times that a peer may take, in seconds."""

    check_every_s: float = 0.5
    hello_within_s: float = 5.0
    """To say hello, once it has connected."""
    ping_after_s: float = 15.0
    """To be silent before it is asked,"""
    awaited_ping_after_s: float = 1.0
    """when somebody waits for it (if that is sooner),"""
    parked_ping_after_s: float = 5.0
    """or this, when all who wait have done so for long and it may be that there is nothing yet,"""
    pong_within_s: float = 1.5
    """and then to answer."""
    message_within_s: float = 30.0
    """To end a message that it began; a second more for each MiB."""
    answers_within_s: float = 30.0
    """To take some of many answers that wait for it."""


class Owner(Protocol):
    """The client or server that owns a connection."""

    def admit(self, connection: "NativeConnection", head: Head, meta: bytes) -> bool:
        """Return whether there is memory for a large body; says so to the peer if not."""
        ...

    def arrived(self, connection: "NativeConnection", frame: Frame) -> None:
        """A frame other than HELLO, PING and PONG. May lose the connection.

        Raises:
            FrameError: It is none that this side expects.
        """
        ...

    def lost(self, connection: "NativeConnection", error: IcecoreError) -> None:
        """The connection has ended."""
        ...


class NativeConnection:
    """See above.

    Args:
        sock: Connected; with TLS, after the handshake.
        owner: Who it belongs to.
        peer: The other side, for people.
        timeouts: How long it may take.
    """

    def __init__(
        self, sock: socket.socket | TlsSocket, owner: Owner, peer: str, timeouts: Timeouts
    ) -> None:
        self.peer = peer
        self.principal = sock.principal if isinstance(sock, TlsSocket) else "anonymous"
        """Identity that the peer has proved; ``anonymous`` without TLS."""
        self.is_lost = False
        self.why_lost = ""
        self.has_greeted = False
        """The other side has said hello."""
        self.heard_s = asyncio.get_running_loop().time()
        """When the peer last sent something, or took something that had waited for it."""
        self.rests_until_s = 0.0
        """``check`` finds nothing before: whatever may change that sets it to 0."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._descriptor = sock.fileno()
        self._owner = owner
        self._timeouts = timeouts
        self._inbox = Inbox(self._admit)
        self._outbox = FrameOutbox()
        self._drained: list[asyncio.Future[None]] = []
        self._sent: list[Callable[[], None]] = []
        self._is_paused = False
        self._unanswered_checks = 0
        """Since a PING; counted, because our own process may have stood still meanwhile."""
        self._begun_s: float | None = None
        """Since when a message is under way to us."""
        self._loop.add_reader(self._descriptor, self._readable)
        self._send_buffers([pack_hello()])

    # --- receiving ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Receive no more for now: the peer's messages wait in its own memory."""
        if not self._is_paused and not self.is_lost:
            self._is_paused = True
            self.rests_until_s = 0.0
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Receive again."""
        if self._is_paused and not self.is_lost:
            self._is_paused = False
            self.heard_s, self._begun_s = self._loop.time(), None
            self._loop.add_reader(self._descriptor, self._readable)
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """No selector tells of what is decrypted already."""
        if self._tls is not None and not self.is_lost and self._tls.pending():
            self._loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        if not self.is_lost and not self._is_paused:
            self._readable()

    def _readable(self) -> None:
        self.heard_s, self._unanswered_checks = self._loop.time(), 0
        budget = _READ_BYTES_MAX
        while budget > 0 and not self.is_lost and not self._is_paused:
            targets = self._inbox.targets()
            try:
                if len(targets) == 1:
                    count = self._socket.recv_into(targets[0])
                else:
                    count = self._socket.recvmsg_into(targets)[0]
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.lose(self._why_broken(error))
                return
            if not count:
                self.lose(self._why_broken(None))
                return
            try:
                for frame in self._inbox.received(count):
                    self._begun_s = None
                    self._dispatch(frame)
            except FrameError as error:
                known = {} if self.has_greeted else {STRANGER: "true"}
                self.lose(f"{self.peer} does not speak our native protocol: {error}", **known)
                return
            budget -= count
            if self._tls is None and count < sum(map(len, targets)):
                break
        self._go_on_reading()
        if self._begun_s is None and not self._inbox.is_between_frames:
            self._begun_s, self.rests_until_s = self.heard_s, 0.0

    def _admit(self, head: Head, meta: bytes) -> bool:
        return self._owner.admit(self, head, meta)

    def _dispatch(self, frame: Frame) -> None:
        kind = frame.kind
        if self.is_lost:
            return
        if kind == FrameKind.HELLO or not self.has_greeted:
            if kind != FrameKind.HELLO or self.has_greeted:
                raise FrameError("the first frame, and no other, is a hello")
            check_hello(frame.meta)
            self.has_greeted = True
        elif kind == FrameKind.PING:
            self._show_life()
        elif kind != FrameKind.PONG:
            self._owner.arrived(self, frame)

    # --- sending --------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._outbox.size_bytes

    def send(self, kind: int, call_id: int, meta: bytes, body: Sequence[Buffer]) -> None:
        """Send a frame, or keep it until the peer takes it. Nothing once the connection is lost."""
        size_bytes = 0
        for each in body:
            size_bytes += len(each)
        self._send_buffers([pack_head(kind, call_id, meta, size_bytes), *body])

    def _send_buffers(self, buffers: list[Buffer]) -> None:
        if self.is_lost:
            return
        size_bytes, sent_bytes = sum(map(len, buffers)), 0
        if self._outbox.size_bytes:
            self._outbox.add(buffers, 0, size_bytes)
            return
        try:
            if size_bytes <= _JOIN_BYTES_MAX:
                sent_bytes = self._socket.send(b"".join(buffers))
            else:
                sent_bytes = self._socket.sendmsg(one_turn(buffers))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # Later: who sends does not expect to lose the connection in the middle of it.
            self._loop.call_soon(self.lose, self._why_broken(error))
            return
        if sent_bytes < size_bytes:
            self._outbox.add(buffers, sent_bytes, size_bytes)
            self.rests_until_s = 0.0
            self._loop.add_writer(self._descriptor, self._writable)

    def _writable(self) -> None:
        budget = TURN_BYTES_MAX
        while self._outbox.size_bytes and budget > 0:
            try:
                count = self._socket.sendmsg(self._outbox.next())
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.lose(self._why_broken(error))
                return
            self._outbox.sent(count)
            self.heard_s, self._unanswered_checks = self._loop.time(), 0
            budget -= count
        if not self._outbox.size_bytes:
            self._loop.remove_writer(self._descriptor)
            self._all_sent()
        if self._outbox.size_bytes <= UNSENT_LOW_BYTES:
            self._wake()

    async def drained(self) -> None:
        """Wait until the peer has taken nearly all, or is lost; at once while it keeps pace."""
        while self._outbox.size_bytes > UNSENT_HIGH_BYTES and not self.is_lost:
            waiter = self._loop.create_future()
            self._drained.append(waiter)
            await waiter

    def when_sent(self, function: Callable[[], None]) -> None:
        """Call once when nothing is unsent any more, from the loop; never on a lost connection."""
        self._sent.append(function)
        if not self._outbox.size_bytes:
            self._loop.call_soon(self._all_sent)

    def _all_sent(self) -> None:
        waiting, self._sent = self._sent, []
        for each in waiting:
            each()

    def _show_life(self) -> None:
        """Anything that the peer has still to take shows it as well, and must not grow."""
        if not self._outbox.size_bytes:
            self.send(FrameKind.PONG, 0, b"", ())

    def _wake(self) -> None:
        waiters, self._drained = self._drained, []
        for each in waiters:
            if not each.done():
                each.set_result(None)

    # --- the end --------------------------------------------------------------------------------

    def check(self, now_s: float, *, ask_after_s: float | None = None) -> None:
        """Ask a silent peer, and lose one that stays silent or never ends a message.

        Called every ``check_every_s``, or as often as the process gets a turn. What waits to be
        sent by then is no view of larger memory any more.

        Args:
            now_s: Of the loop.
            ask_after_s: How long the peer may be silent, for somebody waits for it.
        """
        if self.is_lost:
            return
        if self._outbox.size_bytes:
            self._outbox.own()
        if self._is_paused:
            self._show_life()  # its PING is not read meanwhile
            if is_host_silent(self._descriptor):
                self.lose("the peer's host does not answer")
            return
        timeouts = self._timeouts
        ping_after_s = timeouts.ping_after_s
        if self._outbox.size_bytes:
            ask_after_s = timeouts.awaited_ping_after_s
        if ask_after_s is not None:
            ping_after_s = min(ping_after_s, ask_after_s)
        allowed_s = timeouts.message_within_s + (self._inbox.expected_bytes >> 20)
        if self._begun_s is not None and now_s - self._begun_s > allowed_s:
            self.lose("the peer began a message and did not end it in time")
        elif now_s - self.heard_s < ping_after_s:
            if self.has_greeted and self._begun_s is None and not self._outbox.size_bytes:
                self.rests_until_s = self.heard_s + ping_after_s
        elif self._unanswered_checks * timeouts.check_every_s >= timeouts.pong_within_s:
            self.lose(f"the peer was silent for {now_s - self.heard_s:.1f} s")
        else:
            if not self._unanswered_checks:
                self.send(FrameKind.PING, 0, b"", ())
            self._unanswered_checks += 1

    def _why_broken(self, error: OSError | None) -> str:
        """``error`` is None when the peer has closed the connection."""
        why = "the peer closed the connection"
        if error is not None:
            why = f"the connection broke: {error.strerror or error}"
        if not self.has_greeted and self._tls is None:
            why += " (before its hello: does it expect TLS?)"
        return why

    def lose(self, why: str, **metadata: str) -> None:
        """End the connection at once; the owner hears of it. Does nothing the second time."""
        if self.is_lost:
            return
        self.is_lost, self.why_lost = True, why
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._socket.close()
        self._outbox.clear()
        self._sent.clear()
        self._wake()
        self._owner.lost(self, UnavailableError(why, **metadata))
