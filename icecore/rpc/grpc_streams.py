"""The two ends of a gRPC stream: messages read ahead, and our errors for whatever breaks."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import grpc

from icecore.errors import IcecoreError, UnavailableError
from icecore.rpc.ports import Body, Received, Sink, join
from icecore.rpc.statuses import error_of
from icecore.rpc.waiting import LaterWrites, consume_by_reading

_EOF_GRACE_S: Final = 0.02


def mark_retrieved(task: "asyncio.Future[Any]") -> None:
    """A done callback: asyncio does not complain that nobody looked at the error."""
    if not task.cancelled():
        task.exception()


class _Reads:
    """The messages of a stream, read one ahead by a task of its own.

    gRPC breaks the whole stream when a read is cancelled; here a cancelled reader, for example in
    ``asyncio.timeout``, just leaves the message for the next one. One task per stream instead of
    one per message is most of the cost of a read.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._read = read
        self._messages: deque[Any] = deque()
        self._end: BaseException | None = None
        """Why nothing comes any more; ``EOF`` is a message like others, and stays."""
        self._waiter: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    def fail(self, error: BaseException) -> None:
        """End the messages: what was not read yet is dropped."""
        self._messages.clear()
        self._end = error
        self._wake()
        self._room.set()  # else the task would wait for a reader for ever

    async def next(self) -> Any:
        if self._pump is None:
            self._pump = asyncio.ensure_future(self._read_ahead())
            self._pump.add_done_callback(mark_retrieved)
        while not self._messages and self._end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._messages:
            assert self._end is not None
            raise self._end
        if self._messages[0] is grpc.aio.EOF:
            return grpc.aio.EOF
        self._room.set()
        return self._messages.popleft()

    async def _read_ahead(self) -> None:
        while True:
            try:
                message = await self._read()
            except asyncio.CancelledError:
                self.fail(UnavailableError("the stream broke"))
                raise
            except Exception as error:  # raised to who reads
                self.fail(error)
                return
            self._messages.append(message)
            self._wake()
            if message is grpc.aio.EOF:
                return
            if len(self._messages) > 1:
                self._room.clear()
                await self._room.wait()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class GrpcClientStream:
    """See ``icecore.rpc.ports.ClientStream``."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        self._call = call
        self._reads = _Reads(call.read)
        self._later = LaterWrites(self._write)

    async def read(self) -> bytes | None:
        try:
            body = await self._reads.next()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        return None if body is grpc.aio.EOF else body

    async def consume(self, sink: Sink) -> Received | None:
        return await consume_by_reading(self, sink)

    async def write(self, body: Body) -> None:
        await self._later.finish()
        await self._write(join(body))

    def write_now(self, body: Body) -> bool:
        return self._later.add(body)

    async def flush(self) -> None:
        await self._later.flush()

    async def _write(self, body: bytes) -> None:
        try:
            await self._call.write(body)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except asyncio.InvalidStateError as error:
            raise UnavailableError("the stream is closed") from error
        except asyncio.CancelledError as error:
            if is_cancelling():
                raise
            raise UnavailableError("the stream was cancelled") from error

    def cancel(self) -> None:
        self._call.cancel()
        self._reads.fail(UnavailableError("the stream was cancelled"))


def is_cancelling() -> bool:
    """Return whether it is the current task that is being cancelled, and not what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class GrpcServerStream:
    """See ``icecore.rpc.ports.ServerStream``."""

    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        self._context = context
        self._reads = _Reads(context.read)
        self._later = LaterWrites(self._write)
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broken.add_done_callback(
            lambda _: self._reads.fail(UnavailableError("the stream broke"))
        )

    async def read(self) -> bytes | None:
        body = await self._guarded(self._reads.next())
        if body is grpc.aio.EOF:
            # A broken connection shows as the end of the stream first; the news follows at once.
            await asyncio.wait({self.broken}, timeout=_EOF_GRACE_S)
            self._check()
            return None
        message: bytes = body
        return message

    async def consume(self, sink: Sink) -> Received | None:
        return await consume_by_reading(self, sink)

    async def write(self, body: Body) -> None:
        await self._later.finish()
        await self._write(join(body))

    def write_now(self, body: Body) -> bool:
        self._check()
        return self._later.add(body)

    async def flush(self) -> None:
        await self._later.flush()

    async def finish(self) -> None:
        """Wait until all that was sent is written: gRPC ends the stream after the handler."""
        await self._later.finish()

    async def _write(self, body: bytes) -> None:
        self._check()
        await self._guarded(self._context.write(body))

    def _check(self) -> None:
        if self.broken.done():
            raise UnavailableError("the peer closed the stream")

    async def _guarded(self, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        except IcecoreError:
            raise
        except Exception as error:  # gRPC's own classes for this are private
            raise UnavailableError(f"the stream broke: {error}") from error
