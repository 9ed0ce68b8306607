"""Calls of handlers by a server: makes their context, runs them, and sends their outcome."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.rpc import convert, framing
from icecore.rpc.bounds import Bound
from icecore.rpc.handling import failure_of
from icecore.rpc.native.call_limit import CountedSlot
from icecore.rpc.native.connection import NativeConnection
from icecore.rpc.native.frame import MESSAGE_BYTES_MAX, Call, FrameKind
from icecore.rpc.native.stream import NativeStream
from icecore.rpc.ports import (
    Admitted,
    Answer,
    Body,
    Buffer,
    CallContext,
    CallSlot,
    DirectHandler,
    Received,
    UnaryHandler,
    buffers_of,
)

LATE: Final = "the caller's time is over"
_MESSAGE_CHARACTERS_MAX: Final = 1000


def context_of(
    connection: NativeConnection, timeout_s: float | None, slot: CallSlot
) -> CallContext:
    """Return a handler's view of its caller."""
    return CallContext(connection.peer, connection.principal, timeout_s, slot)


def in_time(handler: UnaryHandler, slot: CountedSlot, bound: Bound) -> UnaryHandler:
    """A handler for strangers, whose turn it is: if it only reads it ends in time."""

    async def run(body: Received, context: CallContext) -> Body:
        slot.note_begun()
        try:
            async with asyncio.timeout(context.timeout_s if bound.is_read else None) as limit:
                return await handler(body, context)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RequestTimeoutError(LATE) from error

    return run


def run_direct(
    handler: DirectHandler,
    call: Call,
    body: Received,
    context: CallContext,
    admitted: Admitted | None,
    answer: Answer,
) -> None:
    """Run a direct handler; one that was not asked yet, for the body is small, is asked now."""
    if admitted is None:
        if call.header is None:
            header, body = framing.split_bulk(body, handler.request)
        else:
            header = call.header
        asked = handler.admit(header, len(body), context)
        if not isinstance(asked, Admitted):
            answer(asked)
            return
        admitted = asked
    admitted.run(body, answer)


def checked(body: Body) -> Sequence[Buffer]:
    """The buffers of an answer. Raises InvalidRequestError when there is too much of it."""
    buffers = buffers_of(body)
    if (size_bytes := sum(map(len, buffers))) > MESSAGE_BYTES_MAX:
        what = f"an answer of {size_bytes} bytes, larger than max {MESSAGE_BYTES_MAX}"
        raise InvalidRequestError(what)
    return buffers


def send_error(connection: NativeConnection, call_id: int, error: IcecoreError) -> None:
    """Tell the caller; of the connection as a whole if ``call_id`` is 0."""
    message = convert.error_to_proto(error)
    message.message = message.message[:_MESSAGE_CHARACTERS_MAX]
    connection.send(FrameKind.ERROR, call_id, b"", (message.SerializeToString(),))


async def run_stream(
    connection: NativeConnection, method: str, stream: NativeStream, running: Awaitable[None]
) -> None:
    """Run a handler to its end, and tell the client, which closes the connection then."""
    try:
        await running
    except asyncio.CancelledError:
        send_error(connection, 0, UnavailableError("the server is stopping"))
        raise
    except Exception as error:  # whatever it is, the caller hears of it
        send_error(connection, 0, failure_of(method, error))
    else:
        connection.send(FrameKind.END, 0, b"", ())
    finally:
        stream.fail(UnavailableError("the handler has returned"), at_once=True)
