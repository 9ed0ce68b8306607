"""gRPC health follows what the server says of itself; reflection answers by both of its names."""

import asyncio

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from icecore.rpc import standard_services
from icecore.rpc.grpc_net import GrpcNet
from icecore.rpc.ports import Body, CallContext, Handlers, Received

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


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection(version: str) -> None:
    net = GrpcNet()
    handlers = Handlers({"/icecore.v1.DataService/Fetch": nobody}, {})
    server = await net.serve("127.0.0.1:0", handlers)
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {each.name for each in (await call.read()).list_services_response.service}
        assert names == {
            "icecore.v1.DataService",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        for name in names:  # all that is listed can be described
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
            answered = (await call.read()).file_descriptor_response.file_descriptor_proto
            files = map(descriptor_pb2.FileDescriptorProto.FromString, answered)
            assert name in {
                f"{file.package}.{each.name}" for file in files for each in file.service
            }
        await call.done_writing()
    await server.stop(0)
    await net.close()


async def nobody(_: Received, __: CallContext) -> Body:
    raise AssertionError
