"""The ports through which servers and clients reach the world: clock, chance and the network.

Production uses ``icecore/process/system.py`` and ``icecore/rpc/transports.py`` (gRPC and the native
transport); the deterministic simulator supplies its own. Bodies are opaque bytes: who sends a
message encodes it, so bulk data passes from socket to file without a message object in between.
Everything here runs on one asyncio loop; waiting is ``asyncio.sleep`` and ``asyncio.timeout``,
which the simulator's loop makes virtual.

A body is sent as one buffer or as a list of buffers (of single bytes, whose ``len`` is their size);
a transport that can sends a list without joining it, so nothing in it may change until the message
is gone. A body arrives as ``bytes`` or as a read-only view of memory that nobody else has: keeping
a slice of it keeps all of it.

A request with bulk data may be sent as a ``Bulk``. A transport that can shows its header to the
server before the rest is received, so that a refused call costs no memory (``DirectHandler``).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from google.protobuf.message import Message

from icecore.errors import IcecoreError

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Bulk:
    """A message with bulk data, in parts. ``icecore/rpc/framing.py`` makes it."""

    header: bytes
    """The message's small header, serialized."""
    lead: bytes
    """All of the message that comes before the batches, the header among it."""
    batches: Sequence[Buffer]


Body: TypeAlias = Buffer | Sequence[Buffer] | Bulk
"""One message to send."""
Received: TypeAlias = bytes | memoryview
"""One message that arrived."""


def buffers_of(body: Body) -> Sequence[Buffer]:
    """A body as the buffers it is made of."""
    if isinstance(body, Bulk):
        return (body.lead, *body.batches)
    return (body,) if isinstance(body, bytes | bytearray | memoryview) else body


def join(body: Body) -> bytes:
    """A body in one piece, for transports that know nothing else."""
    return body if isinstance(body, bytes) else b"".join(buffers_of(body))


class Clock(Protocol):
    """Two clocks. Safety never depends on either."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC. May jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back; comparable within one process only."""
        ...


class Rng(Protocol):
    """The only source of chance (jitter, new identifiers)."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def bytes(self, count: int) -> bytes:
        """``count`` random bytes."""
        ...


class CallSlot(Protocol):
    """The share of one call in a server that many use."""

    def park(self) -> None:
        """From now on the call does nothing but wait.

        Raises:
            ThrottledError: Too many do that already.
        """
        ...

    async def resume(self) -> None:
        """It goes on after ``park``, when it is its turn."""
        ...

    async def turn(self) -> None:
        """Wait until it is its turn again: it has kept others waiting."""
        ...


class _NoSlot:
    """The slot of a call where nothing is shared: the simulator, tests."""

    def park(self) -> None: ...

    async def resume(self) -> None: ...

    async def turn(self) -> None: ...


NO_SLOT: Final[CallSlot] = _NoSlot()


@dataclass(frozen=True, slots=True)
class CallContext:
    """A handler's view of its caller."""

    peer: str
    principal: str
    """Identity from the connection, never from message fields; ``anonymous`` without TLS."""
    timeout_s: float | None
    """Seconds until the caller gives up, None when it set no deadline."""
    slot: CallSlot = NO_SLOT


Sink: TypeAlias = Callable[[Received], bool]
"""Takes a message of a stream at once; False when it has to be looked at by who may wait."""


class ServerStream(Protocol):
    """The server's end of a bidirectional stream."""

    async def read(self) -> Received | None:
        """The next message, None when the peer has finished sending. Raises UnavailableError."""
        ...

    async def consume(self, sink: Sink) -> Received | None:
        """Hand each message to ``sink``, in the very callback that received it where the transport
        can, until it refuses one.

        Returns:
            The message that was refused; None when the peer has finished sending.

        Raises:
            UnavailableError: The stream broke.
        """
        ...

    async def write(self, body: Body) -> None:
        """Send one message; waits while the peer's window is full. Raises UnavailableError."""
        ...

    def write_now(self, body: Body) -> bool:
        """Send one message without waiting.

        Returns:
            Whether the peer keeps pace. If not, the message waits here, and the sender should
            ``flush`` before it sends more.

        Raises:
            UnavailableError: The stream broke.
        """
        ...

    async def flush(self) -> None:
        """Wait until the peer keeps pace again. Raises UnavailableError."""
        ...


