"""The gRPC adapter: bytes and errors both ways, streams that break, addresses that may not be."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from icecore import errors
from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    InternalError,
    InvalidRequestError,
    NotLeaderError,
    RequestTimeoutError,
    ThrottledError,
    UnavailableError,
    UnsupportedError,
)
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.ports import CallContext, Handlers, ServerStream

LOOPBACK = "127.0.0.1:0"


class Fake:
    """Handlers under test, and what they saw."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.started = asyncio.Event()
        self.finished = asyncio.Event()
        self.stream_end: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def echo(self, body: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
        return body

    async def fail(self, body: bytes, context: CallContext) -> bytes:
        raise errors.error_from_reason(body.decode(), "why ü\n" * 1000, {"leader_node_id": "2"})

    async def crash(self, body: bytes, context: CallContext) -> bytes:
        raise ValueError("a secret")

    async def sleep(self, body: bytes, context: CallContext) -> bytes:
        self.started.set()
        await asyncio.sleep(0.3)
        self.finished.set()
        return b""

    async def echo_stream(self, stream: ServerStream, context: CallContext) -> None:
        try:
            while (body := await stream.read()) is not None:
                if body == b"end":
                    return
                if body == b"fail":
                    raise NotLeaderError("moved", leader_node_id=3)
                await stream.write(body)
            self.stream_end.set_result(None)
        except IcecoreError as error:
            if not self.stream_end.done():
                self.stream_end.set_result(error)
            raise

    @property
    def handlers(self) -> Handlers:
        unary = {f"/t.T/{f.__name__}": f for f in (self.echo, self.fail, self.crash, self.sleep)}
        return Handlers(unary, {"/t.T/stream": self.echo_stream})


@pytest_asyncio.fixture
async def net() -> AsyncIterator[GrpcNet]:
    net = GrpcNet()
    yield net
    await net.close()


@pytest_asyncio.fixture
async def fake() -> Fake:
    return Fake()


@pytest_asyncio.fixture
async def address(net: GrpcNet, fake: Fake) -> AsyncIterator[str]:
    server = await net.serve(LOOPBACK, fake.handlers)
    yield server.address
    await server.stop(0)


async def test_unary(net: GrpcNet, fake: Fake, address: str) -> None:
    big = bytes(5 << 20)
    assert await net.call(address, "/t.T/echo", big, timeout_s=10) == big
    assert await net.call(address, "/t.T/echo", b"", timeout_s=10) == b""
    context = fake.contexts[0]
    assert context.principal == "anonymous"
    assert "127.0.0.1" in context.peer
    assert context.timeout_s is not None and 0 < context.timeout_s <= 10


def leaf_errors(cls: type[IcecoreError] = IcecoreError) -> list[type[IcecoreError]]:
    found = [child for sub in cls.__subclasses__() for child in (sub, *leaf_errors(sub))]
    return [each for each in found if each.__module__ == IcecoreError.__module__]


async def test_every_error_arrives_as_itself(net: GrpcNet, address: str) -> None:
    for cls in leaf_errors():
        with pytest.raises(cls) as caught:
            await net.call(address, "/t.T/fail", cls.reason.encode(), timeout_s=5)
        assert type(caught.value) is cls
        assert caught.value.message.startswith("why ü\nwhy")
        assert caught.value.metadata == {"leader_node_id": "2"}


async def test_unexpected_failures_show_no_internals(
    net: GrpcNet, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError) as caught:
        await net.call(address, "/t.T/crash", b"", timeout_s=5)
    assert "secret" not in str(caught.value)
    assert "a secret" in caplog.text


async def test_plain_statuses(net: GrpcNet, fake: Fake, address: str) -> None:
    with pytest.raises(UnsupportedError):
        await net.call(address, "/t.T/nothing", b"", timeout_s=5)
    with pytest.raises(RequestTimeoutError):
        await net.call(address, "/t.T/sleep", b"", timeout_s=0.05)
    with pytest.raises(InvalidRequestError, match="larger than max"):
        await net.call(address, "/t.T/echo", bytes((64 << 20) + 1), timeout_s=5)
    with pytest.raises(UnavailableError):
        await net.call("127.0.0.1:1", "/t.T/echo", b"", timeout_s=5)
    # The caller gave up, the handler went on.
    await asyncio.wait_for(fake.finished.wait(), 2)


async def test_gzip_requests_are_refused(address: str) -> None:
    async with grpc.aio.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/echo")(bytes(10_000), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_too_many_calls_are_throttled(fake: Fake) -> None:
    net = GrpcNet(calls_max=1)
    server = await net.serve(LOOPBACK, fake.handlers)
    first = asyncio.ensure_future(net.call(server.address, "/t.T/sleep", b"", timeout_s=5))
    await fake.started.wait()
    with pytest.raises(ThrottledError) as caught:
        await net.call(server.address, "/t.T/echo", b"", timeout_s=5)
    assert caught.value.metadata["retry_after_ms"] == "50"
    await first
    assert await net.call(server.address, "/t.T/echo", b"1", timeout_s=5) == b"1"
    await server.stop(0)
    await net.close()


async def test_stream_both_ways_and_its_ends(net: GrpcNet, address: str) -> None:
    stream = net.open_stream(address, "/t.T/stream")
    for body in (b"", b"a", bytes(2 << 20)):
        await stream.write(body)
        assert await stream.read() == body
    await stream.write(b"end")
    assert await stream.read() is None
    with pytest.raises(UnavailableError):
        await stream.write(b"late")

    failing = net.open_stream(address, "/t.T/stream")
    await failing.write(b"fail")
    with pytest.raises(NotLeaderError) as caught:
        await failing.read()
    assert caught.value.metadata == {"leader_node_id": "3"}


async def test_a_timed_out_read_does_not_break_the_stream(net: GrpcNet, address: str) -> None:
    stream = net.open_stream(address, "/t.T/stream")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await stream.read()
        await stream.write(b"x")
        assert await stream.read() == b"x"
    stream.cancel()


async def test_cancel_breaks_both_ends(net: GrpcNet, fake: Fake, address: str) -> None:
    stream = net.open_stream(address, "/t.T/stream")
    await stream.write(b"x")
    await stream.read()
    stream.cancel()
    with pytest.raises(UnavailableError):
        await stream.read()
    with pytest.raises(UnavailableError):
        await stream.write(b"")
    assert isinstance(await asyncio.wait_for(fake.stream_end, 2), UnavailableError)


async def test_stopped_server_breaks_streams_and_calls(net: GrpcNet, fake: Fake) -> None:
    server = await net.serve(LOOPBACK, fake.handlers)
    stream = net.open_stream(server.address, "/t.T/stream")
    await stream.write(b"x")
    await stream.read()
    await server.stop(0)
    with pytest.raises(UnavailableError):
        await stream.read()
    with pytest.raises(UnavailableError):
        await net.call(server.address, "/t.T/echo", b"", timeout_s=5)


async def test_unreachable_stream_and_closed_net(net: GrpcNet, address: str) -> None:
    stream = net.open_stream("127.0.0.1:1", "/t.T/stream")
    with pytest.raises(UnavailableError):
        await stream.read()
    call = asyncio.ensure_future(net.call(address, "/t.T/sleep", b"", timeout_s=5))
    await asyncio.sleep(0.1)
    await net.close()
    with pytest.raises(UnavailableError):
        await call
    with pytest.raises(UnavailableError):
        await net.call(address, "/t.T/echo", b"", timeout_s=5)


async def test_addresses(net: GrpcNet, fake: Fake, address: str) -> None:
    with pytest.raises(ConfigurationError, match=f"port {address.split(':')[1]} is in use"):
        await net.serve(address, fake.handlers)
    with pytest.raises(ConfigurationError, match="insecure-bind"):
        await net.serve("0.0.0.0:0", fake.handlers)
    with pytest.raises(ConfigurationError, match="host:port"):
        await net.serve("localhost", fake.handlers)


async def test_health_and_reflection(net: GrpcNet, fake: Fake) -> None:
    server = await net.serve(LOOPBACK, fake.handlers)
    async with grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "t.T"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in stub.ServerReflectionInfo(iter([request])):
            assert "t.T" in {service.name for service in response.list_services_response.service}
    await server.stop(0)
