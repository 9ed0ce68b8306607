"""Calls under way on one connection, and which connection a method uses.

Small calls that somebody waits for never stand behind bulk data or behind a reader that stalls:
each class of methods has a connection of its own to each address. Requests of one class travel in
the order in which they were made.
"""

import asyncio
from typing import Final

from google.protobuf.message import DecodeError

from icecore.errors import IcecoreError, InternalError, RequestTimeoutError
from icecore.rpc import convert
from icecore.rpc.methods import DATA, REPLICATION
from icecore.rpc.native.connection import NativeConnection, Timeouts
from icecore.rpc.native.frame import HEADER_BYTES_MAX, Frame, FrameError, FrameKind, pack_call
from icecore.rpc.ports import Body, Bulk, Done, Received, buffers_of
from icecore.v1 import common_pb2

CONTROL: Final = "control"
FETCH: Final = "fetch"
_CLASSES: Final = {
    DATA["Produce"]: "produce",
    DATA["Fetch"]: FETCH,
    REPLICATION["ReadSegment"]: "copy",
}
_CALL_ID_MAX: Final = 0xFFFFFFFF


def class_of(method: str) -> str:
    """Calls of one class share a connection."""
    return _CLASSES.get(method, CONTROL)


def error_of(body: Received) -> IcecoreError:
    """The error in the body of an ERROR frame."""
    try:
        found = convert.error_from_proto(common_pb2.Error.FromString(bytes(body)))
    except DecodeError:
        found = None
    return found or InternalError("the peer sent an error that can't be read")


class _Call:
    """One that is not answered yet."""

    __slots__ = ("done", "method", "timer")

    def __init__(self, method: str, done: Done, timer: asyncio.TimerHandle) -> None:
        self.method, self.done, self.timer = method, done, timer


class Calls:
    """Unanswered calls of one connection. Each ends once: answered, refused, late or broken.

    Args:
        connection: Theirs alone.
        may_park: They may wait for something to happen.
    """

    def __init__(self, connection: NativeConnection, *, may_park: bool = False) -> None:
        self.connection = connection
        self._may_park = may_park
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _Call] = {}
        self._last_id = 0
        self._newest_s = 0.0
        """When the last call began."""

    def ask_after_s(self, now_s: float, timeouts: Timeouts) -> float | None:
        """Return how long the server may be silent; None while nobody waits for an answer.

        Who waits at the end of a log asks less often the longer that takes: each ping costs the
        server a turn, and most consumers wait most of the time.
        """
        if not self._calls:
            return None
        soon_s = timeouts.awaited_ping_after_s
        if not self._may_park:
            return soon_s
        return max(soon_s, min((now_s - self._newest_s) / 2, timeouts.parked_ping_after_s))

    def start(self, method: str, body: Body, timeout_s: float, done: Done) -> int:
        """Send a request. ``done`` is called from the loop, never before this returns.

        Returns:
            What ``forget`` takes.
        """
        self._last_id = call_id = self._last_id % _CALL_ID_MAX + 1
        timer = self._loop.call_later(timeout_s, self._late, call_id)
        self._newest_s = self._loop.time()
        self._calls[call_id] = _Call(method, done, timer)
        if isinstance(body, Bulk) and len(body.header) <= HEADER_BYTES_MAX:
            meta = pack_call(timeout_s, method.encode(), body.header)
            self.connection.send(FrameKind.BULK, call_id, meta, body.batches)
        else:
            meta = pack_call(timeout_s, method.encode())
            self.connection.send(FrameKind.CALL, call_id, meta, buffers_of(body))
        return call_id

    def forget(self, call_id: int) -> None:
        """Nobody waits any more; the answer is dropped when it comes."""
        call = self._calls.pop(call_id, None)
        if call is not None:
            call.timer.cancel()

    def arrived(self, frame: Frame) -> None:
        """An answer or an error. Raises FrameError when it is neither."""
        if frame.kind == FrameKind.ANSWER:
            self._end(frame.call_id, frame.body)
        elif frame.kind == FrameKind.ERROR and frame.call_id:
            self._end(frame.call_id, error_of(frame.body))
        elif frame.kind == FrameKind.ERROR:
            self.connection.lose(error_of(frame.body).message)
        else:
            raise FrameError(f"kind {frame.kind} is no answer")

    def lost(self, error: IcecoreError) -> None:
        """The connection is lost, and with it all answers."""
        for call_id in list(self._calls):
            self._end(call_id, error.again())

    def _late(self, call_id: int) -> None:
        method = self._calls[call_id].method
        self._end(call_id, RequestTimeoutError(f"no answer to {method} in time"))

    def _end(self, call_id: int, outcome: Received | IcecoreError) -> None:
        call = self._calls.pop(call_id, None)
        if call is not None:  # else it came late, or nobody waited
            call.timer.cancel()
            call.done(outcome)
