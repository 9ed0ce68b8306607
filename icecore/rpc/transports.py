"""The network of every process: gRPC and the native transport behind one port, chosen by address.

``native://host:port`` goes over the native transport, plain ``host:port`` over gRPC, for servers as
for calls. gRPC is made when it is first needed, because importing it takes longer than all else.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from icecore.errors import UnavailableError
from icecore.rpc.addresses import NATIVE
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.tls import TransportSecurity
from icecore.rpc.ports import Body, ClientStream, Done, Handlers, Net, Received, Server

if TYPE_CHECKING:
    from icecore.rpc.grpc_net import GrpcNet


class Transports:
    """See ``icecore.rpc.ports.Net``. Addresses of servers are without the scheme, as bound.

    Args:
        insecure_bind: Allow ``serve`` on addresses that other machines reach, without TLS.
        security: TLS of the native transport; none if it is left out. gRPC has none.
    """

    def __init__(
        self, *, insecure_bind: bool = False, security: TransportSecurity | None = None
    ) -> None:
        self._insecure_bind = insecure_bind
        self._native = NativeNet(insecure_bind=insecure_bind, security=security)
        self._grpc: GrpcNet | None = None
        self._closed = False

    def call(
        self, address: str, method: str, body: Body, *, timeout_s: float
    ) -> Coroutine[Any, Any, Received]:
        """As the port says; no coroutine of its own, for this is done for every request."""
        net, bare = self._way_to(address)
        return net.call(bare, method, body, timeout_s=timeout_s)

    def start_call(
        self, address: str, method: str, body: Body, *, timeout_s: float, done: Done
    ) -> Callable[[], object]:
        """As the port says."""
        net, bare = self._way_to(address)
        return net.start_call(bare, method, body, timeout_s=timeout_s, done=done)

    def keeps_order(self, address: str) -> bool:
        """As the port says."""
        return address.startswith(NATIVE)

    def open_stream(self, address: str, method: str) -> ClientStream:
        """As the port says."""
        net, bare = self._way_to(address)
        return net.open_stream(bare, method)

    async def refuses(self, address: str, *, within_s: float) -> bool:
        """As the port says."""
        net, bare = self._way_to(address)
        return await net.refuses(bare, within_s=within_s)

    async def serve(self, address: str, handlers: Handlers) -> Server:
        """As the port says."""
        net, bare = self._way_to(address)
        return await net.serve(bare, handlers)

    async def close(self) -> None:
        """As the port says."""
        self._closed = True
        await self._native.close()
        if self._grpc is not None:
            await self._grpc.close()

    def _way_to(self, address: str) -> tuple[Net, str]:
        """The transport of an address, and the address as that transport knows it."""
        if address.startswith(NATIVE):
            return self._native, address.removeprefix(NATIVE)
        if self._grpc is None:
            if self._closed:
                raise UnavailableError("the network is closed")
            from icecore.rpc.grpc_net import GrpcNet

            self._grpc = GrpcNet(insecure_bind=self._insecure_bind)
        return self._grpc, address
