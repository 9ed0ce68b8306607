"""The network port over gRPC: opaque bytes both ways, and our errors as gRPC statuses.

Handlers and callers see bodies and IcecoreErrors only (``icecore/rpc/statuses.py`` maps them). A
handler that may change something runs to its end: when its caller gives up, the answer is dropped
and the handler is not interrupted halfway. One that only reads is stopped.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

# gRPC's core writes its own notices ("Got goaway") to stderr; ours go through logging.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

from icecore.errors import (
    ConfigurationError,
    ForkedError,
    IcecoreError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.rpc.addresses import check_listen, refuses, why_not_bound
from icecore.rpc.bounds import MESSAGE_BYTES_MAX, bound_of, bounded
from icecore.rpc.grpc_streams import (
    GrpcClientStream,
    GrpcServerStream,
    is_cancelling,
    mark_retrieved,
)
from icecore.rpc.handling import failure_of, unread
from icecore.rpc.ports import (
    Body,
    CallContext,
    CallSlot,
    Done,
    Handlers,
    Received,
    StreamHandler,
    UnaryHandler,
    join,
)
from icecore.rpc.slots import Slots, host_of
from icecore.rpc.standard_services import add_standard_services
from icecore.rpc.statuses import DETAILS_KEY, MESSAGE_CHARACTERS_MAX, error_of, status_of
from icecore.rpc.waiting import all_unary, start_in_task

_BREAK_GRACE_S = 5.0
_STREAMS_MAX: Final = 512
"""Calls of one connection at a time."""
_CONNECTIONS_MAX: Final = 4_096
_HELLO_WITHIN_MS: Final = 5_000
_IDLE_MS_MAX: Final = 300_000
"""A connection without calls is closed; a caller that comes back opens another one."""

_Options = list[tuple[str, Any]]

_COMMON_OPTIONS: _Options = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Identity only: a few compressed bytes must not become gigabytes before any check of ours.
    ("grpc.compression_enabled_algorithms_bitset", 1),
]
_CHANNEL_OPTIONS: _Options = [
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
    # Also the time one attempt may take, hence not as short: a busy peer answers late.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    # A name gets another address where a pod is made anew; gRPC would ask for it each 30 s only.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.enable_retries", 0),  # who retries what is decided by the caller
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
_SERVER_OPTIONS: _Options = [
    *_COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),  # else a second server on the port starts without an error
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # Our own peers ping every 10 s, and were cut off ("too_many_pings") in spite of the line above,
    # so it takes a flood of pings without an answer in between.
    ("grpc.http2.max_ping_strikes", 1_000),
    # Streams that were reset count until we have seen them, so resetting them brings no more.
    ("grpc.max_concurrent_streams", _STREAMS_MAX),
    ("grpc.max_allowed_incoming_connections", _CONNECTIONS_MAX),
    # Beyond these gRPC ends calls as CANCELLED, which tells nobody that he may try again; what our
    # connections and their streams can bring is taken in instead, and refused by us.
    ("grpc.server.max_pending_requests", _STREAMS_MAX * _CONNECTIONS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", _STREAMS_MAX * _CONNECTIONS_MAX),
    ("grpc.server_handshake_timeout_ms", _HELLO_WITHIN_MS),
    ("grpc.http2.settings_timeout", _HELLO_WITHIN_MS),
    ("grpc.max_connection_idle_ms", _IDLE_MS_MAX),
]


# --- server -------------------------------------------------------------------------------------


class _GrpcHandlers:
    """Handlers that gRPC calls for each method; bodies are not (de)serialized.

    Each is registered by its name, so that its calls have a line of their own in gRPC: what floods
    one method, or calls what is not there, holds up no other.
    """

    def __init__(
        self, handlers: Handlers, calls_max: int, parked_max: int, answers_bytes_max: int
    ) -> None:
        self._methods: dict[str, Any] = {}
        self._slots = Slots(calls_max, parked_max)
        self._stream_slots = Slots(calls_max, parked_max)
        self._answers_bytes_max = answers_bytes_max
        self._unsent_bytes: Counter[str] = Counter()
        """Unsent bytes of answers by method, so that unread fetches never block a fence."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Handlers that run."""
        self.streams: set[asyncio.Task[Any]] = set()
        """gRPC's own tasks of streams; a loop that ends before they do reports them."""
        for name, unary in all_unary(handlers).items():
            is_fair = bound_of(name).is_for_clients and name not in handlers.direct
            each = self._in_turn(name, unary) if is_fair else unary
            self._methods[name] = grpc.unary_unary_rpc_method_handler(self._unary(name, each))
        for name, stream in handlers.streams.items():
            self._methods[name] = grpc.stream_stream_rpc_method_handler(self._stream(name, stream))

    def add_to(self, server: Any) -> None:
        """Register them with a server that has not started."""
        services: dict[str, dict[str, Any]] = {}
        for method, handler in self._methods.items():
            _, service, name = method.split("/")
            services.setdefault(service, {})[name] = handler
        for service, handlers in services.items():
            server.add_registered_method_handlers(service, handlers)

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(mark_retrieved)
        return task

    def _unary(self, method: str, handler: UnaryHandler) -> Any:
        is_read = bound_of(method).is_read

        async def run(body: bytes, context: Any) -> bytes:
            host = host_of(context.peer())
            if (busy := self._slots.why_not(method, host)) is not None:
                await _abort(context, busy)
            if (slow := self._why_slow(method)) is not None:
                await _abort(context, slow)
            slot = self._slots.take(method, host)
            task = self._start(handler(body, _call_context(context, slot)))  # type: ignore[arg-type]
            task.add_done_callback(slot.end)
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:  # the caller has given up
                if is_read:
                    task.cancel()
                raise
            if (error := _failure(method, task)) is not None:
                await _abort(context, error)
            if is_read and (slow := self._why_slow(method)) is not None:
                await _abort(context, slow)
            return self._sent_later(method, join(task.result()), context)

        return run

    def _why_slow(self, method: str) -> IcecoreError | None:
        return unread(self._unsent_bytes[method], self._answers_bytes_max)

    def _in_turn(self, method: str, handler: UnaryHandler) -> UnaryHandler:
        async def run(body: Received, context: CallContext) -> Body:
            await context.slot.turn()
            if (slow := self._why_slow(method)) is not None:  # it may have waited for long
                raise slow
            return await handler(body, context)

        return run

    def _sent_later(self, method: str, answer: bytes, context: Any) -> bytes:
        """Count an answer until gRPC has got rid of it: slow readers must not fill our memory."""
        length = len(answer)
        self._unsent_bytes[method] += length

        def sent(_: Any) -> None:
            self._unsent_bytes[method] -= length

        context.add_done_callback(sent)
        return answer

    def _stream(self, method: str, handler: StreamHandler) -> Any:
        async def run(_: Any, context: Any) -> None:
            own = asyncio.current_task()
            assert own is not None
            self.streams.add(own)
            own.add_done_callback(self.streams.discard)
            host = host_of(context.peer())
            if (busy := self._stream_slots.why_not(method, host)) is not None:
                await _abort(context, busy)
            slot = self._stream_slots.take(method, host)
            stream = GrpcServerStream(context)
            task = self._start(handler(stream, _call_context(context, slot)))  # type: ignore[arg-type]
            task.add_done_callback(slot.end)
            try:
                await asyncio.wait({task})
                await stream.finish()
            except asyncio.CancelledError:
                stream.broken.set_result(None)
                await asyncio.wait({task}, timeout=_BREAK_GRACE_S)
                task.cancel()
                raise
            if (error := _failure(method, task)) is not None:
                await _abort(context, error)

        return run


