"""Suite for every ``Net``: streams go both ways, in order, with flow control, and they end."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from icecore.errors import IcecoreError, NotLeaderError, UnavailableError, UnsupportedError
from icecore.rpc.ports import Body, CallContext, Handlers, ServerStream, join
from tests.conformance.net_suite import in_world, noise
from tests.conformance.net_world import World
from tests.support.waiting import until

MIB = 1 << 20
BULK_MESSAGES = 96
"""Number of messages of 1 MiB: more than any transport holds for a reader that stalls."""


def _kernel_bytes_max() -> int:
    """Most bytes that the kernel holds of one connection: its buffers grow on busy machines."""
    folder = Path("/proc/sys/net/ipv4")
    names = [folder / each for each in ("tcp_rmem", "tcp_wmem") if (folder / each).exists()]
    return sum(int(each.read_text().split()[2]) for each in names)


HELD_BYTES_MAX = max(48 * MIB, _kernel_bytes_max() + 24 * MIB)
"""The transport holds at most 24 MiB; the kernel holds 36 on some machines."""


class Streams:
    """Handlers of streams, and what they saw."""

    def __init__(self) -> None:
        self.ends: list[object] = []
        """How the reads of ``echo`` ended: None or an error."""
        self.running = 0
        self.go = asyncio.Event()
        self.read = 0
        self.written = 0

    async def echo(self, stream: ServerStream, context: CallContext) -> None:
        self.running += 1
        try:
            while (body := await stream.read()) is not None:
                if body == b"end":
                    return
                if body == b"fail":
                    raise NotLeaderError("moved", leader_node_id=3)
                await stream.write(body)
            self.ends.append(None)
        except IcecoreError as error:
            self.ends.append(error)
            raise
        finally:
            self.running -= 1

    async def crash(self, stream: ServerStream, context: CallContext) -> None:
        await stream.write(b"first")
        raise ValueError("a secret")

    async def sink(self, stream: ServerStream, context: CallContext) -> None:
        """Reads nothing until the test lets it, then everything."""
        await self.go.wait()
        while (body := await stream.read()) not in (None, b"end"):
            assert body == bulk(self.read)
            self.read += 1
        await stream.write(b"%d" % self.read)

    async def source(self, stream: ServerStream, context: CallContext) -> None:
        """Writes as much as it may, and ends."""
        for number in range(BULK_MESSAGES):
            await stream.write([bulk(number)[:100], memoryview(bulk(number))[100:]])
            self.written += 1

    async def silent(self, stream: ServerStream, context: CallContext) -> None:
        self.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.running -= 1

    @property
    def handlers(self) -> Handlers:
        streams = (self.echo, self.crash, self.sink, self.source, self.silent)
        return Handlers({}, {f"/t.T/{each.__name__}": each for each in streams})


def bulk(number: int) -> bytes:
    """One message of 1 MiB."""
    return number.to_bytes(4) * (MIB // 4)


async def standstill(count: Callable[[], int], world: World) -> int:
    """Wait until a writer waits; how far it came."""
    before = -1
    while (now := count()) != before:
        before = now
        await asyncio.sleep(world.quiet_s)
    return now


class StreamSuite:
    """Inherit and define ``run``."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        raise NotImplementedError

    @in_world
    async def test_both_ways(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        bodies: tuple[Body, ...] = (b"", b"a", noise(2 * MIB), [b"b", b"", noise(20_000)], [])
        for body in bodies:
            await stream.write(body)
            received = await stream.read()
            assert received is not None and received == join(body)
        await stream.write(b"end")
        assert await stream.read() is None
        assert await stream.read() is None
        with pytest.raises(UnavailableError):
            await stream.write(b"late")

    @in_world
    async def test_order(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        bodies = [noise(number * 37 % 20_000) for number in range(500)]

        async def write() -> None:
            for body in bodies:
                await stream.write(body)

        writing = asyncio.ensure_future(write())
        assert [await stream.read() for _ in bodies] == bodies
        await writing
        await stream.write(b"end")
        assert await stream.read() is None

    @in_world
    async def test_what_was_written_before_the_end_arrives(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        for body in (b"1", b"2", b"end"):
            await stream.write(body)
        assert [await stream.read() for _ in range(3)] == [b"1", b"2", None]

    @in_world
    async def test_an_error_comes_after_the_messages(self, world: World) -> None:
        streams = Streams()
        address = (await world.serve(streams.handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        await stream.write(b"1")
        await stream.write(b"fail")
        assert await stream.read() == b"1"
        for _ in range(2):
            with pytest.raises(NotLeaderError) as caught:
                await stream.read()
            assert caught.value.metadata == {"leader_node_id": "3"}
        with pytest.raises(IcecoreError):
            await stream.write(b"late")
        await until(lambda: streams.running == 0)

    @in_world
    async def test_unexpected_failures_show_no_internals(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/crash")
        assert await stream.read() == b"first"
        with pytest.raises(IcecoreError) as caught:
            await stream.read()
        assert "secret" not in str(caught.value)
        assert "a secret" in world.failures()

    @in_world
    async def test_an_unknown_stream(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/unheard_of")
        with pytest.raises(UnsupportedError):
            await stream.read()
        with pytest.raises(IcecoreError):
            await stream.write(b"x")

    @in_world
    async def test_a_timed_out_read_does_not_break_the_stream(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await stream.read()
            await stream.write(b"x")
            assert await stream.read() == b"x"
        stream.cancel()

    @in_world
    async def test_cancel_breaks_both_ends(self, world: World) -> None:
        streams = Streams()
        address = (await world.serve(streams.handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        await stream.write(b"x")
        await stream.read()
        waiting = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0.01)
        stream.cancel()
        stream.cancel()
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await stream.read()
        with pytest.raises(UnavailableError):
            await stream.write(b"")
        await until(lambda: streams.running == 0)
        assert isinstance(streams.ends[0], UnavailableError)

    @in_world
    async def test_a_stream_cancelled_before_it_is_open(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        stream.cancel()
        with pytest.raises(UnavailableError):
            await stream.read()

    @in_world
    async def test_a_server_that_stops(self, world: World) -> None:
        streams = Streams()
        server = await world.serve(streams.handlers)
        echo = world.client.open_stream(server.address, "/t.T/echo")
        await echo.write(b"x")
        assert await echo.read() == b"x"
        silent = world.client.open_stream(server.address, "/t.T/silent")
        await silent.write(b"x")
        await until(lambda: streams.running == 2)
        await server.stop(0)
        assert streams.running == 0
        for stream in (echo, silent):
            with pytest.raises(UnavailableError):
                await stream.read()

    @in_world
    async def test_a_peer_that_dies(self, world: World) -> None:
        streams = Streams()
        address, break_all = await world.serve_mortal(streams.handlers)
        stream = world.client.open_stream(address, "/t.T/echo")
        await stream.write(b"x")
        assert await stream.read() == b"x"
        break_all()
        with pytest.raises(UnavailableError):
            await stream.read()
        with pytest.raises(UnavailableError):
            await stream.write(b"x")

    @in_world
    async def test_nobody_listens(self, world: World) -> None:
        stream = world.client.open_stream(world.unreachable, "/t.T/echo")
        with pytest.raises(UnavailableError):
            await stream.read()
        with pytest.raises(UnavailableError):
            await stream.write(b"x")

    @in_world
    async def test_a_net_that_is_closed(self, world: World) -> None:
        address = (await world.serve(Streams().handlers)).address
        stream = world.client.open_stream(address, "/t.T/echo")
        await stream.write(b"x")
        assert await stream.read() == b"x"
        await world.client.close()
        with pytest.raises(UnavailableError):
            await stream.read()
        with pytest.raises(UnavailableError):
            await world.client.open_stream(address, "/t.T/echo").read()

    # --- flow control ---------------------------------------------------------------------------

    @in_world
    async def test_a_client_waits_for_a_server_that_stalls(self, world: World) -> None:
        """For longer than the keep-alive, and then it reads everything."""
        streams = Streams()
        address = (await world.serve(streams.handlers)).address
        stream = world.client.open_stream(address, "/t.T/sink")
        written = 0

        async def write() -> None:
            nonlocal written
            for number in range(BULK_MESSAGES):
                await stream.write(bulk(number))
                written += 1
            await stream.write(b"end")

        writing = asyncio.ensure_future(write())
        assert await standstill(lambda: written, world) * MIB < HELD_BYTES_MAX
        await asyncio.sleep(world.stall_s)
        assert written * MIB < HELD_BYTES_MAX and not writing.done()
        streams.go.set()
        assert await stream.read() == b"%d" % BULK_MESSAGES
        await writing
        assert await stream.read() is None

    @in_world
    async def test_a_server_waits_for_a_client_that_stalls(self, world: World) -> None:
        """The client reads all that was written, although the handler has returned long ago."""
        streams = Streams()
        address = (await world.serve(streams.handlers)).address
        stream = world.client.open_stream(address, "/t.T/source")
        assert await stream.read() == bulk(0)
        assert await standstill(lambda: streams.written, world) * MIB < HELD_BYTES_MAX
        await asyncio.sleep(world.stall_s)
        assert streams.written * MIB < HELD_BYTES_MAX
        number = 1
        # On a busy machine the client may have read the last one before the writer counts it.
        while streams.written < BULK_MESSAGES and number < BULK_MESSAGES:
            assert await stream.read() == bulk(number)
            number += 1
        await asyncio.sleep(world.stall_s)
        for rest in range(number, BULK_MESSAGES):
            assert await stream.read() == bulk(rest)
        assert await stream.read() is None

    @in_world
    async def test_a_stream_that_stalls_holds_up_no_other(self, world: World) -> None:
        streams = Streams()
        address = (await world.serve(streams.handlers)).address
        stalled = world.client.open_stream(address, "/t.T/source")
        assert await stalled.read() == bulk(0)
        await standstill(lambda: streams.written, world)
        other = world.client.open_stream(address, "/t.T/echo")
        for _ in range(3):
            await other.write(b"x")
            assert await other.read() == b"x"
        stalled.cancel()
        other.cancel()
