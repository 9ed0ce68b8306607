"""Suite for every ``Net``: calls over gRPC, the native transport, and the simulator's network.

Subclasses say how a test is run. ``net_stream_suite.py`` has the streams.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from icecore import errors
from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    InternalError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
    UnsupportedError,
)
from icecore.rpc.ports import Body, CallContext, Handlers, Received, join
from tests.conformance.net_world import World
from tests.support.waiting import until

MESSAGE_BYTES_MAX = 64 << 20
Test = Callable[[Any, World], Awaitable[None]]


def in_world(test: Test) -> Callable[[Any], None]:
    """A test that is run by its class in a world of its own."""

    def run(self: Any) -> None:
        self.run(lambda world: test(self, world))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def noise(size_bytes: int) -> bytes:
    """Bytes that tell when some of them are missing or moved."""
    return random.Random(size_bytes).randbytes(size_bytes)


def leaf_errors(cls: type[IcecoreError] = IcecoreError) -> list[type[IcecoreError]]:
    """All errors of the public interface."""
    found = [child for sub in cls.__subclasses__() for child in (sub, *leaf_errors(sub))]
    return [each for each in found if each.__module__ == IcecoreError.__module__]


class Fake:
    """Handlers under test, and what they saw."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.received: list[Received] = []
        self.started = 0
        self.finished = 0
        self.cancelled = 0
        self.go = asyncio.Event()
        self.gates: dict[bytes, asyncio.Event] = {}

    async def echo(self, body: Received, context: CallContext) -> Body:
        self.contexts.append(context)
        self.received.append(body)
        return body

    async def pieces(self, body: Received, context: CallContext) -> Body:
        """The body again, as a list of buffers of several kinds."""
        half = len(body) // 2
        return [b"", bytearray(body[:half]), memoryview(body)[half:], b""]

    async def nothing(self, body: Received, context: CallContext) -> Body:
        return []

    async def huge(self, body: Received, context: CallContext) -> Body:
        return [bytes(MESSAGE_BYTES_MAX), b"1"]

    async def fail(self, body: Received, context: CallContext) -> Body:
        reason = bytes(body).decode()
        raise errors.error_from_reason(reason, "why ü\n" * 1000, {"leader_node_id": "2"})

    async def crash(self, body: Received, context: CallContext) -> Body:
        raise ValueError("a secret")

    async def wait(self, body: Received, context: CallContext) -> Body:
        """Answers when the test lets it."""
        self.started += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished += 1
        return body

    async def gate(self, body: Received, context: CallContext) -> Body:
        """Answers when the gate of its own is opened."""
        opened = self.gates[bytes(body)] = asyncio.Event()
        await opened.wait()
        return body

    @property
    def handlers(self) -> Handlers:
        unary = (self.echo, self.pieces, self.nothing, self.huge, self.fail, self.crash)
        waiting = (self.wait, self.gate)
        return Handlers({f"/t.T/{each.__name__}": each for each in (*unary, *waiting)}, {})


