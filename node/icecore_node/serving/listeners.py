"""The servers of a node: gRPC for all clients, and the native transport for Python processes.

Both serve the same handlers; calls are counted by the transport that they came over.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from icecore.rpc.addresses import native
from icecore.rpc.ports import (
    Admitted,
    Body,
    CallContext,
    DirectHandler,
    Handlers,
    Server,
)
from icecore_node.context import NodeContext

_A = TypeVar("_A")
_R = TypeVar("_R")


class Listeners:
    """The servers of one node; ``start`` once."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._servers: list[Server] = []
        self.address = ""
        """``host:port`` of gRPC that others connect to."""
        self.native_address = ""
        """``host:port`` of the native transport; empty when there is none."""

    async def start(self, handlers: Handlers) -> None:
        """Listen. Raises ConfigurationError when a port is taken."""
        settings = self._context.settings
        bound = await self._serve("grpc", settings.listen, handlers)
        self.address = settings.advertise or bound
        if settings.native_bind:
            bound = await self._serve("native", native(settings.native_bind), handlers)
            self.native_address = settings.native_reached(bound)

    async def _serve(self, transport: str, address: str, handlers: Handlers) -> str:
        counter = self._context.metrics.calls[transport]
        counted = replace(
            handlers,
            unary=_counted(handlers.unary, counter.inc),
            streams=_counted(handlers.streams, counter.inc),
            direct=_counted_direct(handlers.direct, counter.inc),
        )
        server = await self._context.net.serve(address, counted)
        self._servers.append(server)
        return server.address

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones finish for ``grace_s`` seconds, then cancel them."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))


def _counted(
    handlers: Mapping[str, Callable[[_A, CallContext], _R]], count: Callable[[], None]
) -> dict[str, Callable[[_A, CallContext], _R]]:
    def one(handler: Callable[[_A, CallContext], _R]) -> Callable[[_A, CallContext], _R]:
        def run(given: _A, call: CallContext) -> _R:
            count()
            return handler(given, call)

        return run

    return {name: one(handler) for name, handler in handlers.items()}


def _counted_direct(
    handlers: Mapping[str, DirectHandler], count: Callable[[], None]
) -> dict[str, DirectHandler]:
    def one(handler: DirectHandler) -> DirectHandler:
        def admit(header: bytes, body_bytes: int, call: CallContext) -> Admitted | Body:
            count()
            return handler.admit(header, body_bytes, call)

        return replace(handler, admit=admit)

    return {name: one(handler) for name, handler in handlers.items()}
