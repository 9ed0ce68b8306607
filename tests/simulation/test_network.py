"""Tests of the simulated network: answers, errors, deaths, cuts, back-pressure, order."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from icecore.errors import (
    ConfigurationError,
    NotLeaderError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.rpc.ports import CallContext, Handlers, ServerStream
from tests.simulation.loop import SimLoop
from tests.simulation.network import SimNet, SimNetwork
from tests.simulation.process import SimProcess

ADDRESS = "server:1"


class Pair:
    """A server process with a few handlers, and a client."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, random.Random(3))
        self.server = SimProcess("server", 1)
        self.client = SimProcess("client", 1)
        self.handled: list[bytes] = []
        self.net = SimNet(self.network, self.client)

    async def start(self) -> None:
        unary = {"/echo": self.echo, "/fail": self.fail, "/slow": self.slow}
        handlers = Handlers(unary=unary, streams={"/double": self.double, "/silent": self.silent})
        await SimNet(self.network, self.server).serve(ADDRESS, handlers)

    def kill_server(self) -> None:
        self.server.kill("test", self.loop.time())
        self.network.process_died(self.server)

    async def echo(self, body: bytes, context: CallContext) -> bytes:
        self.handled.append(body)
        assert context.peer == "client"
        return body

    async def fail(self, body: bytes, context: CallContext) -> bytes:
        raise NotLeaderError("elsewhere", leader_node_id=3)

    async def slow(self, body: bytes, context: CallContext) -> bytes:
        await asyncio.sleep(5)
        self.handled.append(body)
        return body

    async def double(self, stream: ServerStream, context: CallContext) -> None:
        while (body := await stream.read()) != b"end":
            assert body is not None
            await stream.write(body)
            await stream.write(body)

    async def silent(self, stream: ServerStream, context: CallContext) -> None:
        await asyncio.Event().wait()


def run(main: Callable[[Pair], Awaitable[None]]) -> None:
    loop = SimLoop(1)

    async def start() -> None:
        pair = Pair(loop)
        await pair.start()
        await main(pair)

    try:
        loop.run_until_complete(start())
        assert loop.failures == []
    finally:
        loop.close()


def test_call_and_errors_by_reason() -> None:
    async def main(pair: Pair) -> None:
        assert await pair.net.call(ADDRESS, "/echo", b"hi", timeout_s=1) == b"hi"
        assert 0.0002 < pair.loop.time() < 0.01
        with pytest.raises(NotLeaderError) as caught:
            await pair.net.call(ADDRESS, "/fail", b"", timeout_s=1)
        assert caught.value.metadata == {"leader_node_id": "3"}
        assert caught.value.message == "elsewhere"

    run(main)


def test_handler_runs_on_after_a_timeout() -> None:
    async def main(pair: Pair) -> None:
        with pytest.raises(RequestTimeoutError):
            await pair.net.call(ADDRESS, "/slow", b"x", timeout_s=1)
        await asyncio.sleep(10)
        assert pair.handled == [b"x"]

    run(main)


def test_nobody_listens_and_address_taken() -> None:
    async def main(pair: Pair) -> None:
        with pytest.raises(UnavailableError):
            await pair.net.call("nowhere:1", "/echo", b"", timeout_s=10)
        assert pair.loop.time() < 0.1
        with pytest.raises(ConfigurationError):
            await pair.net.serve(ADDRESS, Handlers({}, {}))
        assert (await pair.net.serve("client:0", Handlers({}, {}))).address != "client:0"

    run(main)


def test_death_of_the_server_breaks_calls_and_streams() -> None:
    async def main(pair: Pair) -> None:
        call = asyncio.create_task(pair.net.call(ADDRESS, "/slow", b"", timeout_s=60))
        stream = pair.net.open_stream(ADDRESS, "/silent")
        read = asyncio.create_task(stream.read())
        await asyncio.sleep(1)
        pair.kill_server()
        for task in (call, read):
            with pytest.raises(UnavailableError):
                await task
        assert pair.loop.time() < 1.1
        with pytest.raises(UnavailableError):
            await stream.write(b"x")

    run(main)


def test_stream_keeps_order_and_ends() -> None:
    async def main(pair: Pair) -> None:
        stream = pair.net.open_stream(ADDRESS, "/double")
        sent = [b"%d" % number for number in range(100)]
        for body in sent:
            await stream.write(body)
        received = [await stream.read() for _ in range(200)]
        assert received == [body for body in sent for _ in range(2)]
        await stream.write(b"end")
        assert await stream.read() is None
        with pytest.raises(UnavailableError):
            await stream.write(b"more")

    run(main)


def test_writer_waits_for_a_slow_reader() -> None:
    async def main(pair: Pair) -> None:
        stream = pair.net.open_stream(ADDRESS, "/silent")
        written = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                while True:
                    await stream.write(bytes(50_000))
                    written += 1
        assert written == 5

    run(main)


def test_cancel_breaks_both_ends() -> None:
    async def main(pair: Pair) -> None:
        stream = pair.net.open_stream(ADDRESS, "/silent")
        read = asyncio.create_task(stream.read())
        await asyncio.sleep(1)
        stream.cancel()
        with pytest.raises(UnavailableError):
            await read

    run(main)


def test_cut_holds_messages_until_it_heals() -> None:
    async def main(pair: Pair) -> None:
        pair.network.cut("server", "client")
        call = asyncio.create_task(pair.net.call(ADDRESS, "/echo", b"hi", timeout_s=60))
        await asyncio.sleep(1)
        assert pair.handled == [b"hi"]
        assert not call.done()
        pair.network.heal("server", "client")
        assert await call == b"hi"

    run(main)


def test_cut_breaks_connections_after_a_while() -> None:
    async def main(pair: Pair) -> None:
        stream = pair.net.open_stream(ADDRESS, "/double")
        await stream.write(b"1")
        assert await stream.read() == b"1"
        pair.network.cut("client", "server")
        with pytest.raises(UnavailableError):
            while True:
                await stream.read()
        assert pair.loop.time() == pytest.approx(2, abs=0.1)
        with pytest.raises(UnavailableError):
            await pair.net.call(ADDRESS, "/echo", b"", timeout_s=60)

    run(main)


def test_request_or_reply_may_be_lost() -> None:
    async def main(pair: Pair) -> None:
        pair.network.faults.request_loss = 1.0
        with pytest.raises(UnavailableError):
            await pair.net.call(ADDRESS, "/echo", b"1", timeout_s=1)
        pair.network.faults.request_loss = 0.0
        pair.network.faults.reply_loss = 1.0
        with pytest.raises(UnavailableError):
            await pair.net.call(ADDRESS, "/echo", b"2", timeout_s=1)
        assert pair.handled == [b"2"]

    run(main)


def test_clog_delays_everything() -> None:
    async def main(pair: Pair) -> None:
        pair.network.clog("client", "server", 0.8)
        assert await pair.net.call(ADDRESS, "/echo", b"1", timeout_s=5) == b"1"
        assert pair.loop.time() > 0.8

    run(main)


def test_paused_server_answers_when_it_wakes() -> None:
    async def main(pair: Pair) -> None:
        pair.server.paused = True
        call = asyncio.create_task(pair.net.call(ADDRESS, "/echo", b"1", timeout_s=60))
        await asyncio.sleep(10)
        assert not call.done()
        pair.loop.resume(pair.server)
        assert await call == b"1"

    run(main)