class NetSuite:
    """Inherit and define ``run``."""

    last_answer_bytes = 24 << 20
    """Size of the last answer of a server that stops with grace: more than kernels hold for a
    reader."""

    principal = "anonymous"
    """The caller's name, as servers know it."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        raise NotImplementedError

    # --- bodies ---------------------------------------------------------------------------------

    @in_world
    async def test_bodies_of_any_length(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        borders = range((16 << 10) - 64, (16 << 10) + 2)  # of the buffer that small frames share
        for size_bytes in (0, 1, 4095, 4096, 4097, *borders, 5 << 20):
            body = noise(size_bytes)
            for method in ("/t.T/echo", "/t.T/pieces"):
                answer = await world.client.call(address, method, body, timeout_s=10)
                assert answer == body
                assert isinstance(answer, bytes) or answer.readonly
        context = fake.contexts[0]
        assert context.principal == self.principal and context.peer
        assert context.timeout_s is not None
        assert 0 < context.timeout_s < 10.1  # gRPC's clock is another one

    @in_world
    async def test_bodies_of_many_buffers(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        tiny = [noise(number % 7) for number in range(2_000)]
        large = noise(3 << 20)
        bodies: Sequence[Body] = (
            [],
            [b""],
            [b"", b"a", b"", b"", memoryview(b"bc"), b"", bytearray(b"d"), b""],
            (b"in", b"a tuple"),
            bytearray(b"bare"),
            memoryview(large)[1 << 20 :],
            tiny,
            [noise(30_000), *tiny, memoryview(large), b"", bytearray(noise(20_000)), *tiny],
        )
        for body in bodies:
            assert await world.client.call(address, "/t.T/echo", body, timeout_s=10) == join(body)
        assert await world.client.call(address, "/t.T/nothing", b"x", timeout_s=10) == b""

    @in_world
    async def test_what_was_received_stays(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        bodies = [noise(size_bytes) for size_bytes in (10, 20_000, 1 << 20, 11, 30_000)]
        answers = [
            await world.client.call(address, "/t.T/echo", body, timeout_s=10) for body in bodies
        ]
        assert answers == bodies
        assert fake.received == bodies

    @in_world
    async def test_a_message_that_is_too_large(self, world: World) -> None:
        address = (await world.serve(Fake().handlers)).address
        for body in (bytes(MESSAGE_BYTES_MAX + 1), [bytes(MESSAGE_BYTES_MAX), b"1"]):
            with pytest.raises(InvalidRequestError, match="larger than max"):
                await world.client.call(address, "/t.T/echo", body, timeout_s=10)
        with pytest.raises(InvalidRequestError, match="larger than max"):
            await world.client.call(address, "/t.T/huge", b"", timeout_s=10)
        world.failures()  # a transport may log this one or not
        assert await world.client.call(address, "/t.T/echo", b"x", timeout_s=5) == b"x"

    # --- errors ---------------------------------------------------------------------------------

    @in_world
    async def test_every_error_arrives_as_itself(self, world: World) -> None:
        address = (await world.serve(Fake().handlers)).address
        for cls in leaf_errors():
            with pytest.raises(cls) as caught:
                await world.client.call(address, "/t.T/fail", cls.reason.encode(), timeout_s=5)
            assert type(caught.value) is cls
            assert caught.value.message.startswith("why ü\nwhy")
            assert caught.value.metadata == {"leader_node_id": "2"}

    @in_world
    async def test_unexpected_failures_show_no_internals(self, world: World) -> None:
        address = (await world.serve(Fake().handlers)).address
        with pytest.raises(InternalError) as caught:
            await world.client.call(address, "/t.T/crash", b"", timeout_s=5)
        assert "secret" not in str(caught.value)
        assert "a secret" in world.failures()

    @in_world
    async def test_an_unknown_method(self, world: World) -> None:
        address = (await world.serve(Fake().handlers)).address
        for body in (b"", noise(1 << 20)):
            with pytest.raises(UnsupportedError):
                await world.client.call(address, "/t.T/unheard_of", body, timeout_s=5)
        assert await world.client.call(address, "/t.T/echo", b"x", timeout_s=5) == b"x"

    # --- deadlines and callers that give up -----------------------------------------------------

    @in_world
    async def test_an_answer_after_the_deadline_is_dropped(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        timeout_s = 0.1
        while not fake.started:  # on a busy machine the deadline may come before a request leaves
            with pytest.raises(RequestTimeoutError):
                await world.client.call(address, "/t.T/wait", b"late", timeout_s=timeout_s)
            timeout_s *= 2
        early = asyncio.ensure_future(world.client.call(address, "/t.T/echo", b"1", timeout_s=5))
        fake.go.set()
        await until(lambda: fake.finished == fake.started)
        assert await early == b"1"
        for number in range(5):
            body = b"%d" % number
            assert await world.client.call(address, "/t.T/echo", body, timeout_s=5) == body

    @in_world
    async def test_no_time_left(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        for timeout_s in (0, -1):
            with pytest.raises(RequestTimeoutError):
                await world.client.call(address, "/t.T/echo", b"", timeout_s=timeout_s)
        assert await world.client.call(address, "/t.T/echo", b"x", timeout_s=5) == b"x"
        assert fake.received == [b"x"]

    @in_world
    async def test_a_handler_runs_on_when_its_caller_is_cancelled(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        call = asyncio.ensure_future(world.client.call(address, "/t.T/wait", b"", timeout_s=30))
        await until(lambda: fake.started == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await world.client.call(address, "/t.T/echo", b"x", timeout_s=5) == b"x"
        fake.go.set()
        await until(lambda: fake.finished == 1)
        assert fake.cancelled == 0

    @in_world
    async def test_answers_come_in_any_order(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        bodies = [b"%d" % number * (1 + number * 20) for number in range(200)]
        calls = [
            asyncio.ensure_future(world.client.call(address, "/t.T/gate", body, timeout_s=30))
            for body in bodies
        ]
        await until(lambda: len(fake.gates) == len(bodies))
        shuffled = random.Random(5).sample(bodies, len(bodies))
        for body in shuffled[:50]:  # one after the other, then all that are left together
            fake.gates[body].set()
            assert await calls[bodies.index(body)] == body
        for body in shuffled[50:]:
            fake.gates[body].set()
        assert await asyncio.gather(*calls) == bodies

    # --- servers that go and come ---------------------------------------------------------------

    @in_world
    async def test_a_server_that_stops_at_once(self, world: World) -> None:
        fake = Fake()
        server = await world.serve(fake.handlers)
        calls = [
            asyncio.ensure_future(world.client.call(server.address, "/t.T/wait", b"", timeout_s=30))
            for _ in range(3)
        ]
        await until(lambda: fake.started == 3)
        await server.stop(0)
        for call in calls:
            with pytest.raises(UnavailableError):
                await call
        assert fake.cancelled == 3
        with pytest.raises(UnavailableError):
            await world.client.call(server.address, "/t.T/echo", b"", timeout_s=5)

    @in_world
    async def test_a_server_that_stops_with_grace(self, world: World) -> None:
        fake, body = Fake(), noise(self.last_answer_bytes)
        server = await world.serve(fake.handlers)
        call = asyncio.ensure_future(
            world.client.call(server.address, "/t.T/wait", body, timeout_s=30)
        )
        await until(lambda: fake.started == 1)
        stopping = asyncio.ensure_future(server.stop(20))
        await asyncio.sleep(0.05)
        with pytest.raises(UnavailableError):
            await world.client.call(server.address, "/t.T/echo", b"", timeout_s=5)
        fake.go.set()
        assert await call == body
        async with asyncio.timeout(5):
            await stopping

    @in_world
    async def test_a_grace_that_is_too_short(self, world: World) -> None:
        fake = Fake()
        server = await world.serve(fake.handlers)
        call = asyncio.ensure_future(
            world.client.call(server.address, "/t.T/wait", b"", timeout_s=30)
        )
        await until(lambda: fake.started == 1)
        await server.stop(0.1)
        with pytest.raises(UnavailableError):
            await call
        assert fake.cancelled == 1

    @in_world
    async def test_a_server_that_starts_again(self, world: World) -> None:
        server = await world.serve(Fake().handlers)
        for number in range(3):
            body = b"%d" % number
            assert await world.client.call(server.address, "/t.T/echo", body, timeout_s=5) == body
            await server.stop(0)
            server = await world.serve(Fake().handlers, server.address)
            await asyncio.sleep(0.05)  # the client hears of the end

    @in_world
    async def test_a_server_that_dies(self, world: World) -> None:
        fake = Fake()
        address, break_all = await world.serve_mortal(fake.handlers)
        calls = [
            asyncio.ensure_future(world.client.call(address, "/t.T/wait", body, timeout_s=30))
            for body in (b"", noise(3 << 20))
        ]
        await until(lambda: fake.started == 2)
        break_all()
        for call in calls:
            async with asyncio.timeout(5):
                with pytest.raises(UnavailableError):
                    await call

    @in_world
    async def test_who_refuses(self, world: World) -> None:
        async with asyncio.timeout(10):
            assert await world.client.refuses(world.unreachable, within_s=5)
            server = await world.serve(Fake().handlers)
            for _ in range(3):
                assert not await world.client.refuses(server.address, within_s=5)
            assert await world.client.call(server.address, "/t.T/echo", b"1", timeout_s=5) == b"1"
            await server.stop(0)
            assert await world.client.refuses(server.address, within_s=5)

    @in_world
    async def test_a_server_that_dies_refuses(self, world: World) -> None:
        address, break_all = await world.serve_mortal(Fake().handlers)
        assert not await world.client.refuses(address, within_s=5)
        break_all()
        async with asyncio.timeout(10):
            assert await world.client.refuses(address, within_s=5)

    @in_world
    async def test_addresses(self, world: World) -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await world.client.call(world.unreachable, "/t.T/echo", b"", timeout_s=5)
        server = await world.serve(Fake().handlers)
        assert not server.address.endswith(":0")
        with pytest.raises(ConfigurationError):
            await world.serve(Fake().handlers, server.address)

    @in_world
    async def test_a_net_that_is_closed(self, world: World) -> None:
        fake = Fake()
        address = (await world.serve(fake.handlers)).address
        call = asyncio.ensure_future(world.client.call(address, "/t.T/wait", b"", timeout_s=30))
        await until(lambda: fake.started == 1)
        await world.client.close()
        with pytest.raises(UnavailableError):
            await call
        with pytest.raises(UnavailableError):
            await world.client.call(address, "/t.T/echo", b"", timeout_s=5)
