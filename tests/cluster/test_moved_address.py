"""A server that moves to another address is found by its name within a lease, as in Kubernetes."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from icecore.errors import IcecoreError
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.methods import DATA
from icecore.rpc.ports import Body, CallContext, Handlers
from tests.support.ports import free_port_block

METHOD = DATA["Fetch"]
LEASE_S = 6.0


class NameServer:
    """Answers each question for an address with ``address``, which holds for no time at all."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                asked, peer = self._socket.recvfrom(4096)
            except OSError:
                return
            end = asked.index(b"\0", 12) + 5
            is_v4 = asked[end - 4 : end - 2] == b"\0\1"
            answer = struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(self.address)
            head = asked[:2] + struct.pack(">HHHHH", 0x8580, 1, int(is_v4), 0, 0)
            self._socket.sendto(head + asked[12:end] + (answer if is_v4 else b""), peer)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.close()


async def test_a_name_is_asked_for_again_when_its_server_is_gone(names: NameServer) -> None:
    async def say(body: Body, call: CallContext) -> bytes:
        return b"here"

    handlers = Handlers(unary={METHOD: say}, streams={})
    port = free_port_block(range(1))
    net = GrpcNet()
    called = f"dns://127.0.0.1:{names.port}/moving.test:{port}"
    first = await net.serve(f"127.0.0.1:{port}", handlers)
    try:
        assert await net.call(called, METHOD, b"", timeout_s=5) == b"here"
        await first.stop(grace_s=0)
        names.address = "127.0.0.2"
        second = await net.serve(f"127.0.0.2:{port}", handlers)
        async with asyncio.timeout(LEASE_S):
            while True:
                try:
                    assert await net.call(called, METHOD, b"", timeout_s=1) == b"here"
                    break
                except IcecoreError:
                    await asyncio.sleep(0.1)
        await second.stop(grace_s=0)
    finally:
        await net.close()