def _call_context(context: Any, slot: CallSlot) -> CallContext:
    return CallContext(context.peer(), "anonymous", context.time_remaining(), slot)


def _failure(method: str, task: "asyncio.Task[Any]") -> IcecoreError | None:
    if task.cancelled():
        return UnavailableError("the server is stopping")
    error = task.exception()
    return failure_of(method, error) if error is not None else None


async def _abort(context: Any, error: IcecoreError) -> None:
    code, details = status_of(error)
    message = error.message[:MESSAGE_CHARACTERS_MAX]
    await context.abort(code, message, ((DETAILS_KEY, details),))


class _GrpcServer:
    """See ``icecore.rpc.ports.Server``."""

    def __init__(self, server: Any, handlers: _GrpcHandlers, address: str, health: Any) -> None:
        self._server = server
        self._handlers = handlers
        self._address = address
        self._health = health

    @property
    def address(self) -> str:
        return self._address

    async def stop(self, grace_s: float) -> None:
        await self._health.stop()
        await self._server.stop(grace_s)
        for task in self._handlers.tasks:
            task.cancel()
        remaining = self._handlers.tasks | self._handlers.streams
        if remaining:
            await asyncio.wait(remaining)
        await asyncio.sleep(0)


_first_pid = 0
"""The process that opened the first channel: gRPC's threads live there, and in no fork of it."""


