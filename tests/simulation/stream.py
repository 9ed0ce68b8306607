"""One simulated connection: its two processes, how it breaks, and the two ends of a stream.

Messages of one direction arrive in order. A writer waits while more than a window of bytes is
unread at the other end. When a connection breaks, both ends see UnavailableError at once and what
was not read is lost.

A body arrives as bytes or as a view, as the port allows: its length alone decides, so that about
half of the bodies of each kind are views and a replay needs no chance.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING

from icecore.errors import (
    IcecoreError,
    InternalError,
    UnavailableError,
    UnsupportedError,
)
from icecore.rpc.ports import Body, CallContext, Received, Sink, join
from icecore.rpc.waiting import LaterWrites, consume_by_reading
from tests.simulation.process import SimProcess

if TYPE_CHECKING:
    from tests.simulation.network import SimNetwork, SimServer

WINDOW_BYTES = 256 * 1024
BREAK_GRACE_S = 5.0
BYTES_MAX = 64
"""No longer body is always bytes."""


def on_the_wire(body: Body) -> Received:
    """A body that was sent, as it arrives; later changes of its buffers are not seen."""
    whole = bytes(join(body))
    return memoryview(whole) if len(whole) > BYTES_MAX and len(whole) % 2 == 0 else whole


class SimConnection:
    """One call or stream between a client process and whoever listens at an address."""

    def __init__(
        self, network: "SimNetwork", client: SimProcess, address: str, method: str
    ) -> None:
        self.network = network
        self.client = client
        self.client_host = client.name
        self.server: SimProcess | None = None
        self.server_host = address.rpartition(":")[0]
        self.address = address
        self.method = method
        self.is_broken = False
        self.task: asyncio.Task[None] | None = None
        self.connect_timer: asyncio.TimerHandle | None = None
        self.pipes = (Pipe(), Pipe())
        """The pipe that the client reads, and the one that the server reads."""
        self._serial = network.loop.next_serial()

    def __hash__(self) -> int:
        return self._serial

    def arrive(self) -> None:
        """The first packet is at the server's host."""
        if self.is_broken:
            return
        server = self.network.listener(self.address)
        if server is None:
            self._reset_client("connection refused")
            return
        self.stop_timer()
        self.server = server.process
        self.accepted(server)

    def accepted(self, server: "SimServer") -> None:
        """A stream: start its handler."""
        handler = server.handlers.streams.get(self.method)
        self.network.loop.trace(f"{self.client} > {server.process} {self.method} opens")
        end = SimStreamEnd(self, is_client=False)
        if handler is None:
            end.transmit(UnsupportedError(f"no such stream: {self.method}"))
            return
        context = CallContext(self.client_host, "anonymous", None)

        async def serve() -> None:
            last: IcecoreError | None = None
            try:
                await handler(end, context)
                await end.finish()
            except asyncio.CancelledError:
                end.transmit(UnavailableError("the server is stopping"))
                raise
            except IcecoreError as error:
                last = error.again()
            except Exception as error:
                last = self.unexpected(error)
            self.network.loop.trace(f"{self.client} > {server.process} {self.method} ends")
            self.pipes[1].break_(UnavailableError(f"{self.method}: the handler has returned"))
            end.transmit(last)

        self.run_handler(server, serve())

    def run_handler(self, server: "SimServer", coroutine: Coroutine[object, object, None]) -> None:
        """In the server's process, so that it dies with it."""
        self.task = server.process.spawn(coroutine)
        server.run(self.task)

    def unexpected(self, error: Exception) -> InternalError:
        """A handler raised what is no IcecoreError: a bug that fails the run."""
        if self.server is not None and self.server.alive:
            self.network.loop.failures.append(f"{self.server} {self.method}: {error!r}")
        return InternalError("unexpected failure; the server's log has the details")

    def cancel_handler(self) -> None:
        """The stream broke: its handler may tidy up for a while, then it is cancelled."""
        if self.task is not None and not self.task.done():
            self.network.loop.call_later(BREAK_GRACE_S, self.task.cancel, context=Context())

    # --- breaking -----------------------------------------------------------------------------

    def fail(self, error: IcecoreError) -> None:
        """Tell the client's end."""
        self.pipes[0].break_(error)
        self.pipes[1].writer_broke(error)

    def connect_timed_out(self) -> None:
        """Nothing came back from the server's host."""
        if self.server is None:
            self._reset_client("connect timed out")

    def stop_timer(self) -> None:
        if self.connect_timer is not None:
            self.connect_timer.cancel()
            self.connect_timer = None

    def _reset_client(self, why: str) -> None:
        self.network.send(self.server_host, self.client_host, lambda: self.reset(why))

    def reset(self, why: str) -> None:
        """Both ends see it now."""
        if self.is_broken:
            return
        self.is_broken = True
        self.stop_timer()
        self.network.disconnect(self)
        self.network.loop.trace(f"{self.client} >< {self.address} {self.method}: {why}")
        error = UnavailableError(f"{self.method} at {self.address}: {why}")
        self.fail(error)
        self.pipes[1].break_(error)
        self.pipes[0].writer_broke(error)
        self.cancel_handler()

    def process_died(self, process: SimProcess) -> None:
        """The kernel of the dead process sends a reset to the other end."""
        if process is self.client:
            source, target = self.client_host, self.server_host
        else:
            source, target = self.server_host, self.client_host
        self.network.send(source, target, lambda: self.reset("connection reset"))


