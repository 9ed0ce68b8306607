"""gRPC health follows what the server says of itself, for those who ask and those who watch."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from icecore.rpc import standard_services
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.ports import Handlers

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_services, "_POLL_S", 0.01)
    ready = [False]
    net = GrpcNet()
    server = await net.serve("127.0.0.1:0", Handlers({}, {}, is_ready=lambda: ready[0]))
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(name: str) -> int:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            return int(answer.status)

        assert [await status(each) for each in ("liveness", "readiness", "")] == [
            SERVING,
            NOT_SERVING,
            NOT_SERVING,
        ]
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == NOT_SERVING
        ready[0] = True
        async with asyncio.timeout(20):
            assert (await watch.read()).status == SERVING
        assert await status("") == SERVING
        watch.cancel()
    await server.stop(0)
    await net.close()
