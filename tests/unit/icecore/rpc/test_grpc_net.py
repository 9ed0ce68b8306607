"""Behaviour of the gRPC adapter alone; ``tests/conformance/test_nets.py`` tests what all ``Net``
share."""

import asyncio
import gc
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from icecore.errors import ConfigurationError, RequestTimeoutError
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.methods import ADMIN, DATA
from icecore.rpc.ports import Body, CallContext, Handlers, Outcome, Received
from tests.support.waiting import until

LOOPBACK = "127.0.0.1:0"
FLOOD = 400


async def echo(body: Received, context: CallContext) -> Body:
    """The only handler here."""
    assert context.peer.startswith("ipv4:127.0.0.1:")
    return body


HANDLERS = Handlers({"/t.T/echo": echo}, {})


@pytest_asyncio.fixture
async def net() -> AsyncIterator[GrpcNet]:
    net = GrpcNet()
    yield net
    await net.close()


@pytest_asyncio.fixture
async def address(net: GrpcNet) -> AsyncIterator[str]:
    server = await net.serve(LOOPBACK, HANDLERS)
    yield server.address
    await server.stop(0)


async def test_other_clients_can_call(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        assert await channel.unary_unary("/t.T/echo")(b"x", timeout=5) == b"x"


async def test_a_call_that_is_given_up_before_it_began_says_nothing(
    net: GrpcNet, address: str, recwarn: pytest.WarningsRecorder
) -> None:
    answers: list[Outcome] = []
    net.start_call(address, "/t.T/echo", b"", timeout_s=5, done=answers.append)()
    net.start_call(address, "/t.T/echo", b"x", timeout_s=5, done=answers.append)
    await until(lambda: bool(answers))
    gc.collect()
    assert answers == [b"x"]
    assert not [each for each in recwarn if each.category is RuntimeWarning]


async def test_gzip_requests_are_refused(address: str) -> None:
    async with grpc.aio.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/echo")(bytes(10_000), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_addresses(net: GrpcNet, address: str) -> None:
    with pytest.raises(ConfigurationError, match=f"port {address.split(':')[1]} is in use"):
        await net.serve(address, HANDLERS)
    with pytest.raises(ConfigurationError, match="insecure-bind"):
        await net.serve("0.0.0.0:0", HANDLERS)
    with pytest.raises(ConfigurationError, match="host:port"):
        await net.serve("localhost", HANDLERS)


async def test_health_and_reflection(net: GrpcNet) -> None:
    server = await net.serve(LOOPBACK, HANDLERS)
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


async def test_a_read_ends_when_its_caller_has_given_up_and_a_change_does_not(net: GrpcNet) -> None:
    ended: list[str] = []
    go_on = asyncio.Event()

    async def slow(body: Received, _: CallContext) -> bytes:
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            ended.append(f"{bytes(body).decode()} stopped")
            raise
        ended.append(f"{bytes(body).decode()} done")
        return b""

    names = DATA["Fetch"], ADMIN["CreateTopic"]
    server = await net.serve(
        LOOPBACK, Handlers(dict.fromkeys(names, slow) | {"/t.T/echo": echo}, {})
    )
    await net.call(server.address, "/t.T/echo", b"", timeout_s=30)  # it is connected
    for name, body in zip(names, (b"read", b"change"), strict=True):
        with pytest.raises(RequestTimeoutError):
            await net.call(server.address, name, body, timeout_s=0.5)
    await until(lambda: ended == ["read stopped"])
    go_on.set()
    await until(lambda: ended == ["read stopped", "change done"])
    await server.stop(0)


async def test_a_flood_of_one_method_or_of_none_holds_up_no_other(net: GrpcNet) -> None:
    """gRPC takes calls in one by one; each method has a line of its own."""
    server = await net.serve(LOOPBACK, Handlers({"/t.T/many": echo, "/t.T/rare": echo}, {}))
    await net.call(server.address, "/t.T/rare", b"", timeout_s=5)  # so it is connected
    async with grpc.aio.insecure_channel(server.address) as channel:
        await channel.channel_ready()
        for method in ("/t.T/many", "/t.T/nobody"):
            ended: list[object] = []
            flood = [channel.unary_unary(method)(b"", timeout=30) for _ in range(FLOOD)]
            for each in flood:
                each.add_done_callback(ended.append)
            await net.call(server.address, "/t.T/rare", b"", timeout_s=30)
            assert len(ended) < FLOOD // 2, method
            await asyncio.gather(*flood, return_exceptions=True)
    await server.stop(0)
