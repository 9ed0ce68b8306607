"""One end of a stream. A stream has a connection of its own, so TCP is its flow control.

Messages that nobody has read yet are bounded: beyond ``UNREAD_HIGH_BYTES`` the connection is read
no more, and the writer at the other end waits once its kernel and ours hold what they can.
"""

import asyncio
from collections import deque
from typing import Final

from icecore.errors import IcecoreError, InvalidRequestError, UnavailableError
from icecore.rpc.native.connection import UNSENT_HIGH_BYTES, NativeConnection
from icecore.rpc.native.frame import MESSAGE_BYTES_MAX, FrameKind
from icecore.rpc.ports import Body, Received, Sink, buffers_of

UNREAD_HIGH_BYTES: Final = 8 << 20
UNREAD_LOW_BYTES: Final = 1 << 20


class NativeStream:
    """See ``icecore.rpc.ports.ClientStream``; the client's end may not be connected yet."""

    def __init__(self, connection: NativeConnection | None = None) -> None:
        self._connection = connection
        self._messages: deque[Received] = deque()
        self._unread_bytes = 0
        self._end: IcecoreError | None = None
        """Why nothing can be written any more, and nothing comes after the messages."""
        self._has_ended = False
        """The other end has finished without an error."""
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        """Somebody consumes: gets messages in the callback that received them."""
        self._raised: Exception | None = None
        self._opening: asyncio.Future[None] | None = None

    # --- called by whoever owns the connection --------------------------------------------------

    def opens(self, opening: "asyncio.Future[None]") -> None:
        """A connection is under way; reads and writes wait for it."""
        self._opening = opening

    def opened(self, connection: NativeConnection) -> None:
        """There is a connection now."""
        self._connection = connection

    def arrived(self, body: Received) -> None:
        """A message; dropped when nobody will read it."""
        if self._end is not None:
            return
        if self._sink is not None and not self._messages and self._taken(self._sink, body):
            return
        self._messages.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > UNREAD_HIGH_BYTES and self._connection is not None:
            self._connection.pause()
        self._wake()

    def _taken(self, sink: Sink, body: Received) -> bool:
        """Return whether the consumer took a message; what it raises is raised to it where it
        waits."""
        try:
            return sink(body)
        except Exception as error:
            self._sink, self._raised = None, error
            self._wake()
            return False

    def finished(self) -> None:
        """The other end has finished; what arrived before can still be read."""
        self._has_ended = True
        self.fail(UnavailableError("the peer closed the stream"))

    def fail(self, error: IcecoreError, *, at_once: bool = False) -> None:
        """The stream is over; ``at_once`` drops what was not read. Only the first reason counts."""
        if self._end is None:
            self._end = error
        if at_once:
            self._messages.clear()
            self._unread_bytes = 0
            self._has_ended = False
            if self._connection is not None:
                self._connection.resume()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the port -------------------------------------------------------------------------------

    async def read(self) -> Received | None:
        """As the port says."""
        await self._connected()
        while not self._messages or self._raised is not None:
            if self._raised is not None:
                raised, self._raised = self._raised, None
                raise raised
            if self._has_ended:
                return None
            self._check()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        body = self._messages.popleft()
        self._unread_bytes -= len(body)
        if self._unread_bytes < UNREAD_LOW_BYTES and self._connection is not None:
            self._connection.resume()
        return body

    async def consume(self, sink: Sink) -> Received | None:
        """As the port says."""
        self._sink = sink
        try:
            while (body := await self.read()) is not None:
                if not sink(body):
                    return body
            return None
        finally:
            self._sink = None

    async def write(self, body: Body) -> None:
        """As the port says."""
        await self._connected()
        if not self.write_now(body):
            await self.flush()

    def write_now(self, body: Body) -> bool:
        """As the port says."""
        self._check()
        connection = self._connection
        if connection is None:
            raise UnavailableError("the stream is not open yet")
        buffers = buffers_of(body)
        if (size_bytes := sum(map(len, buffers))) > MESSAGE_BYTES_MAX:
            raise InvalidRequestError(f"{size_bytes} bytes, larger than max {MESSAGE_BYTES_MAX}")
        connection.send(FrameKind.DATA, 0, b"", buffers)
        return connection.unsent_bytes <= UNSENT_HIGH_BYTES

    async def flush(self) -> None:
        """As the port says."""
        connection = await self._connected()
        if connection is not None:
            await connection.drained()
        self._check()

    def cancel(self) -> None:
        """As the port says."""
        self.fail(UnavailableError("the stream was cancelled"), at_once=True)
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.lose("the stream was cancelled")

    async def _connected(self) -> NativeConnection | None:
        if self._connection is None and self._opening is not None:
            await asyncio.wait({self._opening})
            if self._connection is None and self._end is None:
                self._end = UnavailableError("the stream was not opened")
        return self._connection

    def _check(self) -> None:
        if self._end is not None:
            raise self._end.again()
