"""A coordinator that stands by: it refuses all calls, and names the one that acts."""

import asyncio
from collections.abc import Callable

from icecore.errors import NotCoordinatorError
from icecore.rpc.addresses import native
from icecore.rpc.methods import ADMIN, COORDINATOR, MIRROR
from icecore.rpc.ports import CallContext, Handlers, Net, Received, Server, ServerStream


class StandbyCoordinator:
    """Stands in the place of a coordinator. ``start``, then ``stop``; it may be started again.

    Args:
        net: From everyone.
        active: Address of the one that acts; empty = nobody knows one.
        trouble: Why etcd does not answer; empty = it does.
    """

    def __init__(self, net: Net, active: Callable[[], str], trouble: Callable[[], str]) -> None:
        self._net, self._active, self._trouble = net, active, trouble
        self._servers: list[Server] = []

    @property
    def address(self) -> str:
        """``host:port`` of gRPC, really bound; empty before ``start``."""
        return self._servers[0].address if self._servers else ""

    async def start(self, listen: str, native_listen: str = "") -> None:
        """Serve. Raises ConfigurationError when an address can't be bound."""
        refused = dict.fromkeys((*COORDINATOR, *ADMIN, *MIRROR), self._refuse)
        heartbeat = COORDINATOR["Heartbeat"]
        del refused[heartbeat]
        handlers = Handlers(refused, {heartbeat: self._refuse_stream})
        for address in (listen, *([native(native_listen)] if native_listen else [])):
            self._servers.append(await self._net.serve(address, handlers))

    async def stop(self) -> None:
        """Stop serving. Idempotent."""
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(grace_s=0.0) for server in servers))

    def _refusal(self) -> NotCoordinatorError:
        if trouble := self._trouble():
            return NotCoordinatorError(
                f"this coordinator stands by, and no coordinator can act: {trouble}"
            )
        if address := self._active():
            return NotCoordinatorError(
                f"this coordinator stands by: ask the one at {address}", address=address
            )
        return NotCoordinatorError("this coordinator stands by, and none acts yet: ask again")

    async def _refuse(self, _: Received, __: CallContext) -> bytes:
        raise self._refusal()

    async def _refuse_stream(self, _: ServerStream, __: CallContext) -> None:
        raise self._refusal()
