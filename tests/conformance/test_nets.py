"""The implementations of the network port: gRPC, native, the simulator's."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import uvloop

from icecore.errors import ThrottledError
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.methods import DATA
from icecore.rpc.native.connection import Timeouts
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.server import ServerLimits
from icecore.rpc.ports import CallContext, Handlers, Net, Received, Server
from tests.conformance.net_bulk_suite import BulkSuite
from tests.conformance.net_stream_suite import StreamSuite
from tests.conformance.net_suite import Fake, NetSuite, in_world
from tests.conformance.net_world import World, run_really
from tests.simulation.loop import SimLoop
from tests.simulation.network import SimNet, SimNetwork
from tests.simulation.process import SimProcess
from tests.support.certificates import CLIENT_NAME, security
from tests.support.waiting import until

IMPATIENT = Timeouts(check_every_s=0.05, ping_after_s=0.2, pong_within_s=1.0)
"""Twenty turns of the loop: megabytes of a stream are read before the pong behind them."""
STALL_S = 1.6
"""Longer than a silent peer of theirs is kept."""
GRPC_STALL_S = 1.0
"""Its keep-alive takes 13 s, which is too long for a test; its own threads answer pings anyway."""


class TestGrpcNet(NetSuite, BulkSuite, StreamSuite):
    """icecore.rpc.grpc_net."""

    last_answer_bytes = 1000
    """It breaks the connection now and then under a large answer, although there is time."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        run_really(GrpcNet, main, GRPC_STALL_S)


class TestNativeNet(NetSuite, BulkSuite, StreamSuite):
    """icecore.rpc.native."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        run_really(lambda: NativeNet(timeouts=IMPATIENT), main, STALL_S)


class TestNativeNetOnUvloop(NetSuite, BulkSuite, StreamSuite):
    """icecore.rpc.native on the event loop of servers."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        make_net = partial(NativeNet, timeouts=IMPATIENT)
        run_really(make_net, main, STALL_S, uvloop.new_event_loop)


class TestNativeNetWithTls(NetSuite, BulkSuite, StreamSuite):
    """icecore.rpc.native, both sides with certificates."""

    principal = CLIENT_NAME

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        run_really(lambda: NativeNet(timeouts=IMPATIENT, security=security()), main, STALL_S)


class ThrottledSuite:
    """Suite for servers with few resources. Inherit and define ``run``, whose server runs one
    call."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        raise NotImplementedError

    @in_world
    async def test_too_many_calls_are_throttled(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        first = asyncio.ensure_future(world.client.call(address, "/t.T/wait", b"", timeout_s=5))
        await until(lambda: fake.started == 1)
        for body in (b"", bytes(1 << 20)):
            with pytest.raises(ThrottledError) as caught:
                await world.client.call(address, "/t.T/echo", body, timeout_s=5)
            assert caught.value.metadata["retry_after_ms"] == "50"
        fake.go.set()
        await first
        assert await world.client.call(address, "/t.T/echo", b"1", timeout_s=5) == b"1"


class TestGrpcThrottled(ThrottledSuite):
    """icecore.rpc.grpc_net."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        run_really(lambda: GrpcNet(calls_max=1), main, GRPC_STALL_S)


class TestNativeThrottled(ThrottledSuite):
    """icecore.rpc.native."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        run_really(lambda: NativeNet(limits=ServerLimits(calls_max=1)), main, STALL_S)


class SimWorld(World):
    """Processes of the simulator; time is virtual."""

    unreachable = "nowhere:1"
    stall_s = 60.0

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._network = SimNetwork(loop, random.Random(3))
        self._network.message_bytes_max = 64 << 20
        self._servers = 0
        self.client: Net = SimNet(self._network, SimProcess("client", 1))

    async def serve(self, handlers: Handlers, address: str | None = None) -> Server:
        server, _ = await self._serve(handlers, address)
        return server

    async def serve_mortal(self, handlers: Handlers) -> tuple[str, Callable[[], None]]:
        server, process = await self._serve(handlers, None)

        def kill() -> None:
            process.kill("test", self._loop.time())
            self._network.process_died(process)

        return server.address, kill

    async def _serve(self, handlers: Handlers, address: str | None) -> tuple[Server, SimProcess]:
        self._servers += 1
        host = address.rpartition(":")[0] if address else f"server-{self._servers}"
        process = SimProcess(host, self._servers)
        server = await SimNet(self._network, process).serve(address or f"{host}:0", handlers)
        return server, process

    def failures(self) -> str:
        failures, self._loop.failures = self._loop.failures, []
        return "\n".join(failures)


class TestSimNet(NetSuite, BulkSuite, StreamSuite):
    """tests.simulation.network."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        loop = SimLoop(1)

        async def start() -> None:
            await main(SimWorld(loop))

        try:
            loop.run_until_complete(start())
            assert loop.failures == []
        finally:
            loop.close()


LARGE, LARGE_MAX = 2 << 20, 4 << 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: GrpcNet(answers_bytes_max=LARGE_MAX),
        lambda: NativeNet(limits=ServerLimits(answers_bytes_max=LARGE_MAX)),
    ],
    ids=["gRPC", "native"],
)
async def test_answers_that_are_made_side_by_side_keep_to_the_limit(
    make: Callable[[], Net],
) -> None:
    """All calls begin while nothing is unread: each answer by itself would pass."""
    go, started = asyncio.Event(), list[int]()

    async def fetch(_: Received, __: CallContext) -> bytes:
        started.append(1)
        await go.wait()
        return bytes(LARGE)

    net, client = make(), make()
    server = await net.serve("127.0.0.1:0", Handlers({DATA["Fetch"]: fetch}, {}))
    calls = [
        asyncio.ensure_future(client.call(server.address, DATA["Fetch"], b"", timeout_s=10))
        for _ in range(16)
    ]
    await until(lambda: len(started) == len(calls))
    go.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    answered = [each for each in outcomes if not isinstance(each, BaseException)]
    refused = [each for each in outcomes if isinstance(each, ThrottledError)]
    assert len(answered) + len(refused) == len(calls)
    assert 2 <= len(answered) <= 6, "some are taken by their caller at once"
    go.set()
    assert len(await client.call(server.address, DATA["Fetch"], b"", timeout_s=10)) == LARGE
    await client.close()
    await server.stop(0)
    await net.close()
