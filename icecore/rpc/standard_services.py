"""Standard services of every gRPC server: health for probes, reflection for grpcurl.

Health has the services ``liveness`` (serving while the process answers), ``readiness``, the empty
name and the names of all services: those are serving while the server says that it is ready.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc

_POLL_S = 0.5
LIVENESS, READINESS = "liveness", "readiness"
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


class HealthPoll:
    """Tells the health servicer what is so, now and then: it also serves those who watch."""

    def __init__(self, servicer: Any, names: Sequence[str], is_ready: Callable[[], bool]) -> None:
        self._servicer = servicer
        self._names = names
        self._is_ready = is_ready
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The server has started: from now on look now and then."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """From now on nothing is serving."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._servicer.enter_graceful_shutdown()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            await self.tell()

    async def tell(self) -> None:
        """Say what is so at the moment."""
        from grpc_health.v1.health_pb2 import HealthCheckResponse

        serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        status = serving if self._is_ready() else not_serving
        await self._servicer.set(LIVENESS, serving)
        for name in self._names:
            await self._servicer.set(name, status)


async def add_standard_services(
    server: grpc.aio.Server, names: list[str], is_ready: Callable[[], bool]
) -> HealthPoll:
    """Add both to a server that has not started; the health, which is told when it stops.

    The packages are imported here because clients lack them.

    Args:
        server: The server.
        names: Full names of the services it offers.
        is_ready: Whether clients should use them.
    """
    from grpc_health.v1 import health, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    poll = HealthPoll(servicer, ["", READINESS, *names], is_ready)
    await poll.tell()
    _describe_reflection_v1()
    described = [*names, reflection.SERVICE_NAME, REFLECTION_V1]
    reflection.enable_server_reflection(described, server)
    newer = _reflection_v1(reflection.aio.ReflectionServicer(described))
    server.add_generic_rpc_handlers((newer,))
    return poll


def _describe_reflection_v1() -> None:
    """Describe the newer reflection name, too: clients may ask for each service that is listed."""
    from google.protobuf import descriptor_pb2, descriptor_pool, text_format
    from grpc_reflection.v1alpha import reflection_pb2

    pool = descriptor_pool.Default()
    try:
        pool.FindFileContainingSymbol(REFLECTION_V1)
    except KeyError:
        older = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(older)
        text = text_format.MessageToString(older).replace("v1alpha", "v1")
        newer = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
        newer.options.ClearField("deprecated")
        pool.Add(newer)


def _reflection_v1(servicer: Any) -> grpc.GenericRpcHandler:
    """The same service under its newer name, which newer clients ask for first.

    grpcio-reflection knows the older one only; the messages of both are the same on the wire.
    """
    from grpc_reflection.v1alpha import reflection_pb2

    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": method})
