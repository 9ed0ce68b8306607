"""The parts of the port that need no task, for transports that know only tasks: gRPC, simulator."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from icecore.errors import IcecoreError, UnavailableError
from icecore.rpc import framing
from icecore.rpc.ports import (
    Admitted,
    Body,
    CallContext,
    DirectHandler,
    Done,
    Handlers,
    Outcome,
    Received,
    ServerStream,
    Sink,
    UnaryHandler,
    join,
)

_QUEUED_BYTES_MAX: Final = 4 << 20


def as_unary(handler: DirectHandler) -> UnaryHandler:
    """A direct handler as one that gets the whole message and returns the answer."""

    async def unary(body: Received, context: CallContext) -> Body:
        header, batches = framing.split_bulk(body, handler.request)
        admitted = handler.admit(header, len(batches), context)
        if not isinstance(admitted, Admitted):
            return admitted
        answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()

        def settle(outcome: Outcome) -> None:
            if answer.done():
                return  # the caller's transport is gone
            if isinstance(outcome, IcecoreError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        admitted.run(batches, settle)
        return await answer

    return unary


def all_unary(handlers: Handlers) -> dict[str, UnaryHandler]:
    """The direct ones among them, too."""
    direct = {name: as_unary(handler) for name, handler in handlers.direct.items()}
    return {**handlers.unary, **direct}


def start_in_task(
    call: Coroutine[Any, Any, Received], done: Done, tasks: "set[asyncio.Task[None]]"
) -> Callable[[], object]:
    """``Net.start_call`` by means of ``Net.call``; ``tasks`` keeps what is under way."""

    async def run() -> None:
        outcome: Received | IcecoreError
        try:
            outcome = await call
        except IcecoreError as error:
            outcome = error
        done(outcome)

    task = asyncio.get_running_loop().create_task(run())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    task.add_done_callback(lambda _: call.close())  # Python warns of one that never began
    return task.cancel


async def consume_by_reading(stream: ServerStream, sink: Sink) -> Received | None:
    """``ServerStream.consume`` by means of ``read``."""
    while (body := await stream.read()) is not None:
        if not sink(body):
            return body
    return None


class LaterWrites:
    """Messages that were sent without waiting, written by a task in their order.

    Args:
        write: Sends one message, and waits.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._error: IcecoreError | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits to be written."""
        return self._task is None

    def add(self, body: Body) -> bool:
        """As ``ServerStream.write_now``."""
        self._check()
        message = join(body)
        self._queue.append(message)
        self._queued_bytes += len(message)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._queued_bytes <= _QUEUED_BYTES_MAX

    async def flush(self) -> None:
        """As ``ServerStream.flush``."""
        if self._task is not None and self._queued_bytes > _QUEUED_BYTES_MAX:
            await asyncio.wait({self._task})
        self._check()

    async def finish(self) -> None:
        """Wait until all is written, or cannot be."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._queue:
                message = self._queue.popleft()
                await self._write(message)
                self._queued_bytes -= len(message)
        except IcecoreError as error:
            self._error = error
        except asyncio.CancelledError:
            self._error = UnavailableError("the stream was cancelled")
            raise
        finally:
            self._task = None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.again()