class Pipe:
    """One direction: messages that arrived, and who waits for them or for room."""

    def __init__(self) -> None:
        self.arrived: deque[Received] = deque()
        self.unread_bytes = 0
        self.in_flight: deque[Callable[[], None]] = deque()
        self.has_ended = False
        self.last_error: IcecoreError | None = None
        self.write_error: IcecoreError | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()

    def wake(self) -> None:
        """Everybody looks again."""
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Until something arrived, was read, or broke."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def deliver_next(self) -> None:
        """Some packet arrived: the oldest message is complete. TCP keeps the order."""
        self.in_flight.popleft()()

    def break_(self, error: IcecoreError) -> None:
        """Nothing more can be read here."""
        if not self.has_ended:
            self.has_ended = True
            self.last_error = error
            self.arrived.clear()
        self.writer_broke(error)

    def writer_broke(self, error: IcecoreError) -> None:
        """Nothing more can be written here."""
        if self.write_error is None:
            self.write_error = error
        self.wake()

    def end(self, error: IcecoreError | None) -> None:
        """The writer has finished; what arrived before can still be read."""
        if not self.has_ended:
            self.has_ended = True
            self.last_error = error
        self.wake()


class SimStreamEnd:
    """icecore.rpc.ports.ServerStream and ClientStream."""

    def __init__(self, connection: SimConnection, *, is_client: bool) -> None:
        self._connection = connection
        self._is_client = is_client
        inbound, outbound = connection.pipes if is_client else connection.pipes[::-1]
        self._inbound = inbound
        self._outbound = outbound
        self._later = LaterWrites(self._write)

    def _check(self) -> None:
        owner = self._connection.client if self._is_client else self._connection.server
        if owner is not None:
            owner.check()

    async def read(self) -> Received | None:
        """As icecore.ports."""
        pipe = self._inbound
        while True:
            self._check()
            if pipe.arrived:
                body = pipe.arrived.popleft()
                pipe.unread_bytes -= len(body)
                pipe.wake()
                return body
            if pipe.has_ended:
                if pipe.last_error is not None:
                    raise pipe.last_error.again()
                return None
            await pipe.changed()

    async def consume(self, sink: Sink) -> Received | None:
        """As icecore.ports."""
        return await consume_by_reading(self, sink)

    async def write(self, body: Body) -> None:
        """As icecore.ports."""
        await self._later.finish()
        await self._write(join(body))

    def write_now(self, body: Body) -> bool:
        """As icecore.ports."""
        self._check()
        return self._later.add(body)

    async def flush(self) -> None:
        """As icecore.ports."""
        await self._later.flush()

    async def finish(self) -> None:
        """Wait until all that was sent is on its way."""
        await self._later.finish()

    async def _write(self, body: bytes) -> None:
        message = on_the_wire(body)
        self._connection.network.check_size(self._connection.method, message)
        pipe = self._outbound
        while True:
            self._check()
            if pipe.write_error is not None:
                raise pipe.write_error.again()
            if pipe.unread_bytes == 0 or pipe.unread_bytes + len(message) <= WINDOW_BYTES:
                break
            await pipe.changed()
        pipe.unread_bytes += len(message)
        self._send(pipe, lambda: self._arrived(pipe, message))

    def _arrived(self, pipe: Pipe, body: Received) -> None:
        if not pipe.has_ended:
            self._connection.network.loop.trace(
                f"{self._connection.client} {'>' if self._is_client else '<'} "
                f"{self._connection.address} {self._connection.method} {len(body)}"
            )
            pipe.arrived.append(body)
            pipe.wake()

    def transmit(self, error: IcecoreError | None) -> None:
        """The server's handler has returned or raised: the client sees that after all data."""
        pipe = self._outbound

        def ended() -> None:
            pipe.end(error)
            self._connection.pipes[1].writer_broke(UnavailableError("stream has ended"))
            self._connection.network.disconnect(self._connection)

        self._send(pipe, ended)

    def _send(self, pipe: Pipe, callback: Callable[[], None]) -> None:
        connection = self._connection
        hosts = (connection.client_host, connection.server_host)
        source, target = hosts if self._is_client else hosts[::-1]
        pipe.in_flight.append(callback)
        connection.network.send(source, target, pipe.deliver_next)

    def cancel(self) -> None:
        """As icecore.ports: both ends see UnavailableError."""
        connection = self._connection
        if not connection.client.alive or connection.is_broken:
            return
        connection.fail(UnavailableError(f"{connection.method}: cancelled"))
        connection.network.send(
            connection.client_host, connection.server_host, lambda: connection.reset("cancelled")
        )