def is_forked() -> bool:
    """Return whether this process is a fork of one that had connections: here they would hang for
    ever."""
    return _first_pid not in (0, os.getpid())


def _check_fork() -> None:
    if is_forked():
        raise ForkedError(
            "this process is a fork of one that used icecore: make clients after the fork only, or "
            "begin processes with multiprocessing's start method spawn"
        )


# --- the port itself ----------------------------------------------------------------------------


class GrpcNet:
    """See ``icecore.rpc.ports.Net``. One channel per address, opened at the first call.

    Args:
        insecure_bind: Allow ``serve`` on addresses that other machines reach, without TLS.
        calls_max: Calls of each service that a server runs at a time, half of them for one host;
            more are refused with ThrottledError.
        parked_max: Of them, those that only wait; they are not among ``calls_max``.
        answers_bytes_max: Answers that clients have not read yet; with more of them waiting, new
            calls are refused with ThrottledError.
    """

    def __init__(
        self,
        *,
        insecure_bind: bool = False,
        calls_max: int = 4096,
        parked_max: int = 8192,
        answers_bytes_max: int = 64 << 20,
    ) -> None:
        self._insecure_bind = insecure_bind
        self._calls_max = calls_max
        self._parked_max = parked_max
        self._answers_bytes_max = answers_bytes_max
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._methods: dict[tuple[str, str], Any] = {}
        self._started: set[asyncio.Task[None]] = set()
        self._closed = False

    def _channel(self, address: str) -> grpc.aio.Channel:
        global _first_pid
        if self._closed:
            raise UnavailableError("the network is closed")
        _first_pid = _first_pid or os.getpid()
        _check_fork()
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel

    async def call(self, address: str, method: str, body: Body, *, timeout_s: float) -> bytes:
        _check_fork()
        unary = self._methods.get((address, method))
        if unary is None or self._closed:
            unary = self._channel(address).unary_unary(method)
            self._methods[address, method] = unary
        if timeout_s <= 0:
            raise RequestTimeoutError(f"no time left to call {method}")
        try:
            return await unary(join(body), timeout=timeout_s)  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except asyncio.CancelledError as error:
            if not self._closed or is_cancelling():
                raise
            raise UnavailableError("the network is closed") from error

    def start_call(
        self, address: str, method: str, body: Body, *, timeout_s: float, done: Done
    ) -> Callable[[], object]:
        call = self.call(address, method, body, timeout_s=timeout_s)
        return start_in_task(call, done, self._started)

    def keeps_order(self, address: str) -> bool:
        """As the port says: calls overtake each other on one HTTP/2 connection."""
        return False

    def open_stream(self, address: str, method: str) -> GrpcClientStream:
        call: Any = self._channel(address).stream_stream(method)()
        return GrpcClientStream(call)

    async def refuses(self, address: str, *, within_s: float) -> bool:
        """As the port says."""
        return await refuses(address, within_s)

    async def serve(self, address: str, handlers: Handlers) -> _GrpcServer:
        host, port = check_listen(address, insecure_bind=self._insecure_bind)
        own = _GrpcHandlers(
            bounded(handlers), self._calls_max, self._parked_max, self._answers_bytes_max
        )
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        own.add_to(server)
        names = sorted(
            {method.split("/")[1] for method in (*all_unary(handlers), *handlers.streams)}
        )
        health = await add_standard_services(server, names, handlers.is_ready)
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError:
            bound = 0
        if not bound:
            raise ConfigurationError(why_not_bound(host, port))
        await server.start()
        health.begin()
        return _GrpcServer(server, own, f"{host}:{bound}", health)

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        if is_forked():
            return  # they are the parent's
        for channel in channels:
            await channel.close()