class ClientStream(ServerStream, Protocol):
    """The client's end: the same, and it may give up."""

    def cancel(self) -> None:
        """Break the stream at once; both ends see UnavailableError."""
        ...


UnaryHandler: TypeAlias = Callable[[Received, CallContext], Awaitable[Body]]
StreamHandler: TypeAlias = Callable[[ServerStream, CallContext], Awaitable[None]]
Outcome: TypeAlias = Body | IcecoreError
Answer: TypeAlias = Callable[[Outcome], None]
"""Takes the outcome of a call, once, from the loop."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call whose header was accepted. Exactly one of the two is called, once, from the loop."""

    run: Callable[[Received, Answer], None]
    """The batches are here. It is called in the callback that received them, so it neither waits
    nor takes long; it answers there or later. What it raises is the answer."""
    abandon: Callable[[], None]
    """The batches never come, or the server does not want them any more."""


Admit: TypeAlias = Callable[[bytes, int, CallContext], Admitted | Body]
"""Looks at a serialized header and the length of the batches that are to come. It admits the call,
answers it at once, or raises what the caller is told; then nobody takes memory for the batches."""


@dataclass(frozen=True, slots=True)
class DirectHandler:
    """Handler of a unary method with a bulk request, where each step counts."""

    request: type[Message]
    """The bulk message, for transports that receive it in one piece: they ask ``admit`` then."""
    admit: Admit


@dataclass(frozen=True, slots=True)
class Handlers:
    """Handlers of a server by full method name (``/icecore.v1.DataService/Fetch``)."""

    unary: Mapping[str, UnaryHandler]
    streams: Mapping[str, StreamHandler]
    direct: Mapping[str, DirectHandler] = field(default_factory=dict)
    """Handlers of unary methods with a bulk request, where each step counts."""
    is_ready: Callable[[], bool] = field(default=lambda: True)
    """True while the transport's own health service reports ready."""


class Server(Protocol):
    """A listening server."""

    @property
    def address(self) -> str:
        """``host:port`` really bound (port 0 was replaced)."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones finish for ``grace_s`` seconds, then cancel them."""
        ...


Done: TypeAlias = Callable[[Received | IcecoreError], None]


STRANGER: Final = "stranger"
"""Metadata of an UnavailableError: who is there speaks another protocol, and will tomorrow."""


class Net(Protocol):
    """Calls between processes. Errors raised by a handler arrive as the same IcecoreError.

    An address is ``host:port``, and may say which transport is meant (``rpc/addresses.py``).
    """

    async def call(self, address: str, method: str, body: Body, *, timeout_s: float) -> Received:
        """One request, one answer.

        Raises:
            UnavailableError: no connection, or it broke before the answer came.
            RequestTimeoutError: no answer within ``timeout_s``.
            IcecoreError: whatever the handler raised.
        """
        ...

    def start_call(
        self, address: str, method: str, body: Body, *, timeout_s: float, done: Done
    ) -> Callable[[], object]:
        """As ``call``, for those who need no task to wait in.

        Args:
            address: As above, and so on.
            method: Full name.
            body: The request.
            timeout_s: Until ``done`` gets a RequestTimeoutError.
            done: Called with the answer or the error, once, from the loop and never before this
                returns.

        Returns:
            A function that gives up: ``done`` is not called any more.

        Raises:
            IcecoreError: What is wrong with the call itself; ``done`` is not called.
        """
        ...

    def keeps_order(self, address: str) -> bool:
        """Return whether calls of one method to this address begin there in the order in which they
        were made, as long as no connection is lost. It is for speed: who relies on it asks the
        other side, too."""
        ...

    def open_stream(self, address: str, method: str) -> ClientStream:
        """A bidirectional stream; connection errors surface in read and write."""
        ...

    async def refuses(self, address: str, *, within_s: float) -> bool:
        """Return whether the host says that nobody listens at this address: the process is gone.

        False when somebody listens, and when no answer comes within ``within_s``.
        """
        ...

    async def serve(self, address: str, handlers: Handlers) -> Server:
        """Listen on ``host:port``. Raises ConfigurationError when the port is taken."""
        ...

    async def close(self) -> None:
        """Close all client connections."""
        ...
